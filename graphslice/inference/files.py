"""Prediction of files, and embeddings (``graphslice fingerprint``): the input of the output head of a network."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.lib.format import write_array_header_1_0

from graphslice.calibration import Calibration, coverage_of_level, min_calibration_molecules
from graphslice.config import MOLECULE
from graphslice.data.columns import FeatureColumns, check_unique, find_smiles_column
from graphslice.data.featurize import Pool, featurizer_pool
from graphslice.data.store import STORE_SUFFIX, GraphStore
from graphslice.data.tables import (
    WRITABLE,
    TableSink,
    TableStream,
    file_columns,
    holds_sdf,
    malformed_rows,
    number_array,
    open_table,
    read_chunks,
    table_files,
    text_array,
    texts,
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
    new_columns = output_columns(predictor.tasks, predictor.num_models > 1, **options)
    if isinstance(source, Path) and source.name.endswith(STORE_SUFFIX):
        if smiles_column is not None:
            raise InputError(f"{source} is a preprocessed dataset, which has no columns: leave out data.smiles_column")
        return write_rows(_predict_store(predictor, source, workers, options), out, progress)
    if isinstance(source, Path) and predictor.level != MOLECULE and holds_sdf(source):
        raise InputError(
            f"{source}: predictions of {predictor.level}s are in the order of a SMILES, and the records of an SDF file "
            "have another: give a table of SMILES"
        )
    if isinstance(source, Path) and engine == "ray":
        with open_table(source) as table:
            column, _ = input_columns(predictor, table, smiles_column, str(source), new_columns)
        return write_rows(_predict_on_ray(predictor, source, column, workers, options), out, progress)

    with featurized_table(predictor, source, smiles_column, new_columns, workers) as (chunks, notes):
        predicted = (with_predictions(chunk, predictor.predict_featurized(store, **options)) for chunk, store in chunks)
        report = write_rows(predicted, out, progress)
        return replace(report, notes=notes())


@contextmanager
def featurized_table(
    predictor: Predictor,
    source: Path | Sequence[str],
    smiles_column: str | None,
    new_columns: Iterable[str],
    workers: int | None,
) -> Iterator[tuple[Iterator[tuple[pa.Table, GraphStore]], Callable[[], list[str]]]]:
    """Yield the chunks of a table with their featurized rows, and a function that returns the notes at the end."""
    if isinstance(source, Path):
        opened: AbstractContextManager[TableStream] = open_table(source)
    elif smiles_column is not None:
        raise InputError("data.smiles_column names a column of a table, but the input is SMILES: leave it out")
    else:
        opened = nullcontext(TableStream(["smiles"], iter([pa.table({"smiles": text_array(source)})]), len(source)))
    with opened as table:
        name = str(source) if isinstance(source, Path) else "the list of SMILES"
        column, features = input_columns(predictor, table, smiles_column, name, new_columns)
        with featurizer_pool(table.estimated_rows, workers, predictor.kinds) as pool:
            chunks = _featurize_chunks(predictor, table.chunks, column, features, pool)
            yield chunks, lambda: [*table.notes, *features.notes()]


def _featurize_chunks(
    predictor: Predictor, chunks: Iterator[pa.Table], column: int, features: FeatureColumns, pool: Pool = None
) -> Iterator[tuple[pa.Table, GraphStore]]:
    """Featurize the rows of a table; the errors of a store are also the reasons for malformed rows."""
    copies = 3 if features.names else 2  # an unused copy of the iterator would keep all chunks in memory
    originals, for_smiles, *for_features = itertools.tee(chunks, copies)
    columns = map(features.parse, for_features[0]) if features.names else None
    smiles = (_chunk_smiles(chunk, column) for chunk in for_smiles)
    for chunk, store in zip(originals, predictor.featurize_chunks(smiles, pool, columns), strict=True):
        store.errors.update(malformed_rows(chunk))
        yield chunk, store


def _chunk_smiles(chunk: pa.Table, column: int) -> list[str]:
    """Return the SMILES of a chunk; empty for malformed rows, whose cells may belong to other columns."""
    smiles = texts(chunk.column(column))
    for row in malformed_rows(chunk):
        smiles[row] = ""
    return smiles


def check_output(source: Path | Sequence[str] | None, out: Path | TableSink | None, overwrite: bool) -> None:
    """Raise :class:`InputError` if a file ``out`` is an input file, or exists and may not be replaced."""
    if not isinstance(out, Path) or not out.exists():
        return
    if isinstance(source, Path) and source.exists() and any(map(out.samefile, table_files(source))):
        raise InputError(f"{out} is an input file: choose another output")
    if out.is_file() and not overwrite:
        raise InputError(f"{out} exists already: choose another --out, or give --overwrite")


def input_columns(
    predictor: Predictor, table: TableStream, smiles_column: str | None, name: str, new_columns: Iterable[str] = ()
) -> tuple[int, FeatureColumns]:
    """Return the index of the SMILES column (by default the training column, if the file has a header), and its feature
    columns. InputError: a column is missing or occurs twice, or one of ``new_columns`` exists."""
    columns, trained_column = table.columns, predictor.config.data.smiles_column if table.named else None
    column = find_smiles_column(columns, smiles_column, name, trained_column)
    if taken := [new_column for new_column in new_columns if new_column in columns]:
        several = f"the columns {quoted_list(taken)}: rename them first"
        one = f"a column {taken[0]!r}: rename it first"
        raise InputError(f"{name} already has {one if len(taken) == 1 else several}")
    for feature in predictor.feature_columns:
        if feature not in columns:
            raise InputError(
                f"{name} has no column {feature!r}, a feature column of the model{nearest(feature, columns)}; it has "
                f"{quoted_list(columns)}"
            )
    check_unique(columns, [column, *predictor.feature_columns], name)
    decimal = predictor.config.data.decimal
    return columns.index(column), FeatureColumns(predictor.feature_columns, decimal, predictor.feature_ranges)


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


def with_predictions(chunk: pa.Table, predictions: Predictions) -> pa.Table:
    """Append the columns of :func:`~graphslice.inference.predictions.output_columns` to a chunk of a table."""
    chunk = file_columns(chunk)
    for name, column in output_arrays(predictions).items():
        chunk = chunk.append_column(name, column)
    return chunk


def _predict_store(
    predictor: Predictor, path: Path, workers: int | None, options: dict[str, Any]
) -> Iterator[pa.Table]:
    """Predict a preprocessed dataset chunk by chunk; its SMILES are parsed again for what it lacks."""
    store = GraphStore.open(path)
    store.check_descriptors(predictor.feature_columns)
    chunks = [np.arange(s, min(s + _CHUNK_ROWS, len(store))) for s in range(0, len(store), _CHUNK_ROWS)]
    tables = (_identifying_table(store, rows) for rows in chunks)
    if predictor.can_read(store):
        predicted = (predictor.predict_store_rows(store, rows, **options) for rows in chunks)
        yield from map(with_predictions, tables, predicted)
        return
    smiles = (store.smiles[rows[0] : rows[-1] + 1] for rows in chunks)
    columns = (store.descriptors(rows, predictor.feature_columns) for rows in chunks)
    with featurizer_pool(len(store), workers, predictor.kinds) as pool:
        parsed = predictor.predict_stream(smiles, pool, columns, **options)
        for table, rows, found in zip(tables, chunks, parsed, strict=True):
            errors = zip(rows.tolist(), found.errors, strict=True)
            found = replace(found, errors=[error and store.errors.get(row, error) for row, error in errors])
            yield with_predictions(table, found)


def _identifying_table(store: GraphStore, rows: np.ndarray) -> pa.Table:
    """Return the SMILES of consecutive rows of a store, or their numbers from 1 if it holds graphs."""
    if not len(store.smiles):
        return pa.table({"row": number_array(rows + 1)})
    return pa.table({"smiles": text_array(store.smiles[rows[0] : rows[-1] + 1])})


def _predict_on_ray(
    predictor: Predictor, source: Path, column: int, workers: int | None, options: dict[str, Any]
) -> Iterator[pa.Table]:
    from graphslice.system.ray import map_table

    shared = predictor.checkpoints, predictor.calibration, predictor.folder, column, options
    return map_table(table_files(source), read_chunks, _make_chunk_predictor, shared, workers=workers, on_gpu=True)


def _make_chunk_predictor(
    shared: tuple[list[Checkpoint], Calibration | None, Path | None, int, dict[str, Any]], gpu: bool
) -> Callable[[pa.Table], pa.Table]:
    import torch

    checkpoints, calibration, folder, column, options = shared
    torch.set_num_threads(2 if gpu else 1)
    predictor = Predictor(checkpoints, calibration=calibration, folder=folder)

    def predict_chunk(chunk: pa.Table) -> pa.Table:
        features = FeatureColumns(predictor.feature_columns, predictor.config.data.decimal)
        ((_, store),) = _featurize_chunks(predictor, iter([chunk]), column, features)
        return with_predictions(chunk, predictor.predict_featurized(store, **options))

    return predict_chunk


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
    with featurized_table(predictor, source, smiles_column, new_columns, workers) as (chunks, notes):
        if matrix is not None:
            report = _write_matrix(predictor, chunks, matrix, progress)
        else:
            report = write_rows((_append_embeddings(predictor, *one) for one in chunks), out, progress)
        return replace(report, notes=notes())


def embedding_column(number: int) -> str:
    """Return the column name of a feature of the embedding, numbered from 0."""
    return f"embedding_{number}"


def _append_embeddings(predictor: Predictor, chunk: pa.Table, store: GraphStore) -> pa.Table:
    chunk = file_columns(chunk)
    for c, values in enumerate(compute_embeddings(predictor, store).T):
        chunk = chunk.append_column(embedding_column(c), number_array(values, np.isfinite(values)))
    return chunk.append_column("error", text_array(_row_errors(store)))


def _write_matrix(
    predictor: Predictor,
    chunks: Iterable[tuple[pa.Table, GraphStore]],
    out: Path,
    progress: Callable[[int], None] | None,
) -> FileReport:
    report, rows = FileReport(), 0
    with atomic_write(out) as temporary, temporary.open("wb") as file:
        for chunk, store in chunks:
            embeddings = np.ascontiguousarray(compute_embeddings(predictor, store))
            header = {"descr": embeddings.dtype.str, "fortran_order": False, "shape": (rows, embeddings.shape[1])}
            if not rows:
                write_array_header_1_0(file, header)
            embeddings.tofile(file)
            rows += len(embeddings)
            report.add(_row_errors(store))
            if progress:
                progress(len(chunk))
        file.seek(0)  # NumPy leaves room for the number of rows
        write_array_header_1_0(file, header | {"shape": (rows, embeddings.shape[1])})
    return report


def _row_errors(store: GraphStore) -> list[str | None]:
    return [store.errors.get(row) for row in range(len(store))]
