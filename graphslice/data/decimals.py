"""Numbers with decimal commas, which are read if ``data.decimal`` says so."""

from __future__ import annotations

import re
from collections.abc import Collection

import pyarrow as pa

from graphslice.data.arrow import binary_array, is_text
from graphslice.data.tables import file_columns, texts

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


def plain_numbers(chunk: pa.Table, decimal: str | None, columns: Collection[str] | None = None) -> pa.Table:
    """Convert numbers with a decimal comma in all text columns, or some, if ``decimal`` is not None."""
    if decimal is None:
        return chunk
    for i, field in enumerate(file_columns(chunk).schema):
        if is_text(field.type) and (columns is None or field.name in columns):
            encoded = binary_array([_convert(cell).encode() for cell in texts(chunk.column(i))])
            chunk = chunk.set_column(i, field.name, encoded)
    return chunk


def _convert(cell: str) -> str:
    if _POINT.fullmatch(cell):
        return f"{cell.strip()} (a point among decimal commas)"  # which is no number
    return _DECIMAL_COMMA.sub(r"\1.\2", cell) if _DECIMAL_COMMA.fullmatch(cell) else cell
