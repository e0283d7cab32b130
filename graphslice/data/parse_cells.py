"""What the cells of a column say: numbers, nothing, or words."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from graphslice.data.tables import decode_text, malformed_rows, texts

# Cells that say that there is no value.
_NO_VALUE = ("", "na", "n/a", "nan", "null", "none", "<na>")
# Beyond this a float64 does not hold every whole number.
_MAX_EXACT_INTEGER = 2.0**53
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")


def parse_number_column(chunk: pa.Table, column: str) -> tuple[np.ndarray, np.ndarray]:
    """:func:`parse_numbers` of a column; the cells of malformed rows are empty."""
    numbers, empty = parse_numbers(chunk.column(column))
    if malformed := list(malformed_rows(chunk)):
        numbers, empty = numbers.copy(), empty.copy()
        numbers[malformed], empty[malformed] = np.nan, True
    return numbers, empty


def parse_numbers(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers in a column: of numbers, of texts, or of anything that reads as a number. True and False are words.

    Returns:
        ``float64 [R]``, nan where there is no number; ``bool [R]``, which cells are empty.
    """
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = column.cast(pa.float64(), safe=False).to_numpy()
        return numbers, np.isnan(numbers)
    cells = texts(column, decode_text)
    numbers = np.array([parse_number(cell) for cell in cells], dtype=np.float64)
    empty = np.zeros(len(cells), bool)
    for row in np.flatnonzero(np.isnan(numbers)).tolist():
        empty[row] = cells[row].strip().lower() in _NO_VALUE
    return numbers, empty


def parse_number(cell: str) -> float:
    """The number that a text is, nan where it is none."""
    if not cell.isascii():
        cell = cell.replace("\u2212", "-")  # the minus sign of typesetting
    if "_" in cell or not cell.isascii():  # Python's own notation, and digits of other scripts
        return np.nan
    try:
        return float(cell)
    except ValueError:
        return np.nan


def parse_number_list(cell: object) -> np.ndarray | None:
    """``float64 [n]``: the numbers of a cell that is a list of them, nan where one is unknown; None of an empty cell.

    Args:
        cell: of a column of lists; or a text such as ``[0.1, null, -2e-3]``, with commas or spaces between.

    Raises:
        ValueError: with the reason, for what is no list of finite numbers.
    """
    if is_empty(cell) or (isinstance(cell, float) and np.isnan(cell)):
        return None
    if isinstance(cell, str):
        text = cell.strip()
        if not (text.startswith("[") and text.endswith("]")):
            raise ValueError(f"is no list of numbers: {_short(text)}")
        inner = text[1:-1].strip()
        items: list[object] = [*(inner.split(",") if "," in inner else inner.split())]
    elif isinstance(cell, list):
        items = cell
    else:
        raise ValueError(f"is no list of numbers: {_short(str(cell))}")
    numbers = np.array([_item(item) for item in items], np.float64)
    if np.isinf(numbers).any():
        raise ValueError(f"has a number that is not finite: {_short(str(cell))}")
    return numbers


def list_or_none(cell: object) -> np.ndarray | None:
    """The numbers of a cell that is a list of such, None of any other."""
    try:
        return parse_number_list(cell)
    except ValueError:
        return None


def is_empty(cell: object) -> bool:
    """Whether a cell says that there is no value."""
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in _NO_VALUE)


def column_cells(chunk: pa.Table, column: str, rows: Collection[int] | None = None) -> list[object]:
    """The cells of a column, or of some rows of it: lists, texts, None, or whatever else it has."""
    cells = chunk.column(column)
    # One by one: Arrow takes no rows of views of texts, which some writers of Parquet store.
    some = cells.to_pylist() if rows is None else [cells[row].as_py() for row in rows]
    return [decode_text(cell) if isinstance(cell, bytes) else cell for cell in some]


def holds_lists(chunk: pa.Table, column: str) -> bool:
    """Whether any cell of a column is a list of numbers."""
    return any(list_or_none(cell) is not None for cell in column_cells(chunk, column))


def _item(item: object) -> float:
    """One number of a list, nan where it is unknown; raises ValueError for what is none."""
    if item is None:
        return np.nan
    if isinstance(item, int | float | np.number):
        return float(item)
    text = str(item).strip().lower()
    if text in ("true", "false"):
        return float(text == "true")
    number = parse_number(text)
    if np.isnan(number) and text not in _NO_VALUE:
        raise ValueError(f"has an item that is no number: {_short(text)}")
    return number


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def decimal_point_hint(cell: str) -> str:
    """``" (write 12.5)"`` for the cell ``12,5``, and ``" (write 1234.5)"`` for ``1,234.5``; nothing for other cells.

    Not read as that: 1,234 may be a decimal number or a thousand.
    """
    cell = cell.strip()
    if has_thousands_separators(cell):
        return f" (write {cell.replace(',', '')})"
    if not _DECIMAL_COMMA.fullmatch(cell):
        return ""
    point, thousands = cell.replace(",", "."), cell.replace(",", "")
    or_else = f", or {thousands} if the comma parts thousands" if len(cell.split(",")[1]) == 3 else ""
    return f" (write {point}{or_else})"


def has_thousands_separators(cell: str) -> bool:
    """Whether the commas of a number part thousands, as in ``1,234.5`` and ``1,234,567``; not of ``1,234``."""
    cell = cell.strip()
    return _THOUSANDS.fullmatch(cell) is not None and _DECIMAL_COMMA.fullmatch(cell) is None


def cell_text(column: pa.ChunkedArray, row: int) -> str:
    """The text of one cell."""
    return texts(column.slice(row, 1), decode_text)[0]


def class_key(cell: str) -> str:
    """What two cells of one class have in common: ``1`` and ``1.0``, ``Yes`` and ``yes``."""
    number = parse_number(cell)
    return cell.strip().casefold() if np.isnan(number) else number_key(number)


def class_indices(classes: Sequence[str]) -> dict[str, float]:
    """The place of each class, by :func:`class_key`."""
    return {class_key(name): float(place) for place, name in enumerate(classes)}


def number_key(number: float) -> str:
    """The text of a number that is a class: whole ones to the last digit, others to twelve; 0 and -0 are one."""
    whole = number.is_integer() and abs(number) < _MAX_EXACT_INTEGER
    return str(int(number)) if whole else f"{number:.12g}"
