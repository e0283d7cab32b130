"""Sheets of Excel workbooks (.xlsx), read and written row by row; openpyxl is imported only where there are some."""

from __future__ import annotations

import itertools
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, time
from pathlib import Path
from typing import Any

from graphslice.data.text_tables import Expansion, TextRow
from graphslice.errors import InputError, nearest

EXCEL_SUFFIXES = (".xlsx",)
# Rows of other sheets that are looked at; formatted blank rows may be many.
_TOP_ROWS = 100
# Most rows of a sheet, and most characters of a cell.
_MOST_ROWS, _MOST_CHARACTERS = 1_048_576, 32_767
# Texts that are numbers. Identifiers such as 007, 1.10, 1E5 or one of 16 digits would lose something as numbers.
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.0|\.[0-9]*[1-9])?(e[-+][0-9]{2})?")
# Characters that XML cannot hold.
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# First bytes of the container of encrypted workbooks and of .xls files.
_COMPOUND_FILE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def split_sheet(path: Path) -> tuple[Path, str | None]:
    """Split ``table.xlsx:Sheet name`` into the path of the workbook and the name of the sheet, None without one."""
    file, colon, sheet = str(path).rpartition(":")
    return (Path(file), sheet) if colon and sheet and file.lower().endswith(EXCEL_SUFFIXES) else (path, None)


def read_excel(path: Path, stack: ExitStack) -> tuple[list[str], Iterator[TextRow], list[str]]:
    """Read the header and the rows of a sheet, up to the last row that is not blank.

    Columns without a name in the header are left out. Cells are texts as in a CSV export: numbers with all digits,
    ``TRUE`` and ``FALSE``, dates as ``2026-01-31``, the stored results of formulas, and errors such as ``#N/A``.

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
    header = next(filter(_is_filled, texts), [])
    columns = [column for column, text in enumerate(header) if text.strip()]
    rows = _without_last_blanks([row[c] if c < len(row) else "" for c in columns] for row in texts)
    # A line break within a name is a space, so that the name can be written on a command line.
    return [" ".join(header[column].split()) for column in columns], rows, notes


def _without_last_blanks(rows: Iterable[list[str]]) -> Iterator[TextRow]:
    """Yield the rows up to the last that is not blank."""
    blank = 0
    for row in rows:
        if not _is_filled(row):
            blank += 1
            continue
        yield from itertools.repeat(([""] * len(row), None), blank)
        blank = 0
        yield row, None


def _is_filled(row: list[str]) -> bool:
    return any(map(str.strip, row))


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
        return len([*itertools.islice(filter(_is_filled, _rows(Path(), sheet, _TOP_ROWS)), 2)]) == 2
    return False


def _rows(file: Path, sheet: Any, most: int | None = None) -> Iterator[list[str]]:
    """Yield the texts of each row."""
    with _convert_errors(file):
        sheet.reset_dimensions()  # the size that a workbook states may be wrong
        for number, cells in enumerate(sheet.iter_rows(max_row=most, values_only=True)):
            if number == _MOST_ROWS:  # openpyxl fills the gap before a row of any number
                raise InputError(f"{file} has a row beyond {_MOST_ROWS:,}, the most of a sheet: save it again")
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
    """Context manager that writes a workbook of one sheet, which is complete at its end.

    Args:
        path: name of the workbook in messages.
        file: the file to write.

    Yields:
        A function that appends rows of texts; those of numbers become numbers of 16 digits, none becomes a formula. It
        raises InputError if there are more rows than a sheet has, or a text is longer than a cell.
    """
    import openpyxl
    from openpyxl.cell import WriteOnlyCell

    workbook = openpyxl.Workbook(write_only=True)
    sheet = workbook.create_sheet("Sheet1")
    number = 0

    def cell_of(text: str) -> Any:
        if not text:
            return None
        if _NUMBER.fullmatch(text):
            return float(text)
        if len(text) > _MOST_CHARACTERS:
            raise InputError(
                f"cannot write {path}: a text of {len(text):,} characters in row {number:,} is longer than a cell, "
                f"{_MOST_CHARACTERS:,}; write .csv"
            )
        text = _NOT_IN_XML.sub("\ufffd", text)
        if text[0] not in "=#":
            return text
        cell = WriteOnlyCell(sheet, text)
        cell.data_type = "s"  # for openpyxl it is a formula or an error
        return cell

    def append(rows: Iterable[Sequence[str]]) -> None:
        nonlocal number
        for row in rows:
            number += 1
            if number > _MOST_ROWS:
                raise InputError(f"cannot write {path}: a sheet has at most {_MOST_ROWS:,} rows; write .csv")
            sheet.append([cell_of(text) for text in row])

    try:
        yield append
    except BaseException:
        sheet.close()
        raise
    workbook.save(file)
