"""Text tables in chunks: encodings, separators, quotes, and rows that do not match the header.

A malformed row keeps its position: it comes with a reason and the first of its cells.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO, TypeAlias, cast

from graphslice.errors import InputError

# Lines after the header by which the separator is inferred.
_LINES_SEEN = 20
# Byte order marks.
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
# First line that names the separator for Excel.
_SEPARATOR = re.compile(r'"?sep=([,;\t])"?')
# Most characters of a cell, for the csv module, whose default is 131,072: the largest C long on all platforms.
_FIELD_LIMIT = 2**31 - 1

#: Rows of texts, one for each column of the header; and by row the reason if it does not match the header.
TextRows: TypeAlias = tuple[list[list[str]], dict[int, str]]


def open_text(path: Path, stack: ExitStack) -> TextIO:
    """Open a text file, unpacked if its name ends in ``.gz``; ``stack`` closes it.

    The encoding is that of the byte order mark, else UTF-8. Line ends are kept. Bytes that are not valid UTF-8 become
    surrogates, which ``surrogateescape`` encodes as the same bytes.
    """
    opener: Callable = gzip.open if path.name.lower().endswith(".gz") else open
    with opener(path, "rb") as binary:
        head = binary.read(4)
    encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), "utf-8")
    errors = "surrogateescape" if encoding.startswith("utf-8") else "strict"  # the others cannot keep invalid bytes
    return cast(TextIO, stack.enter_context(opener(path, "rt", encoding=encoding, errors=errors, newline="")))


def encode_text(cell: str) -> bytes:
    """Encode a cell as the bytes that it has in its file."""
    return cell.encode("utf-8", errors="surrogateescape")


def decode_text(cell: bytes) -> str:
    """Decode a cell as UTF-8, or as Latin-1 if it is not valid UTF-8."""
    try:
        return cell.decode("utf-8")
    except UnicodeDecodeError:
        return cell.decode("latin-1")


def chunks_of(table: Iterable[list[str]], rows: int) -> Iterator[TextRows]:
    """Divide rows that are all well-formed into chunks."""
    table = iter(table)
    while part := list(itertools.islice(table, rows)):
        yield part, {}


def smiles_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Read the lines of a ``.smi`` file: a SMILES or CXSMILES, and a name or ``""``. Blank lines are skipped."""
    return (_smiles_line(line) for line in lines if line.strip())


def _smiles_line(line: str) -> list[str]:
    smiles, *rest = line.split(None, 1)
    name = rest[0].strip() if rest else ""
    if name.startswith("|") and (end := name.find("|", 1)) > 0:  # the extension of a CXSMILES is part of the molecule
        smiles, name = f"{smiles} {name[: end + 1]}", name[end + 1 :].strip()
    return [smiles, name]


def read_csv(lines: Iterator[str], file: str, delimiter: str | None, rows: int) -> tuple[list[str], Iterator[TextRows]]:
    """Read the names of the columns (none of an empty file) and the rows of a delimited text table, in chunks.

    Blank lines and Excel's first line ``sep=;`` are skipped; without a ``delimiter`` it is inferred. A quote that is
    not closed may raise InputError only while the rows are read. ``file`` is the name for messages.
    """
    number, first = next(((i, line) for i, line in enumerate(lines) if line.strip("\r\n")), (0, ""))
    if declared := _SEPARATOR.fullmatch(first.strip("\r\n")):
        delimiter, number, first = declared[1], number + 1, next(lines, "")
    seen = [first, *(() if delimiter else itertools.islice(lines, _LINES_SEEN))]
    csv.field_size_limit(_FIELD_LIMIT)
    reader = csv.reader(itertools.chain(seen, lines), delimiter=delimiter or _delimiter_of(seen), strict=True)
    records = _records(reader, number, file)
    header = next(records, ([], 0))[0]
    return header, _chunks(records, len(header), file, rows)


def _delimiter_of(lines: list[str]) -> str:
    """Return the separator that divides most lines into as many fields as the header, which are most; else a comma."""

    def agreement(delimiter: str) -> tuple[bool, bool, int]:
        header, *rows = [record for record in csv.reader(lines, delimiter=delimiter) if record] or [[]]
        agrees = len(header) > 1 and 2 * sum(len(row) == len(header) for row in rows) > len(rows)
        return agrees, not agrees and delimiter == "," and len(header) > 1, len(header)

    return max(",;\t", key=agreement)


def _records(reader: Iterator[list[str]], number: int, file: str) -> Iterator[tuple[list[str], int]]:
    """Yield the records and the number of their last line; ``number`` lines come before the first."""
    line = 0
    try:
        for record in reader:
            line = reader.line_num  # type: ignore[attr-defined]
            if record:
                yield record, number + line
    except csv.Error:
        raise InputError(
            f"{file}: a quote that opens in line {number + line + 1} is not closed, or text follows it"
        ) from None


def _chunks(records: Iterator[tuple[list[str], int]], width: int, file: str, rows: int) -> Iterator[TextRows]:
    while block := list(itertools.islice(records, rows)):
        faults = {}
        for row, (record, line) in enumerate(block):
            if len(record) != width:
                fields = f"{len(record)} field{'s' * (len(record) != 1)}"
                faults[row] = f"{fields} where the header has {width} (line {line} of {file})"
                record[:] = (record + [""] * width)[:width]
        yield [record for record, _ in block], faults
