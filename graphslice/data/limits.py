"""Limits on the size of tables, checked before memory is allocated: a small file can expand to gigabytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO

from graphslice.errors import InputError

#: Maximal number of bytes of a line, and of a cell of a Parquet file. The SMILES of the largest supported molecule
#: (65,535 atoms) is shorter than a tenth of it.
LONGEST = 1 << 24
# Maximal ratio of the size of a table to the size of its file, and the size in bytes below which the ratio is not
# limited. Tables of molecules expand 2 to 20 times; gzip reaches 1,032, and Parquet dictionaries have no limit.
_EXPANSION, _SMALL = 1000, 1 << 25
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
