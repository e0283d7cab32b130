"""Tables in, the same tables with predictions out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from graphslice.checkpoint import Checkpoint
from graphslice.data.featurize import check_graphs, featurizers
from graphslice.data.sources import STORE_SUFFIX, find_smiles_column
from graphslice.data.store import GraphStore
from graphslice.data.tables import open_table, read_chunks, shards, texts, write_table
from graphslice.errors import InputError
from graphslice.inference.predictor import Predictions, Predictor

# Rows of a store that are predicted at a time.
_CHUNK = 8192


@dataclass
class FileReport:
    """How the prediction of a file went: rows read, rows without an answer, the first reason."""

    rows: int
    failed: int
    first_reason: str | None


def predict_file(
    predictor: Predictor,
    source: str | Path,
    out: str | Path | None,
    *,
    smiles_column: str | None = None,
    engine: str = "local",
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> FileReport:
    """Predict every row of a CSV, TSV, Parquet or ``.smi`` file, or of a folder of such files.

    The same rows come out in the same order, with their columns, then one ``<target>_pred`` a
    target, then ``error``. Memory does not grow with the file. Of a store of ``graphslice
    featurize``, which has no SMILES, the one column before those is ``row``, from 1.

    Args:
        predictor: the model.
        source: the file of molecules.
        out: a CSV, TSV or Parquet file; it appears when whole. None: CSV on stdout.
        smiles_column: the column of the SMILES; found by its name when not given.
        engine: ``"local"``, or ``"ray"`` for a Ray cluster whose machines can all read the file.
        workers: processes that parse (with Ray: that predict); every core by default.
        progress: called with the number of rows done, from time to time.

    Raises:
        InputError: if either file cannot be used.
    """
    source, out = Path(source), None if out is None else Path(out)
    if out is not None and out.exists() and source.exists() and out.samefile(source):
        raise InputError(f"{out} is the input itself: choose another output")
    if source.name.endswith(STORE_SUFFIX):
        return _written(_answers_of_store(predictor, source), out, progress)
    with open_table(source) as table, featurizers(table.about if engine == "local" else 0, workers) as pool:
        column = find_smiles_column(table.columns, smiles_column, str(source))
        for name in answer_columns(predictor.targets):
            if name in table.columns:
                raise InputError(f"{source} has a column {name!r} already: rename it first")
        at = table.columns.index(column)
        if engine == "ray":
            from graphslice.engines.ray import map_table

            make = partial(_answering, column=at)
            answered = map_table(shards(source), read_chunks, make, predictor.checkpoint, workers=workers, on_gpu=True)
        else:
            ours, theirs = itertools.tee(table.pieces)
            answers = predictor.predict_stream((texts(piece.column(at)) for piece in theirs), pool)
            answered = map(with_answers, ours, answers)
        return _written(answered, out, progress)


def _written(answered: Iterable[pa.Table], out: Path | None, progress: Callable[[int], None] | None) -> FileReport:
    report = FileReport(0, 0, None)
    with write_table(out) as sink:
        for piece in answered:
            sink.write(piece)
            failed = [reason for reason in piece.column("error").to_pylist() if reason]
            report.rows += len(piece)
            report.failed += len(failed)
            report.first_reason = report.first_reason or (failed[0] if failed else None)
            if progress:
                progress(len(piece))
    return report


def _answers_of_store(predictor: Predictor, path: Path) -> Iterator[pa.Table]:
    store = GraphStore.open(path)
    check_graphs(store, predictor.config.graph)
    reasons = store.errors
    for begin in range(0, len(store), _CHUNK):
        rows = np.arange(begin, min(begin + _CHUNK, len(store)))
        yield with_answers(pa.table({"row": rows + 1}), predictor.answers(store, rows, reasons))


def answer_columns(targets: Sequence[str]) -> list[str]:
    """Names of the columns that a prediction adds to a table."""
    return [*(f"{target}_pred" for target in targets), "error"]


def with_answers(piece: pa.Table, answers: Predictions) -> pa.Table:
    """A piece of a table with the columns of :func:`answer_columns`."""
    *predicted, error = answer_columns(answers.targets)
    for name, values in zip(predicted, answers.values.T, strict=True):
        piece = piece.append_column(name, pa.array(values, pa.float32()))
    return piece.append_column(error, pa.array(answers.errors, pa.string()))


def _answering(checkpoint: Checkpoint, gpu: bool, column: int) -> Callable[[pa.Table], pa.Table]:
    """What a process of a cluster does with each piece of a table."""
    torch.set_num_threads(2 if gpu else 1)
    predictor = Predictor(checkpoint)

    def answer(piece: pa.Table) -> pa.Table:
        (answers,) = predictor.predict_stream([texts(piece.column(column))])
        return with_answers(piece, answers)

    return answer
