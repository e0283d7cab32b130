"""Tables of molecules as streams: read in pieces, written whole or not at all."""

from __future__ import annotations

import csv
import gzip
import itertools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from graphslice.errors import InputError

SMILES_SUFFIXES = (".smi", ".smiles", ".smi.gz", ".smiles.gz")
CSV_SUFFIXES = (".csv", ".csv.gz")
TSV_SUFFIXES = (".tsv", ".tsv.gz")
PARQUET_SUFFIXES = (".parquet",)
READABLE = CSV_SUFFIXES + TSV_SUFFIXES + PARQUET_SUFFIXES + SMILES_SUFFIXES
WRITABLE = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")


@dataclass
class TableStream:
    """A table read piece by piece: its columns, and :class:`pyarrow.Table` pieces in the file's order.

    CSV, TSV and ``.smi`` cells stay the texts they are; Parquet keeps its types. A ``.smi`` file
    has the columns ``smiles`` and ``name``.
    """

    columns: list[str]
    pieces: Iterator[pa.Table]


def is_table_name(name: str) -> bool:
    """Whether a text looks like the name of a file that :func:`open_table` reads."""
    return name.lower().endswith(READABLE)


@contextmanager
def open_table(path: Path, rows: int = 8192) -> Iterator[TableStream]:
    """Open a CSV, TSV, Parquet or ``.smi`` file, to be read in pieces of some rows.

    Raises:
        InputError: if it is missing, empty, of another kind or damaged.
    """
    if not path.is_file():
        raise InputError(f"no file at {path}")
    name = path.name.lower()
    try:
        with ExitStack() as stack:
            if name.endswith(PARQUET_SUFFIXES):
                file = stack.enter_context(pq.ParquetFile(path))
                if file.metadata.num_rows == 0:
                    raise InputError(f"{path} has no rows")
                pieces = (pa.Table.from_batches([batch]) for batch in file.iter_batches(rows))
                yield TableStream(list(file.schema_arrow.names), pieces)
                return
            if not name.endswith(READABLE):
                raise InputError(f"{path}: GraphSlice reads {', '.join(READABLE)}")
            # Odd bytes of some other encoding pass through as they are.
            opener = gzip.open if name.endswith(".gz") else open
            file = stack.enter_context(opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline=""))
            if name.endswith(SMILES_SUFFIXES):
                columns = ["smiles", "name"]
                lines: Iterator[list[str]] = (_smiles_line(line) for line in file if line.strip())
            else:
                reader = csv.reader(file, delimiter="\t" if name.endswith(TSV_SUFFIXES) else ",")
                columns = next(reader, [])
                lines = (_fit(line, len(columns), reader.line_num, path) for line in reader if line)
            first = next(lines, None)
            if first is None:
                raise InputError(
                    f"{path} {'is empty' if not columns or columns == ['smiles', 'name'] else 'has no rows'}"
                )
            yield TableStream(columns, _pieces(columns, itertools.chain([first], lines), rows))
    except (OSError, EOFError, csv.Error, pa.ArrowException) as error:
        raise InputError(f"cannot read {path}: {str(error).strip().splitlines()[0]}") from None


def _smiles_line(line: str) -> list[str]:
    smiles, *name = line.split(None, 1)
    return [smiles, name[0].strip() if name else ""]


def _fit(line: list[str], width: int, number: int, path: Path) -> list[str]:
    if len(line) > width:
        raise InputError(f"{path}, line {number}: {len(line)} fields where the header has {width}")
    return line + [""] * (width - len(line))


def _pieces(columns: list[str], lines: Iterator[list[str]], rows: int) -> Iterator[pa.Table]:
    while piece := list(itertools.islice(lines, rows)):
        cells = [[_storable(cell) for cell in column] for column in zip(*piece, strict=True)]
        yield pa.Table.from_arrays([pa.array(column, pa.binary()) for column in cells], names=columns)


def _storable(cell: str) -> bytes:
    return cell.encode("utf-8", errors="surrogateescape")


def texts(column: pa.ChunkedArray) -> list[str]:
    """A column as texts; what is empty becomes ``""``."""
    return [_text(value) for value in column.to_pylist()]


def _text(value: object) -> str:
    if value is None:
        return ""
    return value.decode("utf-8", errors="surrogateescape") if isinstance(value, bytes) else str(value)


class _Sink(Protocol):
    def write(self, piece: pa.Table) -> None: ...


class _CsvSink:
    def __init__(self, file: IO[str], delimiter: str) -> None:
        self.writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        self.begun = False

    def write(self, piece: pa.Table) -> None:
        if not self.begun:
            self.writer.writerow(piece.column_names)
            self.begun = True
        columns = []
        for column in piece.columns:
            if pa.types.is_float32(column.type):  # the shortest text that reads back the same
                values = column.to_numpy()
                columns.append(["" if np.isnan(value) else str(value) for value in values])
            else:
                columns.append(texts(column))
        self.writer.writerows(zip(*columns, strict=True))


class _ParquetSink:
    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path, self.stack, self.writer = path, stack, None

    def write(self, piece: pa.Table) -> None:
        for i, column in enumerate(piece.schema):
            if pa.types.is_binary(column.type):
                piece = piece.set_column(i, column.name, pa.array(texts(piece.column(i)), pa.string()))
        if self.writer is None:
            self.writer = self.stack.enter_context(pq.ParquetWriter(self.path, piece.schema))
        self.writer.write_table(piece)


@contextmanager
def write_table(path: Path | None) -> Iterator[_Sink]:
    """Write a CSV, TSV or Parquet file piece by piece; it appears when whole. None: CSV on stdout.

    Raises:
        InputError: if it cannot be written.
    """
    if path is None:
        yield _CsvSink(sys.stdout, ",")
        return
    name = path.name.lower()
    if not name.endswith(WRITABLE):
        raise InputError(f"cannot write {path}: its name must end in {', '.join(WRITABLE)}")
    temporary = path.with_name(f".{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            if name.endswith(PARQUET_SUFFIXES):
                temporary.touch()
                yield _ParquetSink(temporary, stack)
            else:
                opener = gzip.open if name.endswith(".gz") else open
                file = stack.enter_context(
                    opener(temporary, "wt", encoding="utf-8", errors="surrogateescape", newline="")
                )
                yield _CsvSink(file, "\t" if name.endswith(TSV_SUFFIXES) else ",")
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
