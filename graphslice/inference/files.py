"""Tables in, the same tables with predictions out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from graphslice.calibration import Calibration
from graphslice.checkpoint import Checkpoint
from graphslice.config import MOLECULE
from graphslice.data.arrow import number_array, text_array
from graphslice.data.columns import FeatureColumns, check_unique, quoted_list
from graphslice.data.featurize import Pool, check_graphs, featurizer_pool
from graphslice.data.labels import find_smiles_column
from graphslice.data.store import STORE_SUFFIX, GraphStore
from graphslice.data.tables import (
    TableStream,
    file_columns,
    malformed_rows,
    open_table,
    read_chunks,
    table_files,
    texts,
    write_table,
)
from graphslice.errors import InputError, nearest
from graphslice.inference.predictions import Predictions, output_arrays, output_columns
from graphslice.inference.predictor import Predictor

# Rows of a store that are predicted at a time.
_CHUNK_ROWS = 8192


@dataclass
class FileReport:
    """How the prediction of a file went: rows read, rows without an answer, the first reason, and what else to know."""

    rows: int
    failed: int
    first_error: str | None
    notes: list[str] = field(default_factory=list)

    def add(self, errors: Sequence[str | None]) -> None:
        """Count some more rows, by the reasons of those without an answer."""
        failed = [reason for reason in errors if reason]
        self.rows += len(errors)
        self.failed += len(failed)
        self.first_error = self.first_error or (failed[0] if failed else None)


def predict_file(
    predictor: Predictor,
    source: str | Path,
    out: str | Path | None,
    *,
    smiles_column: str | None = None,
    engine: str = "local",
    workers: int | None = None,
    interval: float | None = None,
    nearest: bool = False,
    progress: Callable[[int], None] | None = None,
) -> FileReport:
    """Predict every row of a CSV, TSV, Parquet or ``.smi`` file, or of a folder of such files.

    The same rows come out in the same order, with their columns, then one ``<target>_pred`` a target, a number or the
    most probable class, which ``<target>_prob_<class>`` follow: of two classes the second, of several each; of several
    models the standard deviation of each of these, ``_std``; of an interval ``_low`` and ``_high`` of a number, and
    ``_set`` of classes, such as ``no|yes``. Behind the targets come ``in_domain`` and ``similarity`` where an interval
    or the nearest molecule was asked for, ``nearest``, and ``error``. A row with more or fewer fields than the header
    has the first of them, no prediction, and the reason. Of a model of atoms or bonds each column of a target holds
    lists, with an item for each atom or bond of the SMILES in RDKit's order; in a text they are JSON, but that a bound
    without end is ``Infinity``. Memory does not grow with the file. Of a store of ``graphslice featurize``, which has
    no SMILES, the one column before those is ``row``, from 1.

    Args:
        predictor: the model.
        source: the file of molecules.
        out: a CSV, TSV or Parquet file; it appears when whole. None: CSV on stdout.
        smiles_column: the column of the SMILES; when not given the one that was learned, where the file has it, else
            found by its name. The columns that the model reads beside it must be there; an empty cell, or one that is
            no number, counts as the mean of the training.
        engine: ``"local"``, or ``"ray"`` for a Ray cluster whose machines can all read the file.
        workers: processes that parse (with Ray: that predict); every core by default.
        interval, nearest: as of :meth:`Predictor.predict`.
        progress: called with the number of rows done, from time to time.

    Raises:
        InputError: if either file cannot be used.
    """
    source, out = Path(source), None if out is None else Path(out)
    predictor.check_calibrated(interval, nearest)
    asked: dict[str, Any] = {"interval": interval, "nearest": nearest}
    reject_input_as_output(source, out)
    if source.name.endswith(STORE_SUFFIX):
        if smiles_column is not None:
            raise InputError(f"{source} is a store, which has no columns: leave out --smiles-column")
        return write_rows(_predict_store(predictor, source, asked), out, progress)
    with open_table(source) as table:
        added = output_columns(predictor.tasks, len(predictor.models) > 1, **asked)
        column = smiles_column_index(predictor, table, smiles_column, str(source), added)
        check_feature_columns(predictor.feature_columns, table.columns, str(source))
        if engine == "ray":
            return write_rows(_predict_on_ray(predictor, source, column, workers, asked), out, progress)
        own = FeatureColumns(predictor.feature_columns)
        with featurizer_pool(table.estimated_rows, workers, predictor.kinds) as pool:
            report = write_rows(_predict_chunks(predictor, table.chunks, column, own, asked, pool), out, progress)
        return replace(report, notes=own.notes())


def reject_input_as_output(source: Path, out: Path | None) -> None:
    """Raise :class:`InputError` if a file is to be written over the one that is read, or one of the folder that is."""
    if out is not None and out.exists() and source.exists() and any(map(out.samefile, table_files(source))):
        raise InputError(f"{out} is the input itself: choose another output")


def smiles_column_index(
    predictor: Predictor, table: TableStream, given: str | None, name: str, added: Iterable[str] = ()
) -> int:
    """Which column of a table holds the SMILES that a model is asked about: the first where two have that name.

    Args:
        predictor: the model, whose column is looked for where none is given; not in a ``.smi`` file, which
            names none.
        table: that was opened.
        given: the name that the user gave.
        name: the path of the table.
        added: names of columns that come beside.

    Raises:
        InputError: if there is none, or one of a name that is added.
    """
    columns, learned = table.columns, predictor.config.data.smiles_column if table.named else None
    column = find_smiles_column(columns, given, name, learned)
    for one in added:
        if one in columns:
            raise InputError(f"{name} has a column {one!r} already: rename it first")
    return columns.index(column)


def check_feature_columns(names: Sequence[str], columns: Sequence[str], name: str) -> None:
    """Raise :class:`InputError` if a table lacks a column that the model reads, or has two of its name."""
    for column in names:
        if column not in columns:
            raise InputError(
                f"{name} has no column {column!r}, which the model reads{nearest(column, columns)}; it has "
                f"{quoted_list(columns)}"
            )
    check_unique(columns, names, name)


def write_rows(
    answered: Iterable[pa.Table], out: Path | None, progress: Callable[[int], None] | None = None
) -> FileReport:
    """Write chunks of a table that have a column ``error``; arguments and errors as of :func:`predict_file`."""
    report = FileReport(0, 0, None)
    with write_table(out) as sink:
        for chunk in answered:
            sink.write(chunk)
            report.add(chunk.column("error").to_pylist())
            if progress:
                progress(len(chunk))
    return report


# --- chunks of a table with their predictions -----------------------------------------------------


def with_predictions(chunk: pa.Table, answers: Predictions) -> pa.Table:
    """A chunk of a table with the columns of :func:`~graphslice.inference.predictions.output_columns`."""
    found = output_arrays(answers)
    if malformed := malformed_rows(chunk):
        found["error"] = text_array([malformed.get(row, error) for row, error in enumerate(answers.errors)])
    chunk = file_columns(chunk)
    for name, column in found.items():
        chunk = chunk.append_column(name, column)
    return chunk


def _predict_chunks(
    predictor: Predictor,
    chunks: Iterator[pa.Table],
    column: int,
    own: FeatureColumns,
    asked: dict[str, Any],
    pool: Pool = None,
) -> Iterator[pa.Table]:
    several = 3 if own.names else 2  # who does not read on keeps all chunks in memory
    kept, parsed, *read = itertools.tee(chunks, several)
    columns = map(own.parse, read[0]) if own.names else None
    answers = predictor.predict_stream((chunk_smiles(chunk, column) for chunk in parsed), pool, columns, **asked)
    return map(with_predictions, kept, answers)


def chunk_smiles(chunk: pa.Table, column: int) -> list[str]:
    """The SMILES of a chunk; none of a malformed row, whose cells may be those of other columns."""
    smiles = texts(chunk.column(column))
    for row in malformed_rows(chunk):
        smiles[row] = ""
    return smiles


def _predict_store(predictor: Predictor, path: Path, asked: dict[str, Any]) -> Iterator[pa.Table]:
    if predictor.level != MOLECULE:
        raise InputError(f"{path} keeps no SMILES, in whose order {predictor.level}s get their answers: give the table")
    store = GraphStore.open(path)
    check_graphs(store, predictor.config.graph)
    store.check_descriptors([*predictor.config.data.descriptors, *predictor.kinds])
    reasons = store.errors
    for begin in range(0, len(store), _CHUNK_ROWS):
        rows = np.arange(begin, min(begin + _CHUNK_ROWS, len(store)))
        answers = predictor.predict_store_rows(store, rows, reasons, **asked)
        yield with_predictions(pa.table({"row": number_array(rows + 1)}), answers)


def _predict_on_ray(
    predictor: Predictor, source: Path, column: int, workers: int | None, asked: dict[str, Any]
) -> Iterator[pa.Table]:
    from graphslice.engines.ray import map_table

    shared = predictor.checkpoints, predictor.calibration, predictor.folder, column, asked
    return map_table(table_files(source), read_chunks, _make_chunk_predictor, shared, workers=workers, on_gpu=True)


def _make_chunk_predictor(
    shared: tuple[list[Checkpoint], Calibration | None, Path | None, int, dict[str, Any]], gpu: bool
) -> Callable[[pa.Table], pa.Table]:
    """What a process of a cluster does with each chunk of a table."""
    checkpoints, calibration, folder, column, asked = shared
    torch.set_num_threads(2 if gpu else 1)
    predictor = Predictor(checkpoints, calibration=calibration, folder=folder)

    def predict_chunk(chunk: pa.Table) -> pa.Table:
        (answered,) = _predict_chunks(
            predictor, iter([chunk]), column, FeatureColumns(predictor.feature_columns), asked
        )
        return answered

    return predict_chunk
