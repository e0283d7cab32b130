"""Parsing of table cells: numbers (with decimal commas if ``data.decimal`` says so), lists, empty cells and words."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from graphslice.data.tables import Rows, binary_array, decode_text, is_text, texts
from graphslice.errors import shown

# Contents of empty cells, in lower case: marks of missing values, dashes, and errors of spreadsheets.
_NO_VALUE = {
    "",
    *("na", "n/a", "n.a.", "nd", "n/d", "n.d.", "nan", "null", "none", "<na>", "-", "--", "\u2212", "\u2013", "\u2014"),
    *("n.t.", "n/t", "not tested", "not determined", "not measured", "not available", "pending", "tbd", "inconclusive"),
    *("#n/a", "#n/d", "#nv", "#div/0!", "#value!", "#num!", "#ref!", "#name?", "#null!"),
}
# Up to this magnitude float64 represents every integer.
_MAX_EXACT_INTEGER = 2.0**53


def parse_number_column(rows: Rows, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Parse numbers, but no booleans: ``float64 [R]``, nan without one; ``bool [R]``, true where empty or at fault."""
    cells = rows.table.column(column)
    if pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type):
        numbers = cells.cast(pa.float64(), safe=False).to_numpy()
        empty = np.isnan(numbers)
    else:
        words, word_of = words_of(cells)
        numbers = np.array([parse_number(word) for word in words], dtype=np.float64)[word_of]
        empty = np.array([is_empty(word) for word in words], bool)[word_of]
    if faults := list(rows.faults):
        numbers = numbers.copy()
        numbers[faults], empty[faults] = np.nan, True
    return numbers, empty


def words_of(cells: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    """Return the different texts of a column, of which most may be empty, and the index of the one of each row."""
    if not is_text(cells.type) or pa.types.is_dictionary(cells.type):
        return texts(cells), np.arange(len(cells))
    encoded = cells.combine_chunks().dictionary_encode(null_encoding="encode")
    return texts(encoded.dictionary), encoded.indices.to_numpy()


def parse_number(cell: str) -> float:
    """Parse a number; nan if the text is not a number."""
    if not cell.isascii():
        cell = cell.strip().replace("\u2212", "-")  # non-breaking spaces, and the minus sign of typesetting
    if "_" in cell or not cell.isascii():  # float() would accept Python's 1_000 and digits of other scripts
        return np.nan
    try:
        return float(cell)
    except ValueError:
        return np.nan


def parse_number_list(cell: object) -> np.ndarray | None:
    """Parse a list, or a text such as ``[0.1, null, -2e-3]``: ``float64 [n]``, None if empty; or raise ValueError."""
    if is_empty(cell) or (isinstance(cell, float) and np.isnan(cell)):
        return None
    if isinstance(cell, str):
        text = cell.strip()
        if not (text.startswith("[") and text.endswith("]")):
            raise ValueError(f"is not a list of numbers: {shown(text)}")
        inner = text[1:-1].strip()
        items: list[object] = [*(inner.split(",") if "," in inner else inner.split())]
    elif isinstance(cell, list):
        items = cell
    else:
        raise ValueError(f"is not a list of numbers: {shown(str(cell))}")
    numbers = np.array([_item(item) for item in items], np.float64)
    if np.isinf(numbers).any():
        raise ValueError(f"has a number that is not finite: {shown(str(cell))}")
    return numbers


def list_or_none(cell: object) -> np.ndarray | None:
    """Return the numbers of a cell that is a list of numbers, None for any other cell."""
    try:
        return parse_number_list(cell)
    except ValueError:
        return None


def is_empty(cell: object) -> bool:
    """True if a cell holds no value."""
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in _NO_VALUE)


def column_cells(rows: Rows, column: str) -> list[object]:
    """Return the cells of a column as Python objects: lists, texts, None, or other types."""
    cells = rows.table.column(column).to_pylist()
    return [decode_text(cell) if isinstance(cell, bytes) else cell for cell in cells]


def _item(item: object) -> float:
    """Parse one number of a list, nan if it is unknown; raise ValueError if it is not a number."""
    if item is None:
        return np.nan
    if isinstance(item, int | float | np.number):
        return float(item)
    text = str(item).strip().lower()
    if text in ("true", "false"):
        return float(text == "true")
    number = parse_number(text)
    if np.isnan(number) and text not in _NO_VALUE:
        raise ValueError(f"has an item that is not a number: {shown(text)}")
    return number


def cell_text(column: pa.ChunkedArray, row: int) -> str:
    """Return one cell as text."""
    return texts(column.slice(row, 1))[0]


def class_key(cell: str) -> str:
    """Return a key that is equal for cells of the same class, such as ``1`` and ``1.0``, or ``Yes`` and ``yes``."""
    number = parse_number(cell)
    return " ".join(cell.split()).casefold() if np.isnan(number) else number_key(number)


def class_indices(classes: Sequence[str]) -> dict[str, float]:
    """Return the index of each class, by :func:`class_key`."""
    return {class_key(name): float(index) for index, name in enumerate(classes)}


def number_key(number: float) -> str:
    """Format a number that is a class: integers exactly, others to twelve digits; 0 and -0 are the same."""
    is_exact_integer = number.is_integer() and abs(number) < _MAX_EXACT_INTEGER
    return str(int(number)) if is_exact_integer else f"{number:.12g}"


# Signs of bounds may stand before a number.
_SIGNS = r"\s*[<>=\u2264\u2265\u2a7d\u2a7e]*\s*[+\u2212-]?"
_DECIMAL_COMMA = re.compile(rf"({_SIGNS}[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?\s*)", re.ASCII)
# Thousands with points, or a number with three decimals: it is read as neither.
_POINT = re.compile(rf"{_SIGNS}[1-9][0-9]{{0,2}}\.[0-9]{{3}}\s*", re.ASCII)
_ANY_COMMA = re.compile(rf"{_SIGNS}(?=[0-9.]*,)[0-9.,]*[0-9](?:[eE][+-]?[0-9]+)?\s*", re.ASCII)
#: What to do about a cell with a comma.
COMMA_ADVICE = "give data.decimal comma if commas are decimal marks; leave them out if they separate thousands"


def has_comma(cell: str) -> bool:
    """True for a number, or a bound such as ``>1,5``, with commas."""
    return _ANY_COMMA.fullmatch(cell) is not None


def plain_numbers(rows: Rows, decimal: str | None, columns: Collection[str] | None = None) -> Rows:
    """Convert numbers with a decimal comma in all text columns, or some, if ``decimal`` is not None."""
    if decimal is None:
        return rows
    table = rows.table
    for i, field in enumerate(table.schema):
        if is_text(field.type) and (columns is None or field.name in columns):
            encoded = binary_array([_convert(cell).encode() for cell in texts(table.column(i))])
            table = table.set_column(i, field.name, encoded)
    return replace(rows, table=table)


def _convert(cell: str) -> str:
    if _POINT.fullmatch(cell):
        return f"{cell.strip()} (a point among decimal commas)"  # which is no number
    return _DECIMAL_COMMA.sub(r"\1.\2", cell) if _DECIMAL_COMMA.fullmatch(cell) else cell
