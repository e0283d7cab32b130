"""Reading of whole tables."""

from pathlib import Path

from graphslice.data.tables import open_table, texts


def read_table(path: Path | str, rows: int = 8192) -> tuple[list[str], list[list[str]], dict[int, str]]:
    """Read columns, rows, and the reasons by malformed row; ``rows`` is the size of a chunk."""
    cells: list[list[str]] = []
    malformed: dict[int, str] = {}
    with open_table(Path(path), rows) as table:
        for chunk in table.chunks:
            malformed |= {len(cells) + row: reason for row, reason in chunk.faults.items()}
            cells += map(list, zip(*map(texts, chunk.table.columns), strict=True))
        return table.columns, cells, malformed
