"""Limits on the size of tables, checked before memory is allocated: a small file can expand to gigabytes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from graphslice.errors import InputError

#: Maximal number of bytes of a line, and of a cell of a Parquet file. The SMILES of the largest supported molecule
#: (65,535 atoms) is shorter than a tenth of it.
LONGEST = 1 << 24
# Maximal ratio of the size of a table to the size of its file, and the size in bytes below which the ratio is not
# limited. Tables of molecules expand 2 to 20 times; gzip reaches 1,032, and Parquet dictionaries have no limit.
_EXPANSION, _SMALL = 1000, 1 << 25
# Maximal number of consecutive blank characters, which take time to read and hold no data.
_MOST_BLANK = 1 << 20
# Number of bytes of a Parquet file that are decoded at once.
_BATCH_BYTES = 1 << 26


class _Expansion:
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
        self.expansion = _Expansion(path)
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


def parquet_batches(file: pq.ParquetFile, path: Path, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in batches.

    Args:
        file: the open file.
        path: its path, for messages.
        rows: maximal number of rows of a batch; large rows come in smaller batches.

    Raises:
        InputError: for a cell of more than :data:`LONGEST` bytes, or a file that expands too much.
    """
    expansion = _Expansion(path)
    groups = [file.metadata.row_group(g) for g in range(file.num_row_groups)]
    columns = [group.column(c) for group in groups for c in range(group.num_columns)]
    if sum(column.total_uncompressed_size for column in columns) > expansion.left:
        expansion.add(expansion.left + 1, "according to its footer")
    row = 0
    for batch in file.iter_batches(_rows_at_once(file, path, rows)):
        if batch.nbytes > LONGEST:
            _check_cells(batch, row, path)
        row += len(batch)
        expansion.add(sum(map(_text_bytes, batch.columns)), f"up to row {row}")
        yield batch


def _rows_at_once(file: pq.ParquetFile, path: Path, rows: int) -> int:
    """Compute the maximal number of rows per batch from the mean cell size and the longest dictionary entry."""
    texts = [
        field.name
        for field in file.schema_arrow
        if _is_text(field.type) and file.schema_arrow.names.count(field.name) == 1
    ]
    largest = 1.0
    with pq.ParquetFile(path, read_dictionary=texts) as encoded:
        for g in range(file.num_row_groups):
            group = file.metadata.row_group(g)
            if not group.num_rows:
                continue
            columns = [group.column(c) for c in range(group.num_columns)]
            for column in columns:
                mean = max(column.total_uncompressed_size, 8 * column.num_values) / group.num_rows
                if mean > LONGEST:
                    name = column.path_in_schema
                    raise InputError(
                        f"{path}: the cells of the column {name!r} have {mean:,.0f} bytes on average in "
                        f"{group.num_rows:,} rows, more than {LONGEST:,}, the limit of a cell"
                    )
                largest = max(largest, mean)
            # A dictionary stores every different text once: a row of a few bits may decode to the longest entry.
            at_once = min(rows, group.num_rows)
            unbounded = [
                column.path_in_schema
                for column in columns
                if column.path_in_schema in texts and at_once * column.total_uncompressed_size > _BATCH_BYTES
            ]
            if unbounded:
                for cells in next(encoded.iter_batches(1, row_groups=[g], columns=unbounded)).columns:
                    largest = max(largest, pc.max(pc.binary_length(cells.dictionary)).as_py() or 0)
    return max(1, min(rows, int(_BATCH_BYTES / largest)))


def _check_cells(batch: pa.RecordBatch, first_row: int, path: Path) -> None:
    for name, cells in zip(batch.schema.names, batch.columns, strict=True):
        if _is_text(cells.type):
            too_long = pc.greater(pc.binary_length(cells.cast(pa.large_binary())), LONGEST)
            if (row := pc.index(too_long, True).as_py()) >= 0:
                raise InputError(
                    f"{path}: row {first_row + row + 1} has more than {LONGEST:,} bytes in the column {name!r}, the "
                    "limit of a cell"
                )


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    texts = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
    return kind in texts


def _text_bytes(cells: pa.Array) -> int:
    """Return the decoded size of a text column in bytes; 0 for any other column."""
    if not _is_text(cells.type):
        return 0
    return cells.dictionary_decode().nbytes if pa.types.is_dictionary(cells.type) else cells.nbytes
