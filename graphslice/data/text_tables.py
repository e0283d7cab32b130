"""Text tables as streams of rows: encodings, separators, quotes, and rows that do not match the header.

A malformed row keeps its position: it is returned with a reason and with those of its cells that could be parsed.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from graphslice.errors import InputError

#: Maximal number of bytes of a line, and of a cell of a Parquet file. The SMILES of the largest supported molecule
#: (65,535 atoms) is shorter than a tenth of it.
LONGEST = 1 << 24
# Maximal ratio of the size of a table to the size of its file, and the size in bytes below which the ratio is not
# limited. Tables of molecules expand 2 to 20 times; gzip reaches 1,032, and Parquet dictionaries have no limit.
_EXPANSION, _SMALL = 1000, 1 << 25
# Lines after the header by which the separator is inferred.
_LINES_SEEN = 20
# Maximal number of consecutive blank characters, which take time to read and hold no data.
_MOST_BLANK = 1 << 20


class Expansion:
    """Counter of the bytes that a file has expanded to, with a limit."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, path.stat().st_size
        self.left = max(_SMALL, _EXPANSION * self.size)

    def add(self, count: int, where: str) -> None:
        """Count bytes and raise :class:`InputError` above the limit; ``where``: position in the file, for messages."""
        self.left -= count
        if self.left < 0:
            raise InputError(
                f"{self.path}: a file of {self.size:,} bytes expands to more than {_SMALL:,} bytes and {_EXPANSION:,} "
                f"times its size, {where}: no table of molecules should; leave out long repeated cells"
            )


class LimitedLines(io.BufferedIOBase):
    """Binary file of lines with limits, for text that is unpacked while it is read.

    Reading raises :class:`InputError` for a line of more than :data:`LONGEST` bytes, for more than 1,048,576
    consecutive blank characters, and for a file that expands too much.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path
        self.expansion = Expansion(path)
        self.lines = self.length = self.blank = 0

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1, /) -> bytes:
        block = self.file.read1(size)  # type: ignore[attr-defined]
        end = max(block.rfind(b"\n"), block.rfind(b"\r"))
        self.length = self.length + len(block) if end < 0 else len(block) - end - 1
        self.lines += block.count(b"\n") or block.count(b"\r")
        self.blank = self.blank + len(block) if block.isspace() else 0
        where = f"line {self.lines + 1}"
        self.expansion.add(len(block), f"up to {where}")
        if self.length > LONGEST:
            raise InputError(f"{self.path}: {where} has more than {LONGEST:,} bytes, the limit of a line")
        if self.blank > _MOST_BLANK:
            raise InputError(f"{self.path}: more than {_MOST_BLANK:,} blank characters in a row, up to {where}")
        return block


# Number of lines that are parsed at a time.
_BLOCK_LINES = 4096
# Limit of the length of a field for the csv module, whose default is 131,072: the largest C long on all platforms.
_FIELD_LIMIT = 2**31 - 1
# Byte order marks. UTF-32 comes first because the mark of UTF-16 is a prefix of that of UTF-32.
_MARKS = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
# First line that names the separator for Excel.
_SEPARATOR = re.compile(r'"?sep=([,;\t])"?')
_QUOTED = re.compile(r'"(?:[^"]++|"")*+"')


#: A row of a text table: one text for each column of the header; and the reason if it does not match the header.
TextRow: TypeAlias = tuple[list[str], str | None]


def open_text(path: Path, stack: ExitStack) -> io.TextIOWrapper:
    """Open a text file, unpacked if its name ends in ``.gz``.

    The encoding is that of the byte order mark, else UTF-8. Line ends are kept. Bytes that are not valid UTF-8 become
    surrogates, which ``surrogateescape`` encodes as the same bytes. ``stack`` closes the file.

    Raises:
        InputError: if it is not text, or UTF-16 without a byte order mark; while reading, also for a line that is too
            long.
        OSError, EOFError, zlib.error: if it cannot be read.
    """
    opener: Callable = gzip.open if path.name.lower().endswith(".gz") else open
    binary = cast(BinaryIO, stack.enter_context(opener(path, "rb")))
    head = binary.read(1 << 12)
    binary.seek(0)
    encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if encoding is None and b"\0" in (head.split(maxsplit=1) or [b""])[0]:
        raise InputError(f"{path} begins with NUL bytes, as UTF-16 does, instead of UTF-8 text: save it as UTF-8")
    # Invalid bytes in UTF-8 are preserved; the other encodings have no way to preserve them.
    errors = "surrogateescape" if encoding in (None, "utf-8-sig") else "strict"
    return io.TextIOWrapper(cast(BinaryIO, LimitedLines(binary, path)), encoding or "utf-8", errors, newline="")


def read_smiles_lines(lines: Iterable[str]) -> Iterator[TextRow]:
    """Read the lines of a ``.smi`` file: a SMILES or CXSMILES, and a name or ``""``. Blank lines are skipped."""
    return ((_smiles_line(line), None) for line in lines if line.strip())


def _smiles_line(line: str) -> list[str]:
    smiles, *rest = line.split(None, 1)
    name = rest[0].strip() if rest else ""
    if name.startswith("|") and (end := name.find("|", 1)) > 0:  # the extension of a CXSMILES is part of the molecule
        smiles, name = f"{smiles} {name[: end + 1]}", name[end + 1 :].strip()
    return [smiles, name]


def read_csv(lines: Iterator[str], file: str, delimiter: str | None = None) -> tuple[list[str], Iterator[TextRow]]:
    """Read the header and the rows of a delimited text table, without blank lines and Excel's first line ``sep=;``.

    Args:
        lines: lines of the file, with line ends.
        file: name of the file, for messages.
        delimiter: field separator; if None, it is inferred from the header and the first rows.

    Returns:
        The names of the columns (empty for an empty file), and the rows.

    Raises:
        InputError: if the quotes of the header are invalid.
    """
    numbered = ((i, line) for i, line in enumerate(lines, 1) if line.strip("\r\n"))
    number, first = next(numbered, (0, ""))
    if declared := _SEPARATOR.fullmatch(first.strip("\r\n")):
        delimiter = declared[1]
        number, first = next(numbered, (0, ""))
    if not first:
        return [], iter(())
    rows_seen = [] if delimiter else list(itertools.islice(lines, _LINES_SEEN))
    lines = itertools.chain([first], rows_seen, lines)
    blocks = _blocks(lines, number, delimiter or _delimiter_of(first, rows_seen), file)
    block = next(blocks)
    while not block.records:  # the header has many lines
        block = next(blocks)
    if 0 in block.broken:
        raise InputError(f"{file}: the header cannot be read, {block.broken[0]}")
    header = block.records[0]
    block.records[0] = []  # the header is not a row
    return header, _rows(itertools.chain([block], blocks), len(header), file)


def _delimiter_of(header: str, rows: Sequence[str]) -> str:
    """Return the separator that most rows have as often as the header: a comma, a semicolon or a tab.

    Where several do, such as commas in a column ``pH 7,4`` of decimal commas, it is the most frequent one; where none
    does, the comma comes first.
    """
    counts = {delimiter: _count(header, delimiter) for delimiter in ",;\t"}
    rows = [row for row in rows if row.strip("\r\n")]
    in_most = {
        delimiter: count
        for delimiter, count in counts.items()
        if count and sum(_count(row, delimiter) == count for row in rows) > len(rows) / 2
    }
    candidates = in_most or ({",": counts[","]} if counts[","] else counts)
    best = max(candidates, key=lambda delimiter: candidates[delimiter])
    return best if counts[best] else ","


def _count(line: str, delimiter: str) -> int:
    """Count a separator outside quotes."""
    return re.sub(r'"[^"]*"?', "", line).count(delimiter)


# --- blocks of lines ------------------------------------------------------------------------------


@dataclass
class _Block:
    """Records parsed from consecutive lines; a blank line is the record ``[]``.

    Attributes:
        records: the fields of each record.
        lines: the parsed lines; an incomplete last record is not in ``records``.
        first_line: number of the first line in the file, from 1.
        delimiter: field separator.
        ends: number of lines up to the end of each record; None until :meth:`where` needs it.
        broken: reasons, by record, for records with invalid quotes.
    """

    records: list[list[str]]
    lines: list[str]
    first_line: int
    delimiter: str
    ends: list[int] | None = None
    broken: dict[int, str] = field(default_factory=dict)

    @property
    def used(self) -> int:
        """Number of lines that the records consist of."""
        return len(self.lines) if self.ends is None else self.ends[-1] if self.ends else 0

    def where(self, record: int, file: str) -> str:
        """Return the position of a record for messages, such as ``"line 7 of t.csv"``."""
        if self.ends is None:
            with _long_fields():
                reader = csv.reader(self.lines, delimiter=self.delimiter, strict=True)
                self.ends = [reader.line_num for _ in reader]
        begin, end = self.ends[record - 1] if record else 0, self.ends[record]
        first, last = self.first_line + begin, self.first_line + end - 1
        return f"line {first} of {file}" if first == last else f"lines {first} to {last} of {file}"


def _blocks(lines: Iterator[str], first_line: int, delimiter: str, file: str) -> Iterator[_Block]:
    pending: list[str] = []
    count = _BLOCK_LINES
    while True:
        new_lines = list(itertools.islice(lines, count))
        pending += new_lines
        if not pending:
            return
        with _long_fields():
            block = _parse(pending, len(new_lines) < count, first_line, delimiter, file)
        yield block
        pending = pending[block.used :]
        first_line += block.used
        count = _BLOCK_LINES if block.used else 2 * count  # doubling limits how often a long record is parsed again


@contextmanager
def _long_fields() -> Iterator[None]:
    before = csv.field_size_limit(_FIELD_LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _parse(lines: list[str], at_end: bool, first_line: int, delimiter: str, file: str) -> _Block:
    """Parse lines into records; an incomplete last record is left out.

    A record with invalid quotes ends with the line of the wrong quote; parsing restarts with the next line.
    """
    with suppress(csv.Error):  # fast path for valid quotes
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
            if not closed and not at_end and sum(map(len, failed)) < LONGEST:  # a later line may close the quote
                break
            where = f"line {first_line + done + quote} of {file}"
            block.broken[len(ends)] = (
                f"text follows a closing quote in {where} (quotes within quotes must be doubled)"
                if closed and len(failed) == quote + 1
                else f"a quote opens in {where} and is not closed"
            )
            lost = [*failed[:quote], failed[quote].rstrip("\r\n")]
            block.records.append(next(csv.reader(lost, delimiter=delimiter)))
            done += quote + 1
            ends.append(done)
    return block


def _wrong_quote(lines: list[str], delimiter: str) -> tuple[int, bool]:
    """Return the index of the line that opens the wrong quote, and whether it is closed (then text follows it)."""
    text, at = "".join(lines), 0
    closed = False
    while True:
        if text.startswith('"', at):
            quoted = _QUOTED.match(text, at)
            closed = quoted is not None
            if quoted is None or not text.startswith(delimiter, quoted.end()):
                break
            at = quoted.end() + 1
        elif (position := text.find(delimiter, at)) >= 0:
            at = position + 1
        else:  # the error is not about a quote: the field is longer than the limit
            break
    ends = list(itertools.accumulate(map(len, lines)))
    return min(bisect_right(ends, at), len(lines) - 1), closed


# --- rows -----------------------------------------------------------------------------------------


def _rows(blocks: Iterable[_Block], width: int, file: str) -> Iterator[TextRow]:
    """Yield the records that are not blank, each with ``width`` cells (that of the header)."""
    for block in blocks:
        if not block.broken and set(map(len, block.records)) <= {width, 0}:
            yield from zip(filter(None, block.records), itertools.repeat(None))
            continue
        for number, record in enumerate(block.records):
            if len(record) == width and number not in block.broken:
                yield record, None
            elif record:
                fields = f"{len(record)} field{'s' * (len(record) != 1)} where the header has {width}"
                reason = block.broken.get(number) or f"{fields} ({block.where(number, file)})"
                yield (record + [""] * width)[:width], reason
