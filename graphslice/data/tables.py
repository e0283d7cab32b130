"""Tables of molecules as streams: read in chunks and written atomically. Parsing of text files is in text_tables."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from graphslice.atomic_write import atomic_write
from graphslice.data.arrow import binary_array, float_values, json_lists, text_array
from graphslice.data.excel import EXCEL_SUFFIXES, read_excel, split_sheet, write_excel
from graphslice.data.text_tables import TextRow, open_text, read_csv, read_smiles_lines
from graphslice.errors import EmptyTableError, InputError, NoSmilesColumnError, first_line

if TYPE_CHECKING:
    from graphslice.data.parquet import ParquetWriter

SMILES_SUFFIXES = (".smi", ".smiles", ".smi.gz", ".smiles.gz")
CSV_SUFFIXES = (".csv", ".csv.gz")
TSV_SUFFIXES = (".tsv", ".tsv.gz")
PARQUET_SUFFIXES = (".parquet",)
SDF_SUFFIXES = (".sdf", ".sdf.gz")
#: File name suffixes of tables of labelled molecules, and of all tables.
TABLE_SUFFIXES = CSV_SUFFIXES + TSV_SUFFIXES + EXCEL_SUFFIXES + PARQUET_SUFFIXES + SDF_SUFFIXES
READABLE = TABLE_SUFFIXES + SMILES_SUFFIXES
WRITABLE = CSV_SUFFIXES + TSV_SUFFIXES + EXCEL_SUFFIXES + PARQUET_SUFFIXES

# Name of the last column of a chunk, which holds the reasons for malformed rows. They are stored as a column so that
# they stay with the rows, also when these are sent to other machines.
_MALFORMED = "graphslice: malformed"
# Metadata of columns that were read from text files.
_TEXT = {b"graphslice": b"text"}
# Cells that are converted to texts at once.
_CELLS_AS_TEXT = 1_000_000


@dataclass
class TableStream:
    """Table that is read chunk by chunk.

    Attributes:
        columns: names of the columns.
        chunks: consecutive rows, in the order of the file. CSV, TSV and ``.smi`` cells are the bytes of the file
            (UTF-8 in place of UTF-16); Parquet keeps its types. A ``.smi`` file has the columns ``smiles`` and
            ``name``; an SDF file too (``name`` holds titles, if there are any), followed by the properties of its
            records, where a missing property is empty. Chunks have an additional last column, used by
            :func:`malformed_rows` and :func:`file_columns`.
        estimated_rows: estimated number of rows.
        named: true if the file names its columns; otherwise ``smiles`` holds the SMILES.
        notes: remarks for the user; complete when all chunks are read.
    """

    columns: list[str]
    chunks: Iterator[pa.Table]
    estimated_rows: int
    named: bool = True
    notes: list[str] = field(default_factory=list)


def is_table_name(name: str) -> bool:
    """True if ``name`` has the suffix of a file of molecules; a sheet may follow, as in ``table.xlsx:Sheet name``."""
    return _has_suffix(Path(name), (*READABLE, ".arrow"))


@contextmanager
def open_table(path: Path, rows: int = 8192) -> Iterator[TableStream]:
    """Open a CSV, TSV, Excel, Parquet, SDF or ``.smi`` file, or a folder of such files, for reading in chunks.

    The files of a folder are read in the order of their names and must have the same columns. Text is UTF-8, or UTF-16
    or UTF-32 with a byte order mark. Of an Excel workbook the first visible sheet is read, or the one that is named as
    in ``table.xlsx:Sheet name``.

    Args:
        path: the file or folder.
        rows: maximal number of rows of a chunk.

    Raises:
        InputError: if it is missing, empty, of an unknown type or damaged. Damage may be found only while the chunks
            are read.
    """
    files = table_files(path)
    schema = _schema_of(path, files) if len(files) > 1 else None
    with _open_file(files[0], rows) as first:
        if len(files) == 1:
            yield first
            return

        notes: list[str] = []

        def chunks() -> Iterator[pa.Table]:
            for file in files:
                with _open_file(file, rows) as table:
                    notes.extend(table.notes)
                    if table.columns != first.columns:
                        raise InputError(
                            f"{file} has the columns {', '.join(table.columns)}, but {files[0].name} has "
                            f"{', '.join(first.columns)}: the files of a folder must have the same columns"
                        )
                    yield from (
                        table.chunks if schema is None else (_cast(chunk, schema, file) for chunk in table.chunks)
                    )

        sizes = [file.stat().st_size for file in files]
        estimated_rows = first.estimated_rows * sum(sizes) // max(1, sizes[0])
        yield TableStream(first.columns, chunks(), estimated_rows, first.named, notes)


def read_chunks(path: Path, rows: int) -> Iterator[pa.Table]:
    """Yield the chunks of :func:`open_table` and close the file after the last one."""
    with open_table(path, rows) as table:
        yield from table.chunks


def holds_sdf(path: Path) -> bool:
    """True for an SDF file, or a folder with one."""
    return any(_has_suffix(file, SDF_SUFFIXES) for file in table_files(path))


def reject_other_atom_order(table: TableStream, path: Path) -> None:
    """Raise :class:`InputError` if labels of atoms or bonds in a table have another order than its SMILES."""
    if not table.named:
        raise InputError(
            f"{path}: labels of atoms and bonds need a table with SMILES: those made from an SDF file have another "
            "order of atoms than its records"
        )


def malformed_rows(chunk: pa.Table) -> dict[int, str]:
    """Return the reasons, by row, for rows of a chunk that do not match the header."""
    if chunk.column_names[-1:] != [_MALFORMED] or chunk.columns[-1].null_count == len(chunk):
        return {}
    return {row: reason for row, reason in enumerate(chunk.columns[-1].to_pylist()) if reason is not None}


def file_columns(chunk: pa.Table) -> pa.Table:
    """Return a chunk with only the columns of its file; a malformed row has its first cells there."""
    last = chunk.num_columns - 1
    return chunk.remove_column(last) if chunk.column_names[-1:] == [_MALFORMED] else chunk


def _schema_of(folder: Path, files: list[Path]) -> pa.Schema | None:
    """Return a common schema for the files of a folder: text columns if any file is text."""
    schemas = []
    for file in files:
        with _convert_read_errors(file):
            if not _has_suffix(file, PARQUET_SUFFIXES):
                with _open_file(file, 1) as table:
                    return _text_schema(table.columns).append(pa.field(_MALFORMED, pa.string()))
            schemas.append(_parquet().read_schema(file).remove_metadata())
    if any(schema.names != schemas[0].names for schema in schemas):
        return None  # open_table reports the file with other columns
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").append(pa.field(_MALFORMED, pa.string()))
    except (pa.ArrowException, TypeError) as error:
        raise InputError(f"the files of {folder} have columns of incompatible types: {error}") from None


def _cast(chunk: pa.Table, schema: pa.Schema, file: Path) -> pa.Table:
    columns = []
    for name, column, kind in zip(chunk.column_names, chunk.columns, schema.types, strict=True):
        as_text = pa.types.is_binary(kind) and not pa.types.is_binary(column.type)
        try:
            if as_text and _holds_lists(column.type):
                columns.append(binary_array([text.encode() for text in json_lists(column)]))
            else:
                columns.append(column.cast(pa.string()).cast(kind) if as_text else column.cast(kind))
        except pa.ArrowException as error:
            problem = f"{file}: the column {name!r} cannot be converted to {kind}, its type in other files"
            raise InputError(f"{problem}: {error}") from None
    return pa.table(columns, schema=schema)


def _holds_lists(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def table_files(path: Path) -> list[Path]:
    """Return the files that :func:`open_table` reads, in order: those of a folder, or the file itself.

    Raises:
        InputError: if there is none.
    """
    if path.is_dir():
        hidden = (".", "_", "~")  # Excel keeps a file ~$NAME of a workbook that is open
        files = sorted(
            f for f in path.iterdir() if f.is_file() and _has_suffix(f, READABLE) and not f.name.startswith(hidden)
        )
        if not files:
            raise InputError(f"the folder {path} has no {', '.join(READABLE)} file")
        # Distributed jobs regularly write some files without rows.
        return [file for file in files if not _has_no_rows(file)] or files[:1]
    if not split_sheet(path)[0].is_file():
        raise InputError(f"no file at {path}")
    return [path]


def _has_no_rows(file: Path) -> bool:
    try:
        with _open_file(file, 1):
            return False
    except EmptyTableError:
        return True


def count_rows(path: Path) -> int | None:
    """Estimate the number of rows of a table, for a progress bar; None if the table would have to be unpacked."""
    total = 0
    try:
        for file in table_files(path):
            if _has_suffix(file, PARQUET_SUFFIXES):
                total += _parquet().ParquetFile(file).metadata.num_rows
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
def _open_file(path: Path, rows: int) -> Iterator[TableStream]:
    is_parquet, is_sdf = _has_suffix(path, PARQUET_SUFFIXES), _has_suffix(path, SDF_SUFFIXES)
    opener = _open_parquet if is_parquet else _open_sdf if is_sdf else _open_text
    with ExitStack() as stack:
        with _convert_read_errors(path):
            table = opener(path, rows, stack)
        try:
            yield table
        except NoSmilesColumnError as error:
            raise InputError("; ".join([str(error), *table.notes])) from None


@contextmanager
def _convert_read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{path} begins like {error.encoding} but is not valid: save it as UTF-8") from None
    except MemoryError:
        raise InputError(f"cannot read {path}: not enough memory") from None
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise InputError(f"cannot read {path}: {first_line(error)}") from None


def _has_suffix(path: Path, suffixes: tuple[str, ...]) -> bool:
    return split_sheet(path)[0].name.lower().endswith(suffixes)


def _parquet() -> ModuleType:
    from graphslice.data import parquet  # takes a while to import

    return parquet


def _open_parquet(path: Path, rows: int, stack: ExitStack) -> TableStream:
    file = stack.enter_context(_parquet().ParquetFile(path))
    if file.metadata.num_rows == 0:
        raise EmptyTableError(f"{path} has no rows")

    def chunks() -> Iterator[pa.Table]:
        with _convert_read_errors(path):
            for batch in _parquet().parquet_batches(file, path, rows):
                yield _with_malformed(pa.Table.from_batches([batch]), [None] * len(batch))

    return TableStream(list(file.schema_arrow.names), chunks(), file.metadata.num_rows)


def _open_sdf(path: Path, rows: int, stack: ExitStack) -> TableStream:
    from graphslice.data.sdf import read_sdf, summarize_sdf  # RDKit takes a while to import

    with ExitStack() as first_pass:
        summary = summarize_sdf(open_text(path, first_pass), path)
    if not summary.records:
        raise EmptyTableError(f"{path} is empty")
    columns = [decode_text(_encode_cell(name)) for name in summary.columns]
    chunks = _chunks_of_text(columns, read_sdf(open_text(path, stack), path, summary), rows, path)
    return TableStream(columns, chunks, summary.records, named=False)


def _open_text(path: Path, rows: int, stack: ExitStack) -> TableStream:
    if not _has_suffix(path, READABLE):
        raise InputError(f"{path}: GraphSlice reads {', '.join(READABLE)}")
    notes: list[str] = []
    if _has_suffix(path, EXCEL_SUFFIXES):
        header, text_rows, notes = read_excel(path, stack)
    elif _has_suffix(path, SMILES_SUFFIXES):
        header, text_rows = ["smiles", "name"], read_smiles_lines(open_text(path, stack))
    else:
        file = open_text(path, stack)
        header, text_rows = read_csv(file, path.name, "\t" if _has_suffix(path, TSV_SUFFIXES) else None)
    first = next(text_rows, None)
    if first is None:
        problem = "has no rows" if header and not _has_suffix(path, SMILES_SUFFIXES) else "is empty"
        raise EmptyTableError("; ".join([f"{path} {problem}", *notes]))
    columns = [decode_text(_encode_cell(name)) for name in header]
    chunks = _chunks_of_text(columns, itertools.chain([first], text_rows), rows, path)
    size = split_sheet(path)[0].stat().st_size
    return TableStream(columns, chunks, size // 32, not _has_suffix(path, SMILES_SUFFIXES), notes)


def _chunks_of_text(columns: list[str], text_rows: Iterator[TextRow], rows: int, path: Path) -> Iterator[pa.Table]:
    with _convert_read_errors(path):
        while part := list(itertools.islice(text_rows, rows)):
            cells = zip(*(row for row, _ in part), strict=True)
            arrays = [binary_array([_encode_cell(cell) for cell in column]) for column in cells]
            table = pa.Table.from_arrays(arrays, schema=_text_schema(columns))
            yield _with_malformed(table, [reason for _, reason in part])


def _text_schema(columns: Sequence[str]) -> pa.Schema:
    """Schema of undecoded text cells; unlike the bytes of a Parquet file, they are decoded when written to Parquet."""
    return pa.schema([pa.field(name, pa.binary(), metadata=_TEXT) for name in columns])


def _with_malformed(chunk: pa.Table, reasons: Sequence[str | None]) -> pa.Table:
    return chunk.append_column(_MALFORMED, text_array(reasons))


def _encode_cell(cell: str) -> bytes:
    return cell.encode("utf-8", errors="surrogateescape")


def decode_text(cell: bytes) -> str:
    """Decode a cell as UTF-8, or as Latin-1 if it is not valid UTF-8."""
    try:
        return cell.decode("utf-8")
    except UnicodeDecodeError:
        return cell.decode("latin-1")


def texts(column: pa.ChunkedArray) -> list[str]:
    """Convert a column of cells of any type to texts; null becomes ``""``."""
    return ["" if v is None else decode_text(v) if isinstance(v, bytes) else str(v) for v in _python_values(column)]


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    try:
        return column.to_pylist()
    except (OverflowError, ValueError):  # a date or duration outside Python's range
        return column.cast(pa.string()).to_pylist()


def plain_rows(chunk: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows as values that JSON has: numbers that are not finite become None, other types such as dates text.

    Of two columns with the same name, the last one is taken. Numbers of type float32 get the shortest form that is read
    back as the same number.
    """
    columns = []
    for column in chunk.columns:
        is_short = pa.types.is_float32(column.type.value_type if _holds_lists(column.type) else column.type)
        columns.append([_plain_value(value, is_short) for value in _python_values(column)])
    for row in zip(*columns, strict=True):
        yield dict(zip(chunk.column_names, row, strict=True))


def _plain_value(value: Any, is_short: bool) -> Any:
    if isinstance(value, list):
        return [_plain_value(item, is_short) for item in value]
    if isinstance(value, float):
        return None if not np.isfinite(value) else float(str(np.float32(value))) if is_short else value
    if isinstance(value, bytes):
        return decode_text(value)
    return value if value is None or isinstance(value, str | int) else str(value)


class TableSink(Protocol):
    """Takes a table chunk by chunk."""

    def write(self, chunk: pa.Table) -> None:
        """Take further rows."""


class _TextSink:
    """Converts the cells of a table to texts.

    Args:
        write: writes rows of texts.
    """

    def __init__(self, write: Callable[[Iterable[tuple[str, ...]]], None]) -> None:
        self._write, self.header_written = write, False

    def write(self, chunk: pa.Table) -> None:
        if not self.header_written:
            self._write([tuple(chunk.column_names)])
            self.header_written = True
        rows = max(1, _CELLS_AS_TEXT // max(1, chunk.num_columns))
        for start in range(0, len(chunk), rows):
            self._write_rows(chunk.slice(start, rows))

    def _write_rows(self, chunk: pa.Table) -> None:
        columns = []
        for column in chunk.columns:
            if pa.types.is_float32(column.type):  # the shortest text that is read back as the same number
                values = (value for array in column.chunks for value in float_values(array))
                columns.append(["" if np.isnan(value) else str(value) for value in values])
            elif _holds_lists(column.type):
                columns.append(json_lists(column))
            else:
                columns.append(texts(column))
        self._write(zip(*columns, strict=True))


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
        for i, column in enumerate(chunk.schema):
            if column.metadata == _TEXT:
                cells = chunk.column(i).to_pylist()
                decoded_cells = [None if cell is None else decode_text(cell) for cell in cells]
                chunk = chunk.set_column(i, column.name, pa.array(decoded_cells, pa.string()))
        if self.writer is None:
            self.writer = self.stack.enter_context(_parquet().ParquetWriter(self.path, chunk.schema))
        self.writer.write_table(chunk)


@contextmanager
def write_table(path: Path | TableSink | None) -> Iterator[TableSink]:
    """Write a CSV, TSV, Excel or Parquet file chunk by chunk and atomically: the file appears when it is complete.

    Args:
        path: the file; None for CSV on stdout; or a sink, which is used as it is.

    Raises:
        InputError: if it cannot be written.
    """
    if path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):  # in the encoding of files, whatever the locale is
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape", newline="")
        yield _csv_sink(sys.stdout, ",")
        return
    if not isinstance(path, Path):
        yield path
        return
    name = path.name.lower()
    if not name.endswith(WRITABLE):
        raise InputError(f"cannot write {path}: its name must end in {', '.join(WRITABLE)}")
    with atomic_write(path) as temporary, ExitStack() as stack:
        if name.endswith(PARQUET_SUFFIXES):
            yield _ParquetSink(temporary, stack)
        elif name.endswith(EXCEL_SUFFIXES):
            yield _TextSink(stack.enter_context(write_excel(path, temporary)))
        else:
            opener = gzip.open if name.endswith(".gz") else open
            file = stack.enter_context(opener(temporary, "wt", encoding="utf-8", errors="surrogateescape", newline=""))
            yield _csv_sink(file, "\t" if name.endswith(TSV_SUFFIXES) else ",")
