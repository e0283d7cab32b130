"""Sheets of Excel workbooks (.xlsx) as streams of rows; openpyxl is imported only where there are some."""

from __future__ import annotations

import itertools
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, time
from pathlib import Path
from typing import Any

from graphslice.data.text_tables import Expansion, TextRow
from graphslice.errors import InputError, nearest

EXCEL_SUFFIXES = (".xlsx",)
# Rows of other sheets that are looked at; formatted blank rows may be many.
_TOP_ROWS = 100
# First bytes of the container of encrypted workbooks and of .xls files.
_COMPOUND_FILE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def split_sheet(path: Path) -> tuple[Path, str | None]:
    """Split ``table.xlsx:Sheet name`` into the path of the workbook and the name of the sheet, None without one."""
    file, colon, sheet = str(path).rpartition(":")
    return (Path(file), sheet) if colon and sheet and file.lower().endswith(EXCEL_SUFFIXES) else (path, None)


def read_excel(path: Path, stack: ExitStack) -> tuple[list[str], Iterator[TextRow], list[str]]:
    """Read the header and the rows of a sheet. Blank rows, and columns without a name in the header, are left out.

    Cells are texts as in a CSV export: numbers with all digits, ``TRUE`` and ``FALSE``, dates as ``2026-01-31``, the
    stored results of formulas, and errors such as ``#N/A``.

    Args:
        path: the workbook, as in :func:`split_sheet`; without a sheet, its first visible one.
        stack: closes the file.

    Returns:
        The names of the columns (empty for an empty sheet), the rows, and a note if the path names no sheet
        and other visible sheets have rows too.

    Raises:
        InputError: if the workbook is encrypted, broken, or has no such sheet; damage may be found only while the rows
            are read.
    """
    file, name = split_sheet(path)
    import openpyxl

    with file.open("rb") as start:
        if start.read(8) == _COMPOUND_FILE:
            raise InputError(f"{file} is encrypted, or an old .xls workbook: save it as .xlsx without a password")
    with _convert_errors(file):
        with zipfile.ZipFile(file) as archive:
            Expansion(file).add(sum(part.file_size for part in archive.infolist()), "according to its directory")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of styles that it does not read
            workbook = openpyxl.load_workbook(file, read_only=True, data_only=True)
    stack.callback(workbook.close)
    sheets = {sheet.title: sheet for sheet in workbook.worksheets}
    if name is not None and name not in sheets:
        raise InputError(f"{file} has no sheet {name!r}{nearest(name, sheets)}; it has {', '.join(map(repr, sheets))}")
    visible = [sheet for sheet in sheets.values() if sheet.sheet_state == "visible"]
    sheet = sheets[name] if name is not None else next(iter(visible or sheets.values()), None)
    if sheet is None:
        raise InputError(f"{file} has no sheet with cells")
    notes: list[str] = []
    if name is None and (others := [other.title for other in visible if other is not sheet and _has_rows(other)]):
        notes = [
            f"only the first sheet of {file}, {sheet.title!r}, is read: to read another, name it as in "
            f"{f'{file}:{others[0]}'!r}; those with rows are {', '.join(map(repr, others))}"
        ]
    texts = _rows(file, sheet)
    header = next(texts, [])
    columns = [column for column, text in enumerate(header) if text.strip()]
    rows = (([row[c] if c < len(row) else "" for c in columns], None) for row in texts)
    # A line break within a name is a space, so that the name can be written on a command line.
    return [" ".join(header[column].split()) for column in columns], rows, notes


@contextmanager
def _convert_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except (InputError, OSError, MemoryError):
        raise
    except Exception as error:  # openpyxl raises many kinds for broken workbooks
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"cannot read {file}, a broken workbook ({lines[0]}): save it again, or as CSV") from None


def _has_rows(sheet: Any) -> bool:
    """True if a sheet has a row below its header near its top; false if it cannot be read."""
    with suppress(InputError):
        return len([*itertools.islice(_rows(Path(), sheet, _TOP_ROWS), 2)]) == 2
    return False


def _rows(file: Path, sheet: Any, most: int | None = None) -> Iterator[list[str]]:
    """Yield the texts of each row that is not blank, up to its last cell."""
    with _convert_errors(file):
        sheet.reset_dimensions()  # the size that a workbook states may be wrong
        for cells in sheet.iter_rows(max_row=most, values_only=True):
            texts = [_text(cell) for cell in cells]
            if any(map(str.strip, texts)):
                yield texts


def _text(cell: object) -> str:
    """Return the text of a cell as in a CSV export."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < 1e15 else str(cell)
    if isinstance(cell, datetime):
        return str(cell.date() if cell.time() == time() else cell)
    return str(cell)
