"""A checksum inside the file that it is of.

It stands in the metadata of the Arrow schema, which an Arrow file holds twice: at its beginning and
again in its footer. Both are taken for zeros while it is computed.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa

#: What stands before the eight hexadecimal digits of the checksum.
CHECKSUM_MARK = b"graphslice-crc32:"
#: The value in the metadata of a file that is being written, until :func:`write_checksum` fills it in.
EMPTY_CHECKSUM = (CHECKSUM_MARK + b"0" * 8).decode()

_BLOCK = 1 << 22  # bytes that are read at a time


def write_checksum(path: Path) -> None:
    """Write the checksum into a file whose other bytes are final."""
    marks = _mark_positions(pa.memory_map(str(path)).read_buffer())
    checksum = _checksum(path, marks)
    with path.open("r+b") as file:
        for mark in marks:
            file.seek(mark + len(CHECKSUM_MARK))
            file.write(checksum)


def has_valid_checksum(path: Path, buffer: pa.Buffer) -> bool:
    """Whether a file has the checksum of its bytes. ``buffer``: its memory map."""
    marks = _mark_positions(buffer)
    if not marks or any(mark + len(CHECKSUM_MARK) + 8 > buffer.size for mark in marks):
        return False
    written = {buffer[mark + len(CHECKSUM_MARK) : mark + len(CHECKSUM_MARK) + 8].to_pybytes() for mark in marks}
    return written == {_checksum(path, marks)}


def _mark_positions(buffer: pa.Buffer) -> list[int]:
    """Where :data:`CHECKSUM_MARK` stands: in the schema at the beginning of the file and again in the footer."""
    data = np.frombuffer(buffer, np.uint8)
    # An Arrow file is ARROW1 and two zeros, a mark, the length of the schema, the schema, ...
    schema_end = 16 + int.from_bytes(data[12:16].tobytes(), "little")
    # ..., the footer, its length, ARROW1.
    footer_begin = len(data) - 10 - int.from_bytes(data[-10:-6].tobytes(), "little")
    found = []
    for begin, end in ((0, schema_end), (max(footer_begin, schema_end), len(data))):
        text = data[begin:end].tobytes()
        at = text.find(CHECKSUM_MARK)
        while at >= 0:
            found.append(begin + at)
            at = text.find(CHECKSUM_MARK, at + 1)
    return found


def _checksum(path: Path, marks: list[int]) -> bytes:
    """CRC-32 of the whole file, the checksum itself taken for zeros; read in blocks, so that no memory fills."""
    crc = 0
    with path.open("rb") as file:
        while block := bytearray(file.read(_BLOCK)):
            begin = file.tell() - len(block)
            for mark in marks:
                for at in range(mark + len(CHECKSUM_MARK) - begin, mark + len(CHECKSUM_MARK) + 8 - begin):
                    if 0 <= at < len(block):
                        block[at] = ord("0")
            crc = zlib.crc32(block, crc)
    return f"{crc:08x}".encode()
