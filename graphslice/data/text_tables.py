"""Tables of text as streams of rows: encodings, separators, quotes, and rows that are not as the header says.

A malformed row keeps its place: it comes with the reason, and with those of its cells that can be told.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from graphslice.data.limits import LONGEST, LimitedLines
from graphslice.errors import InputError

# Lines that are parsed in one go.
_BLOCK_LINES = 4096
# The csv module's own limit is 128 Ki characters; this is what a C long holds everywhere.
_FIELD_LIMIT = 2**31 - 1
# The bytes that begin a text and say its encoding. Those of UTF-32 begin with those of UTF-16: they come first.
_MARKS = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
_QUOTED = re.compile(r'"(?:[^"]++|"")*+"')


@dataclass
class TextRows:
    """Some consecutive rows of a table of text.

    Attributes:
        cells: R rows of as many texts as the header has.
        malformed: reason by row, for rows that are not as the header says.
    """

    cells: list[list[str]]
    malformed: dict[int, str]


def open_text(path: Path, stack: ExitStack) -> io.TextIOWrapper:
    """A file of text, unpacked where its name ends in ``.gz``: in the encoding that its first bytes tell, else UTF-8.

    Lines end as in the file. Bytes that are no UTF-8 become surrogates, which ``surrogateescape`` turns back.

    Raises:
        InputError: if it is UTF-16 that does not say so, or no text; while it is read also for a line that is too long.
        OSError, EOFError, zlib.error: if it cannot be read.
    """
    opener: Callable = gzip.open if path.name.lower().endswith(".gz") else open
    binary = cast(BinaryIO, stack.enter_context(opener(path, "rb")))
    head = binary.read(1 << 12)
    binary.seek(0)
    encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if encoding is None and b"\0" in (head.split(maxsplit=1) or [b""])[0]:
        raise InputError(f"{path} begins with NUL bytes, as UTF-16 does, and not with text in UTF-8: save it as UTF-8")
    # Odd bytes among UTF-8 pass through as they are; the other encodings have no way to keep them.
    errors = "surrogateescape" if encoding in (None, "utf-8-sig") else "strict"
    return io.TextIOWrapper(cast(BinaryIO, LimitedLines(binary, path)), encoding or "utf-8", errors, newline="")


def read_smiles_lines(lines: Iterable[str], rows: int) -> Iterator[TextRows]:
    """A ``.smi`` file in chunks of so many rows: a SMILES or CXSMILES, and a name or ``""``. Blank lines are none."""
    cells = (_smiles_line(line) for line in lines if line.strip())
    while chunk := list(itertools.islice(cells, rows)):
        yield TextRows(chunk, {})


def _smiles_line(line: str) -> list[str]:
    smiles, *rest = line.split(None, 1)
    name = rest[0].strip() if rest else ""
    if name.startswith("|") and (end := name.find("|", 1)) > 0:  # of a CXSMILES, which belongs to the molecule
        smiles, name = f"{smiles} {name[: end + 1]}", name[end + 1 :].strip()
    return [smiles, name]


def read_csv(
    lines: Iterator[str], rows: int, file: str, delimiter: str | None = None
) -> tuple[list[str], Iterator[TextRows]]:
    """The header of a table, and its rows in chunks of exactly so many but for the last. Blank lines are no rows.

    Args:
        lines: of the file, with their ends.
        rows: of a chunk.
        file: its name, for messages.
        delimiter: between fields; None for the one that the header shows: a comma, or where it has none a
            semicolon or a tab.

    Returns:
        The names of the columns (none of an empty file), and the rows.

    Raises:
        InputError: if the quotes of the header go wrong.
    """
    number, first = next(((i, line) for i, line in enumerate(lines, 1) if line.strip("\r\n")), (0, ""))
    if not first:
        return [], iter(())
    blocks = _blocks(itertools.chain([first], lines), number, delimiter or _delimiter_of(first), file)
    block = next(blocks)
    while not block.records:  # a header of many lines
        block = next(blocks)
    if 0 in block.broken:
        raise InputError(f"{file}: the header cannot be read, {block.broken[0]}")
    header = block.records[0]
    block.records[0] = []  # no row
    return header, _chunks(itertools.chain([block], blocks), len(header), rows, file)


def _delimiter_of(header: str) -> str:
    outside_quotes = re.sub(r'"[^"]*"?', "", header)
    if "," in outside_quotes:
        return ","
    other = max(";\t", key=outside_quotes.count)
    return other if other in outside_quotes else ","


# --- blocks of lines ------------------------------------------------------------------------------


@dataclass
class _Block:
    """Records of some consecutive lines; ``[]`` stands for a blank one.

    Attributes:
        records: the fields of each.
        lines: that they were made of; the record after the last may go on beyond them, and is not among them.
        first_line: the number of the first of them in the file, from 1.
        delimiter: between fields.
        ends: for each record how many lines it ends after; None until :meth:`where` asks.
        broken: reason by record, for those whose quotes go wrong.
    """

    records: list[list[str]]
    lines: list[str]
    first_line: int
    delimiter: str
    ends: list[int] | None = None
    broken: dict[int, str] = field(default_factory=dict)

    @property
    def used(self) -> int:
        """How many of the lines the records have."""
        return len(self.lines) if self.ends is None else self.ends[-1] if self.ends else 0

    def where(self, record: int, file: str) -> str:
        """``"line 7 of t.csv"``."""
        if self.ends is None:
            with _long_fields():
                reader = csv.reader(self.lines, delimiter=self.delimiter, strict=True)
                self.ends = [reader.line_num for _ in reader]
        begin, end = self.ends[record - 1] if record else 0, self.ends[record]
        first, last = self.first_line + begin, self.first_line + end - 1
        return f"line {first} of {file}" if first == last else f"lines {first} to {last} of {file}"


def _blocks(lines: Iterator[str], first_line: int, delimiter: str, file: str) -> Iterator[_Block]:
    held: list[str] = []
    wanted = _BLOCK_LINES
    while True:
        more = list(itertools.islice(lines, wanted))
        held += more
        if not held:
            return
        with _long_fields():
            block = _parse(held, len(more) < wanted, first_line, delimiter, file)
        yield block
        held = held[block.used :]
        first_line += block.used
        wanted = _BLOCK_LINES if block.used else 2 * wanted  # a record of many lines: parsed again, but few times


@contextmanager
def _long_fields() -> Iterator[None]:
    before = csv.field_size_limit(_FIELD_LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _parse(lines: list[str], at_end: bool, first_line: int, delimiter: str, file: str) -> _Block:
    """The records of some lines, without the last where it is not known yet where it ends.

    A record whose quotes go wrong ends with the line of the quote that is to blame: those that follow are read anew.
    """
    with suppress(csv.Error):  # quickly, as nearly always
        return _Block(list(csv.reader(lines, delimiter=delimiter, strict=True)), lines, first_line, delimiter)
    block = _Block([], lines, first_line, delimiter, ends := [])
    done = 0
    while done < len(lines):
        begin = done
        rest = map(lines.__getitem__, range(begin, len(lines)))
        reader = csv.reader(rest, delimiter=delimiter, strict=True)
        try:
            for record in reader:
                done = begin + reader.line_num
                block.records.append(record)
                ends.append(done)
        except csv.Error:
            failed = lines[done : begin + reader.line_num]
            quote, closed = _wrong_quote(failed, delimiter)
            if not closed and not at_end and sum(map(len, failed)) < LONGEST:  # else nobody closes it
                break
            where = f"line {first_line + done + quote} of {file}"
            block.broken[len(ends)] = (
                f"text follows a closing quote in {where} (a quote within quotes is written twice)"
                if closed and len(failed) == quote + 1
                else f"a quote opens in {where} and is not closed"
            )
            lost = [*failed[:quote], failed[quote].rstrip("\r\n")]
            block.records.append(next(csv.reader(lost, delimiter=delimiter)))
            done += quote + 1
            ends.append(done)
    return block


def _wrong_quote(lines: list[str], delimiter: str) -> tuple[int, bool]:
    """Which of the lines of a record opens the quote that goes wrong, and whether one closes it (text follows then)."""
    text, at = "".join(lines), 0
    closed = False
    while True:
        if text.startswith('"', at):
            quoted = _QUOTED.match(text, at)
            closed = quoted is not None
            if quoted is None or not text.startswith(delimiter, quoted.end()):
                break
            at = quoted.end() + 1
        elif (found := text.find(delimiter, at)) >= 0:
            at = found + 1
        else:  # not about a quote: a field longer than any machine likes
            break
    ends = list(itertools.accumulate(map(len, lines)))
    return min(bisect_right(ends, at), len(lines) - 1), closed


# --- rows -----------------------------------------------------------------------------------------


def _chunks(blocks: Iterable[_Block], width: int, rows: int, file: str) -> Iterator[TextRows]:
    waiting = TextRows([], {})
    for block in blocks:
        _add(block, width, file, waiting)
        whole = len(waiting.cells) // rows * rows
        for begin in range(0, whole, rows):
            yield _part(waiting, begin, begin + rows)
        waiting = _part(waiting, whole, len(waiting.cells))
    if waiting.cells:
        yield waiting


def _part(rows: TextRows, begin: int, end: int) -> TextRows:
    malformed = {row - begin: reason for row, reason in rows.malformed.items() if begin <= row < end}
    return TextRows(rows.cells[begin:end], malformed)


def _add(block: _Block, width: int, file: str, rows: TextRows) -> None:
    """Add the records of a block to some rows, with as many cells as the header has."""
    if not block.broken and set(map(len, block.records)) <= {width, 0}:
        rows.cells += filter(None, block.records)
        return
    for number, record in enumerate(block.records):
        if len(record) == width and number not in block.broken:
            rows.cells.append(record)
        elif record:
            row = len(rows.cells)
            fields = f"{len(record)} field{'s' * (len(record) != 1)} where the header has {width}"
            rows.malformed[row] = block.broken.get(number) or f"{fields} ({block.where(number, file)})"
            rows.cells.append((record + [""] * width)[:width])
