"""Prediction of files, and embeddings (``graphslice fingerprint``): the input of the output head of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa
from numpy.lib.format import write_array_header_1_0

from graphslice.calibration import coverage_of_level, min_calibration_molecules
from graphslice.config import MOLECULE
from graphslice.data.batches import Progress, no_progress
from graphslice.data.columns import TableColumns, check_unique, find_smiles_column, require_column
from graphslice.data.featurize import featurizer_pool
from graphslice.data.store import STORE_SUFFIX, GraphStore
from graphslice.data.tables import (
    WRITABLE,
    Rows,
    Shard,
    TableSink,
    TableStream,
    number_array,
    open_table,
    reject_other_atom_order,
    table_files,
    text_array,
    write_table,
)
from graphslice.errors import InputError, check_new, check_suffix, quoted_list
from graphslice.inference.inputs import smiles_rows
from graphslice.inference.predictions import output_arrays, output_columns
from graphslice.inference.predictor import Predictor
from graphslice.system.files import atomic_write, remove_rests

# Rows of a store that are predicted at a time.
_CHUNK_ROWS = 8192


@dataclass
class FileReport:
    """Numbers of rows of a predicted file, and notes for the user."""

    rows: int = 0  # read
    failed: int = 0  # without a prediction
    first_error: str | None = None  # message of the first of these
    notes: list[str] = field(default_factory=list)  # further remarks for the user

    def add(self, errors: Sequence[str | None]) -> None:
        failed = [error for error in errors if error]
        self.rows += len(errors)
        self.failed += len(failed)
        self.first_error = self.first_error or (failed[0] if failed else None)

    def extend(self, other: FileReport) -> None:
        """Add the rows and the new notes of another file."""
        self.rows += other.rows
        self.failed += other.failed
        self.first_error = self.first_error or other.first_error
        self.notes += [note for note in other.notes if note not in self.notes]


def predict_file(
    predictor: Predictor,
    source: str | Path | Shard | Sequence[str],  # a file, a folder or a list of SMILES
    out: str | Path | TableSink | None,  # written atomically; None: CSV on stdout
    *,
    smiles_column: str | None = None,  # default: that of the training data, else detected
    workers: int | None = None,  # of featurization; default: one per core
    interval: float | None = None,  # and nearest as in Predictor.predict
    nearest: bool = False,
    overwrite: bool = False,  # an existing file
    progress: Progress = no_progress,  # called with the number of rows done since the last call
) -> FileReport:
    """Predict every row of a table, a folder of tables, a preprocessed dataset or a list of SMILES. The output has its
    columns and those of :func:`~graphslice.inference.predictions.output_columns`; memory does not grow with the file.

    A row that cannot be predicted keeps its cells and gets a reason in ``error``. Of atoms and bonds each cell holds a
    list, in the order of the SMILES; text files hold it as JSON, except that an infinite bound is ``Infinity``. The
    columns of a preprocessed dataset are ``smiles``, or ``row`` of graphs, and the feature columns of the model.
    InputError: the input cannot be read, the output cannot be written, or a column is missing or in the way.
    """
    source = Path(source) if isinstance(source, str) else source
    if isinstance(source, Shard) and source.end is None:
        source = source.file
    out = Path(out) if isinstance(out, str) else out
    options: dict[str, Any] = {"interval": interval, "nearest": nearest}
    predictor.check_calibrated(**options)
    check_output(source, out, overwrite)
    new_columns = output_columns(predictor.tasks, predictor.num_models > 1, **options)
    with open_featurized(predictor, source, smiles_column, new_columns, workers) as (chunks, notes):
        report = write_rows(predict_chunks(predictor, chunks, **options), out, progress)
        return replace(report, notes=notes())


@contextmanager
def open_featurized(
    predictor: Predictor,
    source: Path | Shard | Sequence[str],
    smiles_column: str | None = None,
    new_columns: Iterable[str] = (),
    workers: int | None = None,
) -> Iterator[tuple[Iterator[tuple[Rows, GraphStore]], Callable[[], list[str]]]]:
    """Yield the featurized chunks of a source, and a function that returns the notes at the end. A preprocessed dataset
    is read as it is, if it has all that the model reads."""
    if _is_store(source) and predictor.can_read(store := GraphStore.open(source)) and smiles_column is None:
        yield _stored_chunks(store, predictor.feature_columns), list
        return
    with (
        open_molecules(predictor, source, smiles_column, new_columns) as (table, columns),
        featurizer_pool(table.estimated_rows, workers, predictor.kinds) as pool,
    ):
        yield predictor.featurize_rows(table.chunks, columns, pool), lambda: [*table.notes, *columns.notes()]


@contextmanager
def open_molecules(
    predictor: Predictor,
    source: Path | Shard | Sequence[str],
    smiles_column: str | None = None,
    new_columns: Iterable[str] = (),
) -> Iterator[tuple[TableStream, TableColumns]]:
    """Open a file, a folder, a shard or a list of SMILES, and find the columns that a model reads. InputError: one is
    missing or occurs twice, or one of ``new_columns`` exists."""
    if not isinstance(source, Path | Shard):
        table = TableStream(["smiles"], iter([smiles_rows(source)]), len(source))
        yield table, _model_columns(predictor, table, "the list of SMILES", smiles_column, new_columns)
    elif _is_store(source):
        store = GraphStore.open(source)
        if not len(store.smiles):
            raise InputError(f"{source} is a preprocessed dataset without SMILES: give its molecules in a table")
        chunks = (rows for rows, _ in _stored_chunks(store, predictor.feature_columns))
        table = TableStream(["smiles", *predictor.feature_columns], chunks, len(store))
        yield table, _model_columns(predictor, table, str(source), smiles_column or "smiles", new_columns)
    else:
        path = source.file if isinstance(source, Shard) else source
        if predictor.level != MOLECULE:
            reject_other_atom_order(path)
        with open_table(source) as table:
            yield table, _model_columns(predictor, table, str(path), smiles_column, new_columns)


def _is_store(source: Path | Shard | Sequence[str]) -> TypeGuard[Path]:
    return isinstance(source, Path) and source.name.endswith(STORE_SUFFIX)


def predict_chunks(
    predictor: Predictor, chunks: Iterable[tuple[Rows, GraphStore]], **options: Any
) -> Iterator[pa.Table]:
    """Yield chunks of a table with the columns of :func:`~graphslice.inference.predictions.output_columns`."""
    for rows, store in chunks:
        table = rows.table
        for name, column in output_arrays(predictor.predict_featurized(store, **options)).items():
            table = table.append_column(name, column)
        yield table


def check_output(source: Path | Shard | Sequence[str] | None, out: Path | TableSink | None, overwrite: bool) -> None:
    """Raise :class:`InputError` if a file ``out`` is an input file, or exists and may not be replaced. What a killed
    process left of it is removed."""
    if not isinstance(out, Path):
        return
    remove_rests(out)
    if not out.exists():
        return
    if isinstance(source, Path) and source.exists() and any(map(out.samefile, table_files(source))):
        raise InputError(f"{out} is an input file: choose another output")
    if out.is_file():
        check_new(out, overwrite)


def _model_columns(
    predictor: Predictor, table: TableStream, name: str, smiles_column: str | None, new_columns: Iterable[str]
) -> TableColumns:
    columns, data = table.columns, predictor.config.data
    smiles = find_smiles_column(columns, smiles_column, name, data.smiles_column if table.named else None)
    if taken := [column for column in new_columns if column in columns]:
        raise InputError(f"{name} already has columns that predictions have, {quoted_list(taken)}: rename them first")
    features = tuple(require_column(feature, columns, name) for feature in predictor.feature_columns)
    check_unique(columns, [smiles, *features], name)
    read: dict[str, Any] = {"features": features, "feature_names": tuple(predictor.feature_columns)}
    return TableColumns(smiles, decimal=data.decimal, ranges=predictor.feature_ranges, **read)


def write_rows(
    chunks: Iterable[pa.Table], out: Path | TableSink | None, progress: Progress = no_progress
) -> FileReport:
    """Write chunks of a table with a column ``error``; arguments and errors as in :func:`predict_file`."""
    report = FileReport()
    with write_table(out) as sink:
        for chunk in chunks:
            sink.write(chunk)
            report.add(chunk.column("error").to_pylist())
            progress(len(chunk))
    return report


def interval_notes(predictor: Predictor, interval: float | None) -> list[str]:
    """Return a remark if intervals of a coverage in percent are unbounded, else none."""
    if interval is None or predictor.calibration is None:
        return []
    coverage = coverage_of_level(interval)
    if not (unbounded := predictor.calibration.unbounded_targets(predictor.tasks, coverage)):
        return []
    return [
        f"intervals of {quoted_list(unbounded)} are unbounded: {interval:g}% coverage needs at least "
        f"{min_calibration_molecules(coverage):,} calibration molecules"
    ]


def _stored_chunks(store: GraphStore, features: Sequence[str]) -> Iterator[tuple[Rows, GraphStore]]:
    """Yield the SMILES of a preprocessed dataset, or its row numbers if it holds graphs, and some feature columns."""
    store.check_descriptors(features)
    first = 1
    for part in store.parts(_CHUNK_ROWS):
        rows, smiles = np.arange(len(part)), part.smiles[:]
        values = dict(zip(features, part.descriptors(rows, features).T, strict=True))
        table = Rows.of_smiles(smiles, values) if smiles else Rows(pa.table({"row": number_array(first + rows)}))
        yield replace(table, faults=part.faults), part
        first += len(part)


#: Suffix of an output file that holds only the embedding matrix.
MATRIX_SUFFIX = ".npy"


def compute_embeddings(predictor: Predictor, store: GraphStore) -> np.ndarray:
    """Compute embeddings ``float32 [R, C]`` of a store: graph readouts after the last norm and encoded descriptors, the
    members concatenated; nan for invalid molecules."""
    embeddings = np.full((len(store), predictor.networks.width), np.nan, dtype=np.float32)
    rows = np.flatnonzero(store.sizes > 0)
    embeddings[rows] = predictor.networks.embed(store, rows)
    return embeddings


def embed_file(
    predictor: Predictor,
    source: Path | Sequence[str],
    out: Path | TableSink | None,
    *,
    smiles_column: str | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> FileReport:
    """Write a table with ``embedding_0``, ... and ``error``, or only a matrix to ``.npy``, as :func:`predict_file`."""
    check_output(source, out, overwrite)
    matrix = out if isinstance(out, Path) and out.suffix == MATRIX_SUFFIX else None
    if isinstance(out, Path):
        check_suffix(out, (MATRIX_SUFFIX, *WRITABLE))
    new_columns = [] if matrix else [*map(embedding_column, range(predictor.networks.width)), "error"]
    with open_featurized(predictor, source, smiles_column, new_columns, workers) as (chunks, notes):
        if matrix is not None:
            report = _write_matrix(predictor, chunks, matrix, progress)
        else:
            report = write_rows((_with_embeddings(predictor, *chunk) for chunk in chunks), out, progress)
        return replace(report, notes=notes())


def embedding_column(number: int) -> str:
    """Return the column name of a feature of the embedding, numbered from 0."""
    return f"embedding_{number}"


def _with_embeddings(predictor: Predictor, rows: Rows, store: GraphStore) -> pa.Table:
    table = rows.table
    for c, values in enumerate(compute_embeddings(predictor, store).T):
        table = table.append_column(embedding_column(c), number_array(values, np.isfinite(values)))
    return table.append_column("error", text_array(rows.errors))


def _write_matrix(
    predictor: Predictor,
    chunks: Iterable[tuple[Rows, GraphStore]],
    out: Path,
    progress: Progress,
) -> FileReport:
    report, rows = FileReport(), 0
    with atomic_write(out) as temporary, temporary.open("wb") as file:
        for molecules, store in chunks:
            embeddings = np.ascontiguousarray(compute_embeddings(predictor, store))
            header = {"descr": embeddings.dtype.str, "fortran_order": False, "shape": (rows, embeddings.shape[1])}
            if not rows:
                write_array_header_1_0(file, header)
            embeddings.tofile(file)
            rows += len(embeddings)
            report.add(molecules.errors)
            progress(len(molecules))
        file.seek(0)  # NumPy leaves room for the number of rows
        write_array_header_1_0(file, header | {"shape": (rows, embeddings.shape[1])})
    return report
