"""CRC-32 checksum of an Arrow file, stored inside the file.

It is part of the metadata of the Arrow schema, of which a file has two copies: at its beginning and in its footer.
Both are replaced by zeros while the checksum is computed.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa

#: Prefix of the eight hexadecimal digits of the checksum.
CHECKSUM_MARK = b"graphslice-crc32:"
#: Placeholder in the metadata of a new file, which :func:`write_checksum` overwrites.
EMPTY_CHECKSUM = (CHECKSUM_MARK + b"0" * 8).decode()

_BLOCK = 1 << 22  # bytes read at a time


def write_checksum(path: Path) -> None:
    """Write the checksum into an Arrow file, after all its other bytes were written."""
    marks = _mark_positions(pa.memory_map(str(path)).read_buffer())
    checksum = _checksum(path, marks)
    with path.open("r+b") as file:
        for mark in marks:
            file.seek(mark + len(CHECKSUM_MARK))
            file.write(checksum)


def has_valid_checksum(path: Path, buffer: pa.Buffer) -> bool:
    """True if the checksum in a file matches its contents.

    Args:
        path: the file.
        buffer: its memory map.
    """
    marks = _mark_positions(buffer)
    if not marks or any(mark + len(CHECKSUM_MARK) + 8 > buffer.size for mark in marks):
        return False
    written = {buffer[mark + len(CHECKSUM_MARK) : mark + len(CHECKSUM_MARK) + 8].to_pybytes() for mark in marks}
    return written == {_checksum(path, marks)}


def _mark_positions(buffer: pa.Buffer) -> list[int]:
    """Find the byte offsets of :data:`CHECKSUM_MARK` in the schema at the beginning of the file and in the footer."""
    data = np.frombuffer(buffer, np.uint8)
    # Layout of an Arrow file: ARROW1, two zeros, a continuation marker, the length of the schema, the schema, ...
    schema_end = 16 + int.from_bytes(data[12:16].tobytes(), "little")
    # ..., the footer, its length, ARROW1.
    footer_begin = len(data) - 10 - int.from_bytes(data[-10:-6].tobytes(), "little")
    positions = []
    for start, end in ((0, schema_end), (max(footer_begin, schema_end), len(data))):
        text = data[start:end].tobytes()
        at = text.find(CHECKSUM_MARK)
        while at >= 0:
            positions.append(start + at)
            at = text.find(CHECKSUM_MARK, at + 1)
    return positions


def _checksum(path: Path, marks: list[int]) -> bytes:
    """Compute the CRC-32 of a file with its checksum digits set to zeros, reading in blocks to save memory."""
    crc = 0
    with path.open("rb") as file:
        while block := bytearray(file.read(_BLOCK)):
            start = file.tell() - len(block)
            for mark in marks:
                for at in range(mark + len(CHECKSUM_MARK) - start, mark + len(CHECKSUM_MARK) + 8 - start):
                    if 0 <= at < len(block):
                        block[at] = ord("0")
            crc = zlib.crc32(block, crc)
    return f"{crc:08x}".encode()
