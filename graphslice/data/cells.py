"""What the cells of a column say: numbers, nothing, or words."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from graphslice.data.tables import decoded, malformed_rows, texts

# Cells that say that there is no value.
_NO_VALUE = ("", "na", "n/a", "nan", "null", "none", "<na>")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?")


def label_cells(chunk: pa.Table, column: str) -> tuple[np.ndarray, np.ndarray]:
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
    cells = texts(column, decoded)
    numbers = np.array([_parse_number(cell) for cell in cells], dtype=np.float64)
    empty = np.zeros(len(cells), bool)
    for row in np.flatnonzero(np.isnan(numbers)).tolist():
        empty[row] = cells[row].strip().lower() in _NO_VALUE
    return numbers, empty


def _parse_number(cell: str) -> float:
    """The number that a text is, nan where it is none."""
    if "_" in cell or not cell.isascii():  # Python's own notation, and digits of other scripts
        return np.nan
    try:
        return float(cell)
    except ValueError:
        return np.nan


def with_a_point(cell: str) -> str:
    """``" (write 12.5)"`` for the cell ``12,5``. Not read as that: 1,234 may as well be a thousand."""
    cell = cell.strip()
    if not _DECIMAL_COMMA.fullmatch(cell):
        return ""
    point, thousands = cell.replace(",", "."), cell.replace(",", "")
    or_else = f", or {thousands} if the comma parts thousands" if len(cell.split(",")[1]) == 3 else ""
    return f" (write {point}{or_else})"


def cell_text(column: pa.ChunkedArray, row: int) -> str:
    """The text of one cell."""
    return texts(column.slice(row, 1), decoded)[0]


def class_key(cell: str) -> str:
    """What two cells of one class have in common: ``1`` and ``1.0``, ``Yes`` and ``yes``."""
    number = _parse_number(cell)
    return cell.strip().casefold() if np.isnan(number) else f"{number:.12g}"
