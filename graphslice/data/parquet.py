"""Parquet files, read with limits on their size; pyarrow's module for them is imported only where there are some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile as ParquetFile
from pyarrow.parquet import ParquetWriter as ParquetWriter
from pyarrow.parquet import read_schema as read_schema

from graphslice.data.arrow import is_text
from graphslice.data.text_tables import LONGEST, Expansion
from graphslice.errors import InputError

# Number of bytes of a file that are decoded at once.
_BATCH_BYTES = 1 << 26


def parquet_batches(file: ParquetFile, path: Path, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in batches.

    Args:
        file: the open file.
        path: its path, for messages.
        rows: maximal number of rows of a batch; large rows come in smaller batches.

    Raises:
        InputError: for a cell that is longer than :data:`~graphslice.data.text_tables.LONGEST`, or a file that expands
            too much.
    """
    groups = [file.metadata.row_group(g) for g in range(file.num_row_groups)]
    columns = [group.column(c) for group in groups for c in range(group.num_columns)]
    Expansion(path).add(sum(column.total_uncompressed_size for column in columns), "according to its footer")
    row, expansion = 0, Expansion(path)
    for batch in file.iter_batches(_rows_at_once(file, path, rows)):
        if batch.nbytes > LONGEST:
            _check_cells(batch, row, path)
        row += len(batch)
        expansion.add(sum(map(_text_bytes, batch.columns)), f"up to row {row}")
        yield batch


def _rows_at_once(file: ParquetFile, path: Path, rows: int) -> int:
    """Compute the maximal number of rows per batch from the mean cell size and the longest dictionary entry."""
    texts = [
        field.name
        for field in file.schema_arrow
        if is_text(field.type) and file.schema_arrow.names.count(field.name) == 1
    ]
    largest = 1.0
    with ParquetFile(path, read_dictionary=texts) as encoded:
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
        if is_text(cells.type):
            too_long = pc.greater(pc.binary_length(cells.cast(pa.large_binary())), LONGEST)
            if (row := pc.index(too_long, True).as_py()) >= 0:
                raise InputError(
                    f"{path}: row {first_row + row + 1} has more than {LONGEST:,} bytes in the column {name!r}, the "
                    "limit of a cell"
                )


def _text_bytes(cells: pa.Array) -> int:
    """Return the decoded size of a text column in bytes; 0 for any other column."""
    if not is_text(cells.type):
        return 0
    return cells.dictionary_decode().nbytes if pa.types.is_dictionary(cells.type) else cells.nbytes
