"""Predictions of labelled molecules as tables: ``test_predictions.csv``, ``out_of_fold.csv``, ``evaluate -o``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.censored import is_bounded
from graphslice.config import MOLECULE
from graphslice.data.arrow import list_array, number_array, text_array
from graphslice.data.dataset import LabelledDataset
from graphslice.data.labels import pointers
from graphslice.data.store import GraphStore
from graphslice.data.tables import write_table
from graphslice.inference.predictions import Predictions, output_arrays
from graphslice.tasks import Task


def write_predictions(
    path: Path, dataset: LabelledDataset, rows: np.ndarray, predictions: Predictions, store: GraphStore | None = None
) -> None:
    """Write the labels and predictions of some rows as a table.

    The columns are row (from 1), smiles (empty without one), the identifiers of the dataset, for each target its
    label ``<target>_true`` (empty if unknown), and the columns that ``graphslice predict`` writes, ``error`` only if
    a row has no prediction. Labels and predictions of atoms and bonds are lists in the order of the SMILES, into
    which those in the order of the graphs of a ``store`` are brought.
    """
    labels, ptr = dataset.labels(rows), None
    if predictions.ptr is not None:
        ptr = pointers(dataset.all_labels.counts_of(rows))
        if store is not None:
            order = store.order(rows)
            predictions = predictions.in_smiles_order(order)
            labels = labels[np.repeat(ptr[:-1], np.diff(ptr)) + order[:, 0]]
    columns: dict[str, pa.Array] = {
        name: pa.array(cells) if name == "row" else text_array(cells)
        for name, cells in dataset.identity_columns(rows).items()
    }
    bounds = dataset.bounds(rows)
    for t, task in enumerate(dataset.tasks):
        array = _label_array(task, labels[:, t], ptr)
        bounded = None if bounds is None or task.classes or ptr is not None else bounds[:, t]
        columns[f"{task.name}_true"] = array if bounded is None else _with_bounds(array, bounded)
    columns |= output_arrays(predictions)
    if not any(predictions.errors):
        del columns["error"]
    with write_table(path) as sink:
        sink.write(pa.table(columns))


def as_predictions(dataset: LabelledDataset, rows: np.ndarray, values: np.ndarray) -> Predictions:
    """Return predicted values of some rows, ``float32 [R, W]`` or ``[M, W]`` of atoms or bonds, without intervals."""
    ptr = None if dataset.level == MOLECULE else pointers(dataset.all_labels.counts_of(rows))
    return Predictions(values, [None] * len(rows), dataset.tasks, ptr=ptr)


def _label_array(task: Task, labels: np.ndarray, ptr: np.ndarray | None) -> pa.Array:
    """Return the labels of a target, ``float64 [M]``, as numbers or class names, null where unknown."""
    known = ~np.isnan(labels)
    if task.classes:
        names = [task.classes[int(label)] if is_known else None for label, is_known in zip(labels, known, strict=True)]
        items = text_array(names)
    else:
        items = number_array(labels, known)
    return items if ptr is None else list_array(items, ptr, np.ones(len(ptr) - 1, bool))


def _with_bounds(labels: pa.Array, bounds: np.ndarray) -> pa.Array:
    """Return the labels as texts, with bounds ``float64 [R, 2]``, ``>5`` or ``>5 and <9``, where there is no number."""
    texts = [None if label is None else f"{label:.12g}" for label in labels.to_pylist()]
    for row in np.flatnonzero(is_bounded(bounds)).tolist():
        low, high = bounds[row].tolist()
        sides = [f"{sign}{bound:.12g}" for sign, bound in ((">", low), ("<", high)) if np.isfinite(bound)]
        texts[row] = " and ".join(sides)
    return text_array(texts)
