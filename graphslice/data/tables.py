"""Tables of molecules as streams of :class:`Rows`, written atomically; conversion to and from Arrow arrays.

``pyarrow.array`` and ``to_numpy`` are avoided because they import pandas to check whether the argument is a Series,
which takes longer than the prediction of a few molecules.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from graphslice.data.formats import (
    EXCEL_SUFFIXES,
    chunks_of,
    open_text,
    read_csv,
    read_excel,
    smiles_rows,
    split_sheet,
    write_excel,
)
from graphslice.errors import EmptyTableError, InputError, NoSmilesColumnError, check_file, check_suffix, file_errors
from graphslice.system.files import atomic_write

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

SMILES_SUFFIXES = (".smi", ".smiles", ".smi.gz", ".smiles.gz")
CSV_SUFFIXES = (".csv", ".csv.gz")
TSV_SUFFIXES = (".tsv", ".tsv.gz")
PARQUET_SUFFIXES = (".parquet",)
SDF_SUFFIXES = (".sdf", ".sdf.gz")
#: File name suffixes of tables of labelled molecules, and of all tables.
TABLE_SUFFIXES = CSV_SUFFIXES + TSV_SUFFIXES + EXCEL_SUFFIXES + PARQUET_SUFFIXES + SDF_SUFFIXES
READABLE = TABLE_SUFFIXES + SMILES_SUFFIXES
WRITABLE = CSV_SUFFIXES + TSV_SUFFIXES + EXCEL_SUFFIXES + PARQUET_SUFFIXES

# Errors of damaged files, next to OSError.
_DAMAGED = (EOFError, UnicodeDecodeError, zlib.error, pa.ArrowException)
# Cells that are converted to texts at once.
_CELLS_AS_TEXT = 1_000_000


@dataclass
class Rows:
    """Rows of a table of molecules as they were read, and why some of them cannot be used."""

    table: pa.Table  # texts, or types of Parquet; a malformed row has its first cells
    faults: dict[int, str] = field(default_factory=dict)  # reason by row, from 0

    def __len__(self) -> int:
        return len(self.table)

    @classmethod
    def of_smiles(cls, smiles: Sequence[str], numbers: Mapping[str, np.ndarray] = MappingProxyType({})) -> Rows:
        """Rows of a column ``smiles`` and columns of numbers."""
        return cls(pa.table({"smiles": text_array(smiles)} | {n: number_array(v) for n, v in numbers.items()}))

    @property
    def errors(self) -> list[str | None]:
        """The reason of each row, None for a row without a fault."""
        return [self.faults.get(row) for row in range(len(self))]

    def smiles(self, column: str) -> list[str]:
        """Return the SMILES; empty in rows with a fault, whose cells may belong to other columns."""
        found = texts(self.table.column(column))
        for row in self.faults:
            found[row] = ""
        return found


@dataclass(frozen=True)
class Shard:
    """Rows of a file that are processed at once, by any process: a part of a Parquet file, or another file as it is."""

    file: Path
    begin: int = 0
    end: int | None = None  # the last row and one, None for all that follow


@dataclass
class TableStream:
    """A table that is read chunk by chunk."""

    columns: list[str]
    chunks: Iterator[Rows]
    estimated_rows: int
    named: bool = True  # the file names its columns; otherwise "smiles" holds the SMILES
    notes: list[str] = field(default_factory=list)  # for the user; complete when all chunks are read


def is_table_name(name: str) -> bool:
    """True if ``name`` has the suffix of a file of molecules; a sheet may follow, as in ``table.xlsx:Sheet name``."""
    return _has_suffix(Path(name), (*READABLE, ".arrow"))


@contextmanager
def open_table(source: Path | Shard, rows: int = 8192) -> Iterator[TableStream]:
    """Open a table, ``.smi`` file (columns ``smiles``, ``name``) or folder of such files, read in order of their names.
    Those must have the same columns, of the same types. Damage may be found only while the chunks are read."""
    shard = source if isinstance(source, Shard) else Shard(source)
    files = [shard.file] if isinstance(source, Shard) else _files_with_rows(source)
    with _open_file(files[0], rows, shard.begin, shard.end) as first:
        if len(files) == 1:
            yield first
            return
        notes: list[str] = []

        def chunks() -> Iterator[Rows]:
            schema: pa.Schema = None
            for file in files:
                with _open_file(file, rows) as table:
                    notes.extend(table.notes)
                    for chunk in table.chunks:
                        schema = schema or chunk.table.schema
                        for column, first in zip(chunk.table.schema, schema, strict=True):
                            if column != first:
                                raise InputError(
                                    f"the column {column.name!r} of {file} has another type ({column.type}) than in "
                                    f"{files[0].name} ({first.type}): the files of a folder must have the same types"
                                )
                        yield chunk

        sizes = [file.stat().st_size for file in files]
        estimated_rows = first.estimated_rows * sum(sizes) // max(1, sizes[0])
        yield TableStream(first.columns, chunks(), estimated_rows, first.named, notes)


def list_shards(path: Path, rows: int) -> list[Shard]:
    """Divide a file or the files of a folder into shards: Parquet files into parts of at most so many rows."""
    shards = []
    for file in _files_with_rows(path):
        file = file.resolve()  # for processes with another working directory
        if not _has_suffix(file, PARQUET_SUFFIXES):
            shards.append(Shard(file))
            continue
        from pyarrow.parquet import read_metadata

        with file_errors("read", file, *_DAMAGED):
            total = max(1, read_metadata(file).num_rows)
        shards += [Shard(file, begin, min(total, begin + rows)) for begin in range(0, total, rows)]
    return shards


def reject_other_atom_order(path: Path) -> None:
    """Raise :class:`InputError` for an SDF file, or a folder with one, whose atoms have another order than a SMILES."""
    if any(_has_suffix(file, SDF_SUFFIXES) for file in table_files(path)):
        raise InputError(
            f"{path}: labels and predictions of atoms and bonds are in the order of a SMILES, and the records of an "
            "SDF file have another: give a table of SMILES"
        )


def table_files(path: Path) -> list[Path]:
    """Return the files of a table in order: those of a folder, or the file itself."""
    if path.is_dir():
        hidden = (".", "_", "~")  # Excel keeps a file ~$NAME of a workbook that is open
        files = sorted(
            f for f in path.iterdir() if f.is_file() and _has_suffix(f, READABLE) and not f.name.startswith(hidden)
        )
        if not files:
            raise InputError(f"the folder {path} has no {', '.join(READABLE)} file")
        return files
    check_file(split_sheet(path)[0])
    return [path]


def _files_with_rows(path: Path) -> list[Path]:
    """Return the files of a table without the empty ones, which distributed jobs regularly write; of only empty files
    the first. InputError: one has other columns than the first."""
    files, columns = table_files(path), dict[Path, list[str]]()
    if len(files) == 1:
        return files
    for file in files:
        with suppress(EmptyTableError), _open_file(file, 1) as table:
            columns[file] = table.columns
            first = next(iter(columns))
            if table.columns != columns[first]:
                reason = "the files of a folder must have the same columns in the same order"
                raise InputError(f"{file} has other columns than {first.name}: {reason}")
    return list(columns) or files[:1]


def count_rows(path: Path) -> int | None:
    """Estimate the number of rows of a table, for a progress bar; None if the table would have to be unpacked."""
    total = 0
    try:
        for file in table_files(path):
            if _has_suffix(file, PARQUET_SUFFIXES):
                from pyarrow.parquet import read_metadata

                total += read_metadata(file).num_rows
            elif _has_suffix(file, (".gz", *EXCEL_SUFFIXES)):
                return None
            else:
                end = b"$$$$" if _has_suffix(file, SDF_SUFFIXES) else b"\n"
                with file.open("rb") as stream:
                    total += sum(block.count(end) for block in iter(lambda: stream.read(1 << 20), b""))
    except (OSError, pa.ArrowException, InputError):
        return None  # open_table reports what is wrong
    return total


@contextmanager
def _open_file(path: Path, rows: int, begin: int = 0, end: int | None = None) -> Iterator[TableStream]:
    """Open a file, of Parquet the rows from ``begin`` to ``end``."""
    with ExitStack() as stack:
        with file_errors("read", path, *_DAMAGED):
            if _has_suffix(path, PARQUET_SUFFIXES):
                table = _open_parquet(path, rows, begin, end, stack)
            else:
                table = _open_text(path, rows, stack)
        try:
            yield table
        except NoSmilesColumnError as error:
            raise InputError("; ".join([str(error), *table.notes])) from None


def _has_suffix(path: Path, suffixes: tuple[str, ...]) -> bool:
    return split_sheet(path)[0].name.lower().endswith(suffixes)


def _open_parquet(path: Path, rows: int, begin: int, end: int | None, stack: ExitStack) -> TableStream:
    from pyarrow.parquet import ParquetFile  # takes a while to import

    file = stack.enter_context(ParquetFile(path))
    if file.metadata.num_rows == 0:
        raise EmptyTableError(f"{path} has no rows")
    end = file.metadata.num_rows if end is None else end
    groups = range(file.num_row_groups)
    ptr = list(itertools.accumulate((file.metadata.row_group(group).num_rows for group in groups), initial=0))

    def chunks() -> Iterator[Rows]:
        read = [group for group in groups if ptr[group] < end and ptr[group + 1] > begin]
        first = ptr[read[0]]
        with file_errors("read", path, *_DAMAGED):
            for batch in file.iter_batches(rows, row_groups=read):
                low, high = max(begin - first, 0), min(end - first, len(batch))
                if low < high:
                    yield Rows(pa.Table.from_batches([batch.slice(low, high - low)]))
                first += len(batch)
                if first >= end:
                    return

    return TableStream(list(file.schema_arrow.names), chunks(), end - begin)


def _open_text(path: Path, rows: int, stack: ExitStack) -> TableStream:
    if not _has_suffix(path, READABLE):
        raise InputError(f"{path} is no table: GraphSlice reads {', '.join(READABLE)}")
    notes: list[str] = []
    estimated_rows = split_sheet(path)[0].stat().st_size // 32
    if _has_suffix(path, SDF_SUFFIXES):
        from graphslice.data.formats import read_sdf  # RDKit takes a while to import

        header, chunks, estimated_rows = read_sdf(path, rows, stack, notes)
    elif _has_suffix(path, EXCEL_SUFFIXES):
        header, sheet = read_excel(path, stack, notes)
        chunks = chunks_of(sheet, rows)
    elif _has_suffix(path, SMILES_SUFFIXES):
        header, chunks = ["smiles", "name"], chunks_of(smiles_rows(open_text(path, stack, notes)), rows)
    else:
        usual = "\t" if _has_suffix(path, TSV_SUFFIXES) else ","
        header, chunks = read_csv(open_text(path, stack, notes), path.name, usual, rows)
    first = next(chunks, None)
    stripped = [name.strip() for name in header]
    header = stripped if len({*stripped}) == len({*header}) else header
    named = not _has_suffix(path, (*SMILES_SUFFIXES, *SDF_SUFFIXES))
    if first is None:
        raise EmptyTableError("; ".join([f"{path} {'has no rows' if header and named else 'is empty'}", *notes]))

    def as_tables() -> Iterator[Rows]:
        with file_errors("read", path, *_DAMAGED):
            for rows, faults in itertools.chain([first], chunks):
                columns = ([cell.encode() for cell in cells] for cells in zip(*rows, strict=True))
                arrays = [binary_array(column, pa.string()) for column in columns]
                yield Rows(pa.Table.from_arrays(arrays, names=header), faults)

    return TableStream(header, as_tables(), estimated_rows, named, notes)


def decode_text(cell: bytes) -> str:
    """Decode a cell of bytes as UTF-8, or as Latin-1 if it is not valid UTF-8."""
    try:
        return cell.decode("utf-8")
    except UnicodeDecodeError:
        return cell.decode("latin-1")


def texts(column: pa.ChunkedArray) -> list[str]:
    """Convert a column of cells of any type to texts; null becomes ``""``."""
    return ["" if v is None else decode_text(v) if isinstance(v, bytes) else str(v) for v in column.to_pylist()]


def plain_rows(chunk: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows as JSON values: None if not finite, text for dates, float32 in the shortest exact form."""
    for row in zip(*map(_plain_values, chunk.columns), strict=True):
        yield dict(zip(chunk.column_names, row, strict=True))


def _plain_values(column: pa.ChunkedArray) -> list[Any]:
    is_short = pa.types.is_float32(column.type.value_type if _holds_lists(column.type) else column.type)
    return [_plain_value(value, is_short) for value in column.to_pylist()]


def _plain_value(value: Any, is_short: bool) -> Any:
    if isinstance(value, list):
        return [_plain_value(item, is_short) for item in value]
    if isinstance(value, float):
        return None if not np.isfinite(value) else float(str(np.float32(value))) if is_short else value
    if isinstance(value, bytes):
        return decode_text(value)
    return value if value is None or isinstance(value, str | int) else str(value)


def _holds_lists(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


class TableSink(Protocol):
    """Takes a table chunk by chunk."""

    def write(self, chunk: pa.Table) -> None:
        """Take further rows."""


class _TextSink:
    def __init__(self, write: Callable[[Iterable[tuple[str, ...]]], None]) -> None:
        self._write, self.header_written = write, False

    def write(self, chunk: pa.Table) -> None:
        if not self.header_written:
            self._write([tuple(chunk.column_names)])
            self.header_written = True
        rows = max(1, _CELLS_AS_TEXT // max(1, chunk.num_columns))
        for start in range(0, len(chunk), rows):
            self._write(zip(*map(_cell_texts, chunk.slice(start, rows).columns), strict=True))


def _cell_texts(column: pa.ChunkedArray) -> list[str]:
    if pa.types.is_float32(column.type):  # the shortest text that is read back as the same number
        values = (value for array in column.chunks for value in float_values(array))
        return ["" if np.isnan(value) else str(value) for value in values]
    if _holds_lists(column.type):
        return ["" if value is None else json.dumps(value, ensure_ascii=False) for value in _plain_values(column)]
    return texts(column)


def _csv_sink(file: IO[str], delimiter: str) -> _TextSink:
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    quoting_writer = csv.writer(file, csv.unix_dialect, delimiter=delimiter)

    def write(rows: Iterable[tuple[str, ...]]) -> None:
        # Before Python 3.13 the csv module does not quote carriage returns unless lines end with one.
        rows = [*rows]
        returns = any("\r" in "".join(row) for row in rows)
        (quoting_writer if returns else writer).writerows(rows)

    return _TextSink(write)


class _ParquetSink:
    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path, self.stack = path, stack
        self.writer: ParquetWriter | None = None

    def write(self, chunk: pa.Table) -> None:
        if self.writer is None:
            from pyarrow.parquet import ParquetWriter

            self.writer = self.stack.enter_context(ParquetWriter(self.path, chunk.schema))
        self.writer.write_table(chunk)


@contextmanager
def write_table(path: Path | TableSink | None) -> Iterator[TableSink]:
    """Write a file by chunks, which appears when it is complete; ``path`` None writes CSV to stdout, or is a sink."""
    if path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):  # in the encoding of files, whatever the locale is
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape", newline="")
        yield _csv_sink(sys.stdout, ",")
        return
    if not isinstance(path, Path):
        yield path
        return
    check_suffix(path, WRITABLE)
    name = path.name.lower()
    with atomic_write(path) as temporary, ExitStack() as stack:
        if name.endswith(PARQUET_SUFFIXES):
            yield _ParquetSink(temporary, stack)
        elif name.endswith(EXCEL_SUFFIXES):
            yield _TextSink(stack.enter_context(write_excel(path, temporary)))
        else:
            opener = gzip.open if name.endswith(".gz") else open
            file = stack.enter_context(opener(temporary, "wt", encoding="utf-8", errors="surrogateescape", newline=""))
            yield _csv_sink(file, "\t" if name.endswith(TSV_SUFFIXES) else ",")


def number_array(values: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """Convert an array of numbers ``[R]``; ``valid``: ``bool [R]``, false where the value is null."""
    values = np.ascontiguousarray(values)
    bitmap = None if valid is None else _bits(valid)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [bitmap, pa.py_buffer(values)])


def list_array(items: pa.Array, ptr: np.ndarray, valid: np.ndarray) -> pa.Array:
    """Create R lists of ``items[ptr[r]:ptr[r + 1]]``; ``valid``: ``bool [R]``, false where the list is null."""
    if ptr[-1] >= 2**31:
        return pa.LargeListArray.from_arrays(number_array(ptr), items, mask=bool_array(~valid))
    return pa.ListArray.from_arrays(number_array(ptr.astype(np.int32)), items, mask=bool_array(~valid))


def bool_array(values: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """Convert a one-dimensional array of booleans; ``valid`` as in :func:`number_array`."""
    bitmap = None if valid is None else _bits(valid)
    return pa.Array.from_buffers(pa.bool_(), len(values), [bitmap, _bits(values)])


def binary_array(cells: Sequence[bytes], kind: pa.DataType | None = None) -> pa.Array | pa.ChunkedArray:
    """Convert byte strings to binary, or ``kind``; the array is chunked if they exceed 2 GiB."""
    kind = kind or pa.binary()
    offsets = np.cumsum([0, *map(len, cells)])
    if offsets[-1] >= 2**31:
        return pa.array(cells, kind)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(cells))]
    return pa.Array.from_buffers(kind, len(cells), buffers)


def is_text(kind: pa.DataType) -> bool:
    """True for the types of texts and bytes, and dictionaries of them."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    texts = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
    return kind in texts


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """Convert texts (None for null); surrogates become question marks. Fast if all are null."""
    if texts.count(None) == len(texts):
        return pa.nulls(len(texts), pa.string())
    array = binary_array([b"" if text is None else text.encode(errors="replace") for text in texts], pa.string())
    valid = _bits(np.array([text is not None for text in texts]))
    return pa.Array.from_buffers(pa.string(), len(texts), [valid, *array.buffers()[1:]])


def valid_rows(array: pa.Array) -> np.ndarray:
    """Return the validity mask of an array, ``bool [R]``, false where it is null."""
    bitmap = array.buffers()[0]
    if bitmap is None:
        return np.ones(len(array), bool)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(bool)


def number_values(array: pa.Array) -> np.ndarray:
    """Return the values of an array of numbers, a view of its buffer; undefined for null."""
    values = np.frombuffer(array.buffers()[1] or b"", array.type.to_pandas_dtype())
    return values[array.offset : array.offset + len(array)]


def list_offsets(array: pa.ListArray) -> np.ndarray:
    """Return the begin of each of R lists and the end of the last one, ``int32 [R + 1]``, a view of their buffer."""
    offsets = np.frombuffer(array.buffers()[1] or bytes(4), np.int32)  # Arrow may omit the buffer of an empty array
    return offsets[array.offset : array.offset + len(array) + 1]


def float_values(array: pa.Array) -> np.ndarray:
    """Return the values of a float array, nan for null."""
    return np.where(valid_rows(array), number_values(array), np.nan)


def _bits(values: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
