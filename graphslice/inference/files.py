"""Prediction of files, and embeddings (``graphslice fingerprint``): the input of the output head of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.lib.format import write_array_header_1_0

from graphslice.calibration import Calibration, coverage_of_level, min_calibration_molecules
from graphslice.config import MOLECULE
from graphslice.data.columns import TableColumns, check_unique, find_smiles_column
from graphslice.data.featurize import Pool, featurizer_pool
from graphslice.data.store import STORE_SUFFIX, GraphStore
from graphslice.data.tables import (
    WRITABLE,
    Rows,
    TableSink,
    TableStream,
    holds_sdf,
    number_array,
    open_table,
    read_chunks,
    table_files,
    text_array,
    write_table,
)
from graphslice.errors import InputError, nearest, quoted_list
from graphslice.inference.predictions import Predictions, output_arrays, output_columns
from graphslice.inference.predictor import Predictor
from graphslice.runs.checkpoint import Checkpoint
from graphslice.system.files import atomic_write

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


def predict_file(
    predictor: Predictor,
    source: str | Path | Sequence[str],  # a file, a folder or a list of SMILES
    out: str | Path | TableSink | None,  # written atomically; None: CSV on stdout
    *,
    smiles_column: str | None = None,  # default: that of the training data, else detected
    engine: str = "local",  # or "ray", for a cluster whose machines can all read the file
    workers: int | None = None,  # of featurization, with Ray of prediction; default: one per core
    interval: float | None = None,  # and nearest as in Predictor.predict
    nearest: bool = False,
    overwrite: bool = False,  # an existing file
    progress: Callable[[int], None] | None = None,  # called with the number of rows done since the last call
) -> FileReport:
    """Predict every row of a CSV, TSV, Excel, Parquet, SDF or ``.smi`` file, or of a folder of such files.

    The output has the rows and columns of the input, followed by these columns for every target:

    - ``<target>_pred``: the number in the unit of the target, or the most probable class;
    - ``<target>_prob_<class>``: class probabilities, of the second class only for a binary target;
    - ``_std``: standard deviation of each of these numbers over the members of an ensemble;
    - ``_low`` and ``_high`` (regression) or ``_set`` (classification, such as ``no|yes``) with ``interval``;

    and by ``in_domain`` and ``similarity`` with ``interval`` or ``nearest``, by ``nearest``, and by ``error``. A row
    with more or fewer fields than the header keeps the first fields and gets an error message instead of a prediction.
    Feature columns must exist; cells that are empty or not numbers are replaced by the mean of the training set. For
    atom- and bond-level targets each cell holds a list with one item per atom or bond of the SMILES, in RDKit's order;
    text files hold it as JSON, except that an infinite bound is ``Infinity``. The output of a preprocessed dataset has
    a column ``smiles`` (``row`` for graphs) instead of the input columns. Memory does not grow with the file.
    InputError: the input cannot be read, the output cannot be written, or a column is missing or in the way.
    """
    source = Path(source) if isinstance(source, str) else source
    out = Path(out) if isinstance(out, str) else out
    predictor.check_calibrated(interval, nearest)
    options: dict[str, Any] = {"interval": interval, "nearest": nearest}
    check_output(source, out, overwrite)
    if isinstance(source, Path) and source.name.endswith(STORE_SUFFIX):
        if smiles_column is not None:
            raise InputError(f"{source} is a preprocessed dataset, which has no columns: leave out data.smiles_column")
        return write_rows(_predict_store(predictor, source, workers, options), out, progress)
    if isinstance(source, Path) and predictor.level != MOLECULE and holds_sdf(source):
        raise InputError(
            f"{source}: predictions of {predictor.level}s are in the order of a SMILES, and the records of an SDF file "
            "have another: give a table of SMILES"
        )
    new_columns = output_columns(predictor.tasks, predictor.num_models > 1, **options)
    with open_molecules(predictor, source, smiles_column, new_columns) as (table, inputs):
        if isinstance(source, Path) and engine == "ray":
            return write_rows(_predict_on_ray(predictor, source, inputs.smiles, workers, options), out, progress)
        with featurizer_pool(table.estimated_rows, workers, predictor.kinds) as pool:
            predicted = predict_tables(predictor, table.chunks, inputs, pool, **options)
            report = write_rows(predicted, out, progress)
    return replace(report, notes=[*table.notes, *inputs.notes()])


@contextmanager
def open_molecules(
    predictor: Predictor,
    source: Path | Sequence[str],
    smiles_column: str | None = None,
    new_columns: Iterable[str] = (),
) -> Iterator[tuple[TableStream, TableColumns]]:
    """Open a file, a folder or a list of SMILES, and find the columns that a model reads. InputError: one is missing or
    occurs twice, or one of ``new_columns`` exists."""
    if isinstance(source, Path):
        with open_table(source) as table:
            yield table, _input_columns(predictor, table, str(source), smiles_column, new_columns)
        return
    if smiles_column is not None:
        raise InputError("data.smiles_column names a column of a table, but the input is SMILES: leave it out")
    table = TableStream(["smiles"], iter([Rows.of_smiles(source)]), len(source))
    yield table, _input_columns(predictor, table, "the list of SMILES", None, new_columns)


def predict_tables(
    predictor: Predictor, chunks: Iterable[Rows], inputs: TableColumns, pool: Pool = None, **options: Any
) -> Iterator[pa.Table]:
    """Yield each chunk of a table with the columns of its predictions; ``options`` as of Predictor.predict_rows."""
    for rows, predictions in predictor.predict_rows(chunks, inputs, pool, **options):
        yield with_predictions(rows.table, predictions)


def check_output(source: Path | Sequence[str] | None, out: Path | TableSink | None, overwrite: bool) -> None:
    """Raise :class:`InputError` if a file ``out`` is an input file, or exists and may not be replaced."""
    if not isinstance(out, Path) or not out.exists():
        return
    if isinstance(source, Path) and source.exists() and any(map(out.samefile, table_files(source))):
        raise InputError(f"{out} is an input file: choose another output")
    if out.is_file() and not overwrite:
        raise InputError(f"{out} exists already: choose another --out, or give --overwrite")


def _input_columns(
    predictor: Predictor, table: TableStream, name: str, smiles_column: str | None, new_columns: Iterable[str]
) -> TableColumns:
    columns, data = table.columns, predictor.config.data
    smiles = find_smiles_column(columns, smiles_column, name, data.smiles_column if table.named else None)
    if taken := [new_column for new_column in new_columns if new_column in columns]:
        several = f"the columns {quoted_list(taken)}: rename them first"
        one = f"a column {taken[0]!r}: rename it first"
        raise InputError(f"{name} already has {one if len(taken) == 1 else several}")
    features = predictor.feature_columns
    for feature in features:
        if feature not in columns:
            raise InputError(
                f"{name} has no column {feature!r}, a feature column of the model{nearest(feature, columns)}; it has "
                f"{quoted_list(columns)}"
            )
    check_unique(columns, [smiles, *features], name)
    return TableColumns(smiles, features=tuple(features), decimal=data.decimal, ranges=predictor.feature_ranges)


def write_rows(
    chunks: Iterable[pa.Table], out: Path | TableSink | None, progress: Callable[[int], None] | None = None
) -> FileReport:
    """Write chunks of a table with a column ``error``; arguments and errors as in :func:`predict_file`."""
    report = FileReport()
    with write_table(out) as sink:
        for chunk in chunks:
            sink.write(chunk)
            report.add(chunk.column("error").to_pylist())
            if progress:
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


# --- chunks of a table with their predictions -----------------------------------------------------


def with_predictions(table: pa.Table, predictions: Predictions) -> pa.Table:
    """Append the columns of :func:`~graphslice.inference.predictions.output_columns` to a table."""
    for name, column in output_arrays(predictions).items():
        table = table.append_column(name, column)
    return table


def _predict_store(
    predictor: Predictor, path: Path, workers: int | None, options: dict[str, Any]
) -> Iterator[pa.Table]:
    """Predict a preprocessed dataset chunk by chunk; its SMILES are parsed again for what it lacks."""
    store = GraphStore.open(path)
    store.check_descriptors(predictor.feature_columns)
    chunks = [np.arange(s, min(s + _CHUNK_ROWS, len(store))) for s in range(0, len(store), _CHUNK_ROWS)]
    if predictor.can_read(store):
        for rows in chunks:
            predictions = predictor.predict_store_rows(store, rows, **options)
            yield with_predictions(_identifying_table(store, rows), predictions)
        return
    inputs = TableColumns("smiles", features=tuple(predictor.feature_columns))
    with featurizer_pool(len(store), workers, predictor.kinds) as pool:
        again = (_stored_rows(store, rows, predictor.feature_columns) for rows in chunks)
        for parsed, predictions in predictor.predict_rows(again, inputs, pool, **options):
            yield with_predictions(parsed.table.select(["smiles"]), predictions)


def _identifying_table(store: GraphStore, rows: np.ndarray) -> pa.Table:
    """Return the SMILES of consecutive rows of a store, or their numbers from 1 if it holds graphs."""
    if not len(store.smiles):
        return pa.table({"row": number_array(rows + 1)})
    return pa.table({"smiles": text_array(store.smiles[rows[0] : rows[-1] + 1])})


def _stored_rows(store: GraphStore, rows: np.ndarray, features: Sequence[str]) -> Rows:
    """Return the SMILES and feature columns of consecutive rows of a store; a row without SMILES keeps its fault."""
    smiles, first = store.smiles[rows[0] : rows[-1] + 1], int(rows[0])
    read = Rows.of_smiles(smiles, dict(zip(features, store.descriptors(rows, features).T, strict=True)))
    read.faults |= {row: store.errors[first + row] for row, text in enumerate(smiles) if not text}
    return read


def _predict_on_ray(
    predictor: Predictor, source: Path, smiles: str, workers: int | None, options: dict[str, Any]
) -> Iterator[pa.Table]:
    from graphslice.system.ray import map_table

    shared = predictor.checkpoints, predictor.calibration, predictor.folder, smiles, options
    return map_table(table_files(source), read_chunks, _make_chunk_predictor, shared, workers=workers, on_gpu=True)


def _make_chunk_predictor(
    shared: tuple[list[Checkpoint], Calibration | None, Path | None, str, dict[str, Any]], gpu: bool
) -> Callable[[Rows], pa.Table]:
    import torch

    checkpoints, calibration, folder, smiles, options = shared
    torch.set_num_threads(2 if gpu else 1)
    predictor = Predictor(checkpoints, calibration=calibration, folder=folder)
    inputs = TableColumns(smiles, features=tuple(predictor.feature_columns), decimal=predictor.config.data.decimal)
    return lambda rows: next(predict_tables(predictor, [rows], inputs, **options))


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
    progress: Callable[[int], None] | None = None,
) -> FileReport:
    """Write a table with ``embedding_0``, ... and ``error``, or only a matrix to ``.npy``, as :func:`predict_file`."""
    check_output(source, out, overwrite)
    matrix = out if isinstance(out, Path) and out.suffix == MATRIX_SUFFIX else None
    if matrix is None and isinstance(out, Path) and not out.name.lower().endswith(WRITABLE):
        raise InputError(f"cannot write {out}: its name must end in {', '.join((MATRIX_SUFFIX, *WRITABLE))}")
    new_columns = [] if matrix else [*map(embedding_column, range(predictor.networks.width)), "error"]
    with (
        open_molecules(predictor, source, smiles_column, new_columns) as (table, inputs),
        featurizer_pool(table.estimated_rows, workers, predictor.kinds) as pool,
    ):
        chunks = predictor.featurize_rows(table.chunks, inputs, pool)
        if matrix is not None:
            report = _write_matrix(predictor, chunks, matrix, progress)
        else:
            report = write_rows((_with_embeddings(predictor, *chunk) for chunk in chunks), out, progress)
    return replace(report, notes=[*table.notes, *inputs.notes()])


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
    progress: Callable[[int], None] | None,
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
            if progress:
                progress(len(molecules))
        file.seek(0)  # NumPy leaves room for the number of rows
        write_array_header_1_0(file, header | {"shape": (rows, embeddings.shape[1])})
    return report
