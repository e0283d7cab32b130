"""Text tables as streams of rows: encodings, separators, quotes, and rows that do not match the header.

A malformed row keeps its position: it is returned with a reason and with those of its cells that could be parsed.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
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

    Reading raises :class:`InputError` for a line of more than :data:`LONGEST` bytes, and for a file that expands too
    much.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path
        self.expansion = Expansion(path)
        self.lines = self.length = 0

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1, /) -> bytes:
        block = self.file.read1(size)  # type: ignore[attr-defined]
        end = max(block.rfind(b"\n"), block.rfind(b"\r"))
        self.length = self.length + len(block) if end < 0 else len(block) - end - 1
        self.lines += block.count(b"\n") or block.count(b"\r")
        where = f"line {self.lines + 1}"
        self.expansion.add(len(block), f"up to {where}")
        if self.length > LONGEST:
            raise InputError(f"{self.path}: {where} has more than {LONGEST:,} bytes, the limit of a line")
        return block


# Limit of the length of a field for the csv module, whose default is 131,072: the largest C long on all platforms.
_FIELD_LIMIT = 2**31 - 1
# Number of records that are parsed at a time.
_BLOCK_RECORDS = 4096
# Lines of a record with invalid quotes from which on they are parsed one by one.
_MANY_LINES = 100
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
    """Read the header and the rows of a delimited text table, without Excel's first line ``sep=;``.

    Blank lines are skipped, but in a table of one column those between two rows are empty cells.

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
    records = _with_long_fields(_records(lines, number, delimiter or _delimiter_of(first, rows_seen), file))
    header, _, reason = next(records)
    if reason is not None:
        raise InputError(f"{file}: the header cannot be read, {reason}")
    return header, _rows(records, len(header), file)


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


# Fields of a record; the numbers of its first and last line; and the reason if its quotes are invalid.
_Record: TypeAlias = tuple[list[str], tuple[int, int], str | None]


def _rows(records: Iterable[_Record], width: int, file: str) -> Iterator[TextRow]:
    """Yield the records, each with ``width`` cells (that of the header), without blank lines.

    In a table of one column a blank line before another row is an empty cell.
    """
    blank = 0
    for record, (first, last), reason in records:
        if not record:
            blank += width == 1
            continue
        yield from itertools.repeat(([""], None), blank)
        blank = 0
        if len(record) == width and reason is None:
            yield record, None
        else:
            where = f"line {first} of {file}" if first == last else f"lines {first} to {last} of {file}"
            fields = f"{len(record)} field{'s' * (len(record) != 1)} where the header has {width} ({where})"
            yield (record + [""] * width)[:width], reason or fields


def _with_long_fields(records: Iterator[_Record]) -> Iterator[_Record]:
    """Yield the records; the csv module accepts long fields only while they are read."""
    while True:
        before = csv.field_size_limit(_FIELD_LIMIT)
        try:
            block = list(itertools.islice(records, _BLOCK_RECORDS))
        finally:
            csv.field_size_limit(before)
        if not block:
            return
        yield from block


def _records(lines: Iterator[str], number: int, delimiter: str, file: str) -> Iterator[_Record]:
    """Parse lines, the first of which has a number in the file, into records; a blank line is the record ``[]``.

    A record with invalid quotes ends with its first line; parsing restarts with the next one. If it has many
    lines, all but the last are parsed one by one.
    """
    again: deque[str] = deque()  # lines to be parsed again
    taken: list[str] = []  # lines of the current record

    def take() -> Iterator[str]:
        size = 0
        for line in iter(lambda: again.popleft() if again else next(lines, None), None):
            size = size + len(line) if taken else len(line)
            taken.append(line)
            yield line
            if taken and size >= LONGEST:  # a quote is still open
                return

    while True:
        try:
            for record in csv.reader(take(), delimiter=delimiter, strict=True):
                yield record, (number, number + len(taken) - 1), None
                number += len(taken)
                taken.clear()
            return
        except csv.Error:
            # Restarting with the next one of many lines, again and again, would take quadratic time.
            alone = 1 if len(taken) < _MANY_LINES else len(taken) - 1
            again.extendleft(reversed(taken[alone:]))
            finished = taken[:alone]
            taken.clear()
            for line in finished:
                yield _parse_line(line.rstrip("\r\n"), number, delimiter, file)
                number += 1


def _parse_line(line: str, number: int, delimiter: str, file: str) -> _Record:
    """Parse a line as a record of its own."""
    reason = None
    try:
        next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error:
        reason = f"a quote that opens in line {number} of {file} is not closed, or text follows it"
    return next(csv.reader([line], delimiter=delimiter)), (number, number), reason
