"""Sheets of Excel workbooks (.xlsx), read and written row by row; openpyxl is imported only where there are some."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, time
from pathlib import Path
from typing import Any

from graphslice.errors import InputError, first_line, nearest

EXCEL_SUFFIXES = (".xlsx",)
# Most rows of a sheet.
_MOST_ROWS = 1_048_576
# Texts that are numbers. Identifiers such as 007, 1.10, 1E5 or one of 16 digits would lose something as numbers.
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.0|\.[0-9]*[1-9])?(e[-+][0-9]{2})?")


def split_sheet(path: Path) -> tuple[Path, str | None]:
    """Split ``table.xlsx:Sheet name`` into the path of the workbook and the name of the sheet, None without one."""
    file, colon, sheet = str(path).rpartition(":")
    return (Path(file), sheet) if colon and sheet and file.lower().endswith(EXCEL_SUFFIXES) else (path, None)


def read_excel(path: Path, stack: ExitStack) -> tuple[list[str], Iterator[list[str]], list[str]]:
    """Read the header, the rows up to the last that is not blank, and a note if the path does not choose the sheet.

    Columns without a name are left out. Cells are texts as in a CSV export: ``TRUE`` and ``FALSE``, dates as
    ``2026-01-31``, the stored results of formulas, and errors such as ``#N/A``.
    """
    import openpyxl

    file, name = split_sheet(path)
    with _convert_errors(file), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles that it does not read
        workbook = openpyxl.load_workbook(file, read_only=True, data_only=True)
    stack.callback(workbook.close)
    sheets = {sheet.title: sheet for sheet in workbook.worksheets}
    visible = [title for title, sheet in sheets.items() if sheet.sheet_state == "visible"] or list(sheets)
    if (chosen := visible[0] if name is None and visible else name) not in sheets:
        raise InputError(f"{file} has no sheet {name!r}{nearest(name, sheets)}; it has {', '.join(map(repr, sheets))}")
    notes = []
    if name is None and len(visible) > 1:
        others = ", ".join(map(repr, visible[1:]))
        notes = [f"only the first sheet of {file} is read: to read another of {others}, give FILE.xlsx:SHEET"]
    texts = _rows(file, sheets[chosen])
    header = next((row for row in texts if any(map(str.strip, row))), [])
    columns = [column for column, text in enumerate(header) if text.strip()]
    # A line break within a name is a space, so that the name can be written on a command line.
    names = [" ".join(header[column].split()) for column in columns]
    return names, _without_last_blanks([row[c] if c < len(row) else "" for c in columns] for row in texts), notes


def _without_last_blanks(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    blank: list[list[str]] = []
    for row in rows:
        blank.append(row)
        if any(map(str.strip, row)):
            yield from blank
            blank = []


@contextmanager
def _convert_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except (InputError, OSError):
        raise
    except Exception as error:  # openpyxl raises many kinds for broken workbooks
        raise InputError(
            f"cannot read {file} ({first_line(error)}): save it again as .xlsx without a password, or as CSV"
        ) from None


def _rows(file: Path, sheet: Any) -> Iterator[list[str]]:
    with _convert_errors(file):
        sheet.reset_dimensions()  # the size that a workbook states may be wrong
        for cells in sheet.iter_rows(values_only=True):
            yield [_text(cell) for cell in cells]


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


@contextmanager
def write_excel(path: Path, file: Path) -> Iterator[Callable[[Iterable[Sequence[str]]], None]]:
    """Yield a function that appends rows of texts to ``file``, a workbook of one sheet; ``path`` is for messages.

    Texts of numbers become numbers of 16 digits, none becomes a formula.
    """
    import openpyxl
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    workbook = openpyxl.Workbook(write_only=True)
    sheet = workbook.create_sheet("Sheet1")
    numbers = itertools.count(1)

    def cell_of(text: str) -> Any:
        if not text or _NUMBER.fullmatch(text):
            return float(text) if text else None
        cell = WriteOnlyCell(sheet, ILLEGAL_CHARACTERS_RE.sub("\ufffd", text))
        cell.data_type = "s"  # a text with "=" in front is a formula for openpyxl
        return cell

    def append(rows: Iterable[Sequence[str]]) -> None:
        for row in rows:
            if next(numbers) > _MOST_ROWS:
                raise InputError(f"cannot write {path}: a sheet has at most {_MOST_ROWS:,} rows; write .csv")
            sheet.append([cell_of(text) for text in row])

    try:
        yield append
    except BaseException:
        sheet.close()
        raise
    workbook.save(file)
