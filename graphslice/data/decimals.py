"""Numbers with decimal commas or thousands separators: converted where ``data.decimal`` says how to read them.

Numbers with units are never converted; messages say how to write them.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import pyarrow as pa

from graphslice.data.arrow import binary_array, is_text
from graphslice.data.tables import file_columns, texts

#: Values of ``data.decimal``, and the decimal mark of each. The other mark may separate thousands.
DECIMAL_MARKS = {"comma": ",", "point": "."}
# Signs of bounds may stand before a number, as in >1.000,5.
_SIGNS = r"\s*[<>=\u2264\u2265\u2a7d\u2a7e]*\s*[+\u2212-]?"
# Spaces, narrow ones too, and the apostrophes of Switzerland separate thousands with both decimal marks.
_NUMBER = r"""({signs})
    (0 | [1-9][0-9]{{0,2}} (?: (?P<mark>[ \xa0\u2009\u202f'\u2019{thousands}]) [0-9]{{3}} (?:(?P=mark)[0-9]{{3}})* )?
       | [0-9]*)
    (?:{decimal}([0-9]*))?
    ((?:[eE][+-]?[0-9]+)?)\s*"""
_PATTERNS = {
    name: re.compile(
        _NUMBER.format(signs=_SIGNS, decimal=re.escape(mark), thousands=",."[mark == ","]), re.ASCII | re.VERBOSE
    )
    for name, mark in DECIMAL_MARKS.items()
}
# Of both notations: 1234 with a point for thousands, or a number with three decimals.
_AMBIGUOUS = re.compile(rf"{_SIGNS}[1-9][0-9]{{0,2}}\.[0-9]{{3}}\s*", re.ASCII)
# A number or a bound, and a single word for its unit.
_WITH_UNIT = re.compile(
    rf"({_SIGNS}[0-9.,]*[0-9][.,]?(?:[eE][+-]?[0-9]+)?)(?![eE][+-]?[0-9])\s*([%\u2030\xb0]|[^\W\d_]\S*)\s*"
)


def plain_number(cell: str, decimal: str) -> str | None:
    """Convert a number to digits and a decimal point; None if the cell is no number in that notation.

    With decimal commas ``1.234`` is none either: it may be 1234, or a number with three decimals.

    Args:
        cell: a number, or a bound such as ``>1,5``.
        decimal: ``"comma"`` or ``"point"``.
    """
    match = _PATTERNS[decimal].fullmatch(cell)
    if match is None or not (match[2] or match[4]) or (decimal == "comma" and _AMBIGUOUS.fullmatch(cell)):
        return None
    sign, integer, _, fraction, exponent = match.groups()
    return "".join((sign.lstrip(), re.sub("[^0-9]", "", integer), f".{fraction}" if fraction else "", exponent))


def plain_numbers(chunk: pa.Table, decimal: str | None, columns: Collection[str] | None = None) -> pa.Table:
    """Convert the numbers in the text columns of a chunk to digits and a decimal point; other cells stay as they are.

    Args:
        chunk: rows of a table.
        decimal: ``data.decimal``; nothing is converted if it is None.
        columns: names of the columns to convert; all if None.
    """
    if decimal is None:
        return chunk
    for i, field in enumerate(file_columns(chunk).schema):
        if is_text(field.type) and (columns is None or field.name in columns):
            cells = [_convert(cell, decimal) for cell in texts(chunk.column(i))]
            encoded = binary_array([cell.encode() for cell in cells])
            chunk = chunk.set_column(i, field.name, encoded)
    return chunk


def _convert(cell: str, decimal: str) -> str:
    if decimal == "comma" and _AMBIGUOUS.fullmatch(cell):
        whole = cell.strip().replace(".", "")
        return f"{cell.strip()} (write {whole} or {cell.strip().replace('.', ',')})"  # which is no number
    plain = plain_number(cell, decimal)
    return cell if plain is None else plain


def decimal_readings(cell: str) -> dict[str, str]:
    """Return what a cell is with each value of ``data.decimal``; empty for plain numbers and other cells."""
    readings = {name: plain_number(cell, name) for name in DECIMAL_MARKS}
    return {name: plain for name, plain in readings.items() if plain not in (None, cell.strip())}


def decimal_advice(cell: str) -> str:
    """Name the option that reads a cell as a number, such as ``give --decimal comma to read it as 12.5``.

    Such cells are not parsed as numbers without it, because 1,234 may be a decimal number or a thousand. The text is
    empty for other cells.
    """
    names = {plain: name for name, plain in decimal_readings(cell).items()}  # one of them if both read the same
    options = ", or ".join(f"--decimal {name} to read it as {plain}" for plain, name in names.items())
    return options and f"give {options}"


def number_advice(cell: str) -> str:
    """Say what to do about a cell that is not read as a number; empty unless it has a number in it."""
    unit = _WITH_UNIT.fullmatch(cell)
    if unit is None or (cell.strip() == unit[1] + unit[2] and any(map(str.isdigit, unit[2]))):  # 0x1F has none
        return decimal_advice(cell)
    number = unit[1].strip()
    advice = f"leave out the unit {unit[2]!r}: write {number}, and all numbers of the column in one unit"
    return "; ".join(filter(None, (advice, decimal_advice(number))))
