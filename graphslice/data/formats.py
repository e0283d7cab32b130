"""Text tables in chunks, sheets of Excel workbooks (openpyxl is imported only for these), and SDF files, of which each
record is a row. A malformed row keeps its position: it comes with a reason and the first of its cells."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
import shutil
import tempfile
import warnings
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, time
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeAlias, cast
from xml.etree.ElementTree import fromstring, iterparse

from rdkit import Chem

from graphslice.chem.parse import MoleculeError, mol_to_smiles, parse_failure, rdkit_messages_blocked
from graphslice.chem.workers import Workers
from graphslice.errors import InputError, first_line, nearest, pluralize, quoted_list

# Lines after the header by which the separator is inferred.
_LINES_SEEN = 20
# Byte order marks.
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
# Encodings without a mark. The language of a few words is not certain: of those that fit equally well, the first.
_ENCODINGS = {
    "cp932": "Shift-JIS",
    "gb18030": "GB18030",
    "big5": "Big5",
    "cp949": "EUC-KR",
    "cp1252": "Windows-1252",
    "cp1251": "Windows-1251",
}
# A field with bytes that are not ASCII, the number of those that are looked at, and differences that do not count.
_OTHER_FIELD, _FIELDS_SEEN, _TIE = re.compile(rb"[^,;\t\r\n\"]*[\x80-\xff][^,;\t\r\n\"]*"), 200, 0.06
# In the alphabets of western Europe a letter with an accent stands between ASCII; kana of Shift-JIS begin with 82, 83.
_TWO_BYTES = re.compile(rb"[\x80-\xff]{2}|[\x82\x83][\x40-\xfc]")
# What other encodings look like as Shift-JIS.
_HALF_WIDTH = re.compile("[\uff61-\uff9f]")
# What follows a SMILES in a line of a .smi file, and names of its column.
_END_OF_SMILES, _SMILES_HEADERS = re.compile(r"\s+|[,;]"), ("smiles", "canonical_smiles", "smi")
# First line that names the separator for Excel.
_SEPARATOR = re.compile(r'"?sep=([,;\t])"?')
# Most characters of a cell, for the csv module, whose default is 131,072: the largest C long on all platforms.
_FIELD_LIMIT = 2**31 - 1

#: Rows of texts, one for each column of the header; and by row the reason if it does not match the header.
TextRows: TypeAlias = tuple[list[list[str]], dict[int, str]]


def open_text(path: Path, stack: ExitStack, notes: list[str]) -> TextIO:
    """Open a text file, unpacked if it ends in ``.gz``; ``stack`` closes it. ``notes`` get the encoding, unless it is
    UTF-8 or has a byte order mark. Line ends are kept."""
    opener: Callable = gzip.open if path.name.lower().endswith(".gz") else open
    with opener(path, "rb") as binary:
        encoding = _encoding_of(binary)
    if encoding in _ENCODINGS:
        notes.append(
            f"{path.name} is not in UTF-8: it is read as {_ENCODINGS[encoding]}; if texts look wrong, save it as UTF-8"
        )
    errors = "strict" if encoding == "utf-16" else "replace"
    return cast(TextIO, stack.enter_context(opener(path, "rt", encoding=encoding, errors=errors, newline="")))


def _encoding_of(file: BinaryIO) -> str:
    """Return the encoding of the byte order mark, UTF-8 if all of the file is, else the most likely one."""
    head = file.read(4)
    marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if marked is not None:
        return marked
    file.seek(0)
    try:
        deque(map(bytes.decode, file), 0)
        return "utf-8"
    except UnicodeDecodeError:
        file.seek(0)
    fields = itertools.chain.from_iterable(map(_OTHER_FIELD.findall, file))
    sample = b" ".join(itertools.islice(fields, _FIELDS_SEEN))
    if not _TWO_BYTES.search(sample):
        return "cp1252"
    from charset_normalizer import from_bytes

    matches = from_bytes(sample, cp_isolation=[*_ENCODINGS], threshold=1)
    found = {match.encoding: match.chaos for match in matches if not _HALF_WIDTH.search(str(match))}
    least = min(found.values(), default=0)
    return next((name for name in _ENCODINGS if found.get(name, 1) <= least + _TIE), "cp1252")


def chunks_of(table: Iterable[list[str]], rows: int) -> Iterator[TextRows]:
    """Divide rows that are all well-formed into chunks."""
    table = iter(table)
    while part := list(itertools.islice(table, rows)):
        yield part, {}


def smiles_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Read the lines of a ``.smi`` file: a SMILES or CXSMILES, and after a space, comma or semicolon, which no SMILES
    has, a name or ``""``. Blank lines and a header are skipped."""
    rows = (_smiles_line(line) for line in lines if line.strip())
    first = itertools.islice(rows, 1)
    return itertools.chain((row for row in first if row[0].lower() not in _SMILES_HEADERS), rows)


def _smiles_line(line: str) -> list[str]:
    smiles, *rest = _END_OF_SMILES.split(line.strip(), maxsplit=1)
    name = rest[0].strip() if rest else ""
    if name.startswith("|") and (end := name.find("|", 1)) > 0:  # the extension of a CXSMILES is part of the molecule
        smiles, name = f"{smiles} {name[: end + 1]}", name[end + 1 :].strip()
    return [smiles, name]


def read_csv(lines: Iterator[str], file: str, usual: str, rows: int) -> tuple[list[str], Iterator[TextRows]]:
    """Read column names (none of an empty file) and rows in chunks, without blank lines and Excel's ``sep=;``. The
    delimiter is inferred, if the ``usual`` one does not fit; an unclosed quote raises InputError only while rows are
    read."""
    number, first = next(((i, line) for i, line in enumerate(lines) if line.strip("\r\n")), (0, ""))
    if declared := _SEPARATOR.fullmatch(first.strip("\r\n")):
        number, first = number + 1, next(lines, "")
    seen = [first, *itertools.islice(lines, _LINES_SEEN)]
    delimiter = declared[1] if declared else _delimiter_of(seen, usual)
    csv.field_size_limit(_FIELD_LIMIT)
    reader = csv.reader(itertools.chain(seen, lines), delimiter=delimiter, strict=True)
    records = _records(reader, number, file)
    header = next(records, ([], 0))[0]
    return header, _chunks(records, len(header), file, rows)


def _delimiter_of(lines: list[str], usual: str) -> str:
    """Return the separator that divides most lines into as many fields as the header, which are most (of several the
    semicolon); else the usual one. A tab is preferred where it is usual, since fewer cells have one."""

    def agreement(delimiter: str) -> tuple[bool, bool, int, bool]:
        header, *rows = [record for record in csv.reader(lines, delimiter=delimiter) if record] or [[]]
        agrees = len(header) > 1 and 2 * sum(len(row) == len(header) for row in rows) > len(rows)
        return agrees, not agrees and delimiter == usual and len(header) > 1, len(header), agrees and delimiter == ";"

    best = usual if usual == "\t" and agreement(usual)[0] else max(",;\t|", key=agreement)
    return best if usual == "," or agreement(best)[0] else usual


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
                faults[row] = f"{pluralize(len(record), 'field')} where the header has {width} (line {line} of {file})"
                record[:] = (record + [""] * width)[:width]
        yield [record for record, _ in block], faults


EXCEL_SUFFIXES = (".xlsx",)
# Most rows of a sheet.
_MOST_ROWS = 1_048_576
# Parts of a workbook, and what makes a second look at the cells worthwhile.
_BOOK, _LINKS = "xl/workbook.xml", "xl/_rels/workbook.xml.rels"
_CELLS_TO_NAME = re.compile(rb"<(?:\w+:)?(?:f|mergeCell)[\s/>]")
# Texts that are numbers. Identifiers such as 007, 1.10, 1E5 or one of 16 digits would lose something as numbers.
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.0|\.[0-9]*[1-9])?(e[-+][0-9]{2})?")


def split_sheet(path: Path) -> tuple[Path, str | None]:
    """Split ``table.xlsx:Sheet name`` into the path of the workbook and the name of the sheet, None without one."""
    file, colon, sheet = str(path).rpartition(":")
    return (Path(file), sheet) if colon and sheet and file.lower().endswith(EXCEL_SUFFIXES) else (path, None)


def read_excel(path: Path, stack: ExitStack, notes: list[str]) -> tuple[list[str], Iterator[list[str]]]:
    """Read the header, and the rows up to the last that is not blank. ``notes`` get what the reader cannot know: that
    the path does not choose the sheet, and cells that are empty only here. Nameless columns are left out; cells are as
    in a CSV export: ``TRUE``, ``2026-01-31``, stored results, ``#N/A``."""
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
    if name is None and len(visible) > 1:
        others = ", ".join(map(repr, visible[1:]))
        notes.append(f"only the first sheet of {file} is read: to read another of {others}, give FILE.xlsx:SHEET")
    with _convert_errors(file):
        notes += _cell_notes(file, sheets[chosen].title)
    texts = _rows(file, sheets[chosen])
    header = next((row for row in texts if any(map(str.strip, row))), [])
    columns = [column for column, text in enumerate(header) if text.strip()]
    # A line break within a name is a space, so that the name can be written on a command line.
    names = [" ".join(header[column].split()) for column in columns]
    return names, _without_last_blanks([row[c] if c < len(row) else "" for c in columns] for row in texts)


def _cell_notes(file: Path, sheet: str) -> Iterator[str]:
    """Yield notes on formulas without a stored result, and on merged cells, of which openpyxl's fast reader says
    nothing."""
    with zipfile.ZipFile(file) as archive:
        targets = {link.get("Id"): link.get("Target", "") for link in fromstring(archive.read(_LINKS))}
        entry = next(e for e in fromstring(archive.read(_BOOK)).iterfind(".//{*}sheet") if e.get("name") == sheet)
        part = targets[next(value for name, value in entry.items() if name.endswith("}id"))]
        xml = archive.read(part[1:] if part.startswith("/") else f"xl/{part}")
    if not _CELLS_TO_NAME.search(xml):
        return
    without, merged = [], []
    for _, element in iterparse(io.BytesIO(xml)):
        tag = element.tag.rpartition("}")[2]
        if tag == "c" and element.find("{*}f") is not None:
            if not element.findtext("{*}v") and element.find("{*}is") is None:
                without.append(element.get("r", "?"))
        elif tag == "mergeCell":
            merged.append(element.get("ref", "?"))
        elif tag == "row":
            element.clear()
    if without:
        yield (
            f"{file}: {pluralize(len(without), 'cell')} with a formula but no stored result (the first: {without[0]}) "
            "read as empty: open the workbook in a spreadsheet program and save it"
        )
    if merged:
        yield (
            f"{file}: of the merged cells {quoted_list(merged, 3, str)} only the first has a value, and the others are "
            "read as empty: unmerge and fill them"
        )


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
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < 1e15 else str(cell)
    if isinstance(cell, datetime):
        return str(cell.date() if cell.time() == time() else cell)
    return "" if cell is None else str(cell)


@contextmanager
def write_excel(path: Path, file: Path) -> Iterator[Callable[[Iterable[Sequence[str]]], None]]:
    """Yield a function that appends rows to the workbook ``file``; numbers get 16 digits, no text becomes a formula."""
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


# Columns of the structure and of the title. A property of the same name becomes the column NAME_property.
_SMILES, _TITLE = "smiles", "name"
# A property: "> <NAME>", with other texts before and behind the name, and lines up to an empty one.
_PROPERTY = re.compile(r"^>[^<\n]*<(.*)>.*\n((?:.+\n?)*)", re.MULTILINE)

# The numbers of atoms and bonds of a molblock, V2000 or V3000, and a difference of molecules with many rings.
_COUNTS = re.compile(r"^M  V30 COUNTS (\d+) (\d+)|\A(?:.*\n){3}([ \d]{2}\d)([ \d]{2}\d).*V2000", re.MULTILINE)
_MANY_RINGS = 10


def read_sdf(path: Path, rows: int, stack: ExitStack, notes: list[str]) -> tuple[list[str], Iterator[TextRows], int]:
    """Read column names (``smiles``, ``name`` if a record has a title, all properties), rows in chunks, and their
    number. A record whose structure cannot be read is a malformed row with its properties."""
    copy = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))) / "copy.sdf"
    with copy.open("w", encoding="utf-8", newline="") as file:  # unpacked and in UTF-8, as RDKit reads it
        shutil.copyfileobj(open_text(path, stack, notes), file)
        file.write("\n")  # RDKit does not open an empty file
    with rdkit_messages_blocked():
        supplier = Chem.SDMolSupplier(str(copy))
    properties: dict[str, str] = {}
    has_titles = False
    for number in range(len(supplier)):
        title, found = _texts(supplier.GetItemText(number))
        properties |= found
        has_titles |= bool(title)
    first = [_SMILES, _TITLE] if has_titles else [_SMILES]
    columns = first + [f"{name}_property" if name in first else name for name in properties]

    workers = stack.enter_context(closing(Workers()))

    def chunks() -> Iterator[TextRows]:
        for start in range(0, len(supplier), rows):
            part: list[list[str]] = []
            faults: dict[int, str] = {}
            for number in range(start, min(start + rows, len(supplier))):
                title, values = _texts(text := supplier.GetItemText(number))
                if _is_intricate(text):
                    (((smiles, reason), lost),) = workers.isolate(_read_record, text).result()
                else:
                    with rdkit_messages_blocked():
                        mol = supplier[number]
                    (smiles, reason), lost = _read_record([text], mol), None
                if reason is not None:
                    faults[len(part)] = f"record {number + 1} of {path.name}: {lost or reason}"
                part.append([smiles, title][: len(first)] + [values.get(name, "") for name in properties])
            yield part, faults

    return columns, chunks(), len(supplier)


def _texts(record: str) -> tuple[str, dict[str, str]]:
    """Return the title and the properties of a record by name; of two equal names, the last one."""
    record = record.replace("\r\n", "\n").rstrip().removesuffix("$$$$")
    _, end, behind = record.partition("M  END")
    found = _PROPERTY.findall(behind if end else record)
    return record.partition("\n")[0].strip(), {name: value.removesuffix("\n") for name, value in found}


def _is_intricate(record: str) -> bool:
    """True if the counts of atoms and bonds of a record leave room for many rings."""
    counts = _COUNTS.search(record)
    atoms, bonds = (int(counts[1] or counts[3]), int(counts[2] or counts[4])) if counts else (0, 0)
    return bonds - atoms >= _MANY_RINGS


def _read_record(texts: Sequence[str], mol: Chem.Mol | None = None) -> tuple[str, str | None]:
    """Return the SMILES of a record, or the reason why there is none."""
    (text,) = texts
    try:
        with rdkit_messages_blocked():
            mol = mol or Chem.MolFromMolBlock(text)
            if text.count("\nM  END") > 1:
                raise MoleculeError("it holds two structures: the line $$$$ between them is missing")
            if mol is None:
                unsanitized = Chem.MolFromMolBlock(text, sanitize=False)
                raise MoleculeError(parse_failure(unsanitized, lambda: "RDKit cannot read the structure"))
        return mol_to_smiles(mol), None
    except MoleculeError as reason:
        return "", str(reason)
