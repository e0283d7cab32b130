"""Predictions for molecules, with intervals, nearest training molecules and errors, as arrays and as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from graphslice.data.labels import group_means, ragged_indices
from graphslice.data.tables import bool_array, list_array, number_array, text_array
from graphslice.errors import InputError
from graphslice.tasks import (
    BINARY,
    MULTICLASS,
    REGRESSION,
    Task,
    describe_class,
    each_target,
    most_probable,
    predicted_classes,
    prediction_columns,
)

if TYPE_CHECKING:
    from pandas import DataFrame

# A column of a table: texts, or numbers.
_Column: TypeAlias = list[str | None] | np.ndarray


@dataclass
class PredictionInterval:
    """Conformal prediction intervals and prediction sets of R molecules, atoms or bonds, for T targets: see
    :mod:`graphslice.calibration.calibration`."""

    level: float  # coverage in percent
    low: np.ndarray  # float32 [R, T] in the unit of the target; nan for classes and without a prediction
    high: np.ndarray  # likewise; both bounds are infinite if there were too few molecules to calibrate
    sets: dict[str, np.ndarray]  # by classification target: bool [R, K], all False without a prediction

    def take_rows(self, rows: np.ndarray) -> PredictionInterval:
        sets = {name: classes[rows] for name, classes in self.sets.items()}
        return replace(self, low=self.low[rows], high=self.high[rows], sets=sets)

    def average_groups(self, groups: np.ndarray) -> PredictionInterval:
        """Average bounds within groups ``int64 [R]`` of equivalent atoms or bonds, and unite prediction sets."""
        sets = {name: _group_means(classes, groups) > 0 for name, classes in self.sets.items()}
        return replace(self, low=_group_means(self.low, groups), high=_group_means(self.high, groups), sets=sets)


@dataclass
class Neighbours:
    """Nearest training molecules of R molecules, and the applicability domain: the similarity reaches what 95 percent
    of the training molecules reach among each other, with at most 1.5 times the atoms of the largest one."""

    similarity: np.ndarray  # float32 [R], Tanimoto of Morgan fingerprints; nan for invalid molecules
    in_domain: np.ndarray  # bool [R]
    nearest: list[str | None] | None  # R SMILES, or rows of the training data if unavailable; None unless requested


@dataclass
class Predictions:
    """Predictions of R molecules; of their atoms or bonds ``values``, ``std`` and ``interval`` have one row each."""

    # float32 [R, W], nan without a prediction: numbers in their unit, probabilities of the second of two classes or of
    # every class of more.
    values: np.ndarray
    errors: list[str | None]  # R messages, None with a prediction
    tasks: list[Task]  # of the T targets
    std: np.ndarray | None = None  # float32 [R, W] over the members before calibration; None for a single model
    interval: PredictionInterval | None = None  # None unless requested
    neighbours: Neighbours | None = None  # with an interval or the nearest molecule, else None
    ptr: np.ndarray | None = None  # int64 [R + 1]: molecule r has values[ptr[r]:ptr[r + 1]]; None at molecule level
    index: Any = None  # of the pandas data frame or Series that held the molecules, for to_frame

    @property
    def by_row(self) -> list[np.ndarray]:
        """Values of each molecule: ``float32 [n, W]`` for its n atoms or bonds, ``[1, W]`` at molecule level."""
        ptr = np.arange(len(self.errors) + 1) if self.ptr is None else self.ptr
        return [self.values[begin:end] for begin, end in pairwise(ptr.tolist())]

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return the indices into ``values`` of some molecules: ``int64 [B]``, or one per atom or bond."""
        return rows if self.ptr is None else ragged_indices(self.ptr, rows)

    def in_smiles_order(self, order: np.ndarray) -> Predictions:
        """Bring atoms or bonds from graph into SMILES ``order``, ``int64 [S, 2]``; average the equivalent ones."""
        assert self.ptr is not None
        indices, groups = (np.repeat(self.ptr[:-1], np.diff(self.ptr))[:, None] + order).T
        std = None if self.std is None else _group_means(self.std[indices], groups)
        interval = None if self.interval is None else self.interval.take_rows(indices).average_groups(groups)
        return replace(self, values=_group_means(self.values[indices], groups), std=std, interval=interval)

    @property
    def targets(self) -> list[str]:
        return [task.name for task in self.tasks]

    @property
    def columns(self) -> list[str]:
        """Names of the W columns of ``values``."""
        return prediction_columns(self.tasks)

    def classes(self, target: str) -> list[str | None]:
        """Return the most probable class of each row, None without a prediction; KeyError for any other target."""
        for _, task, where in each_target(self.tasks):
            if task.name == target and task.classes:
                return predicted_classes(self.values[:, where], task)
        raise KeyError(target)

    def to_frame(self) -> DataFrame:
        """Return a data frame with one row per molecule, in the columns that ``graphslice predict`` writes.

        The index is that of the pandas input, if any. Predicted classes that are all numbers, or True and False, have
        these types, as in a file read; of atoms and bonds they are texts, in lists.
        """
        frame = pa.table(output_arrays(self)).to_pandas()
        for task in self.tasks:
            if task.classes and self.ptr is None:
                values = _class_values(task.classes)
                frame[f"{task.name}_pred"] = [
                    None if name is None else values[name] for name in self.classes(task.name)
                ]
        return frame if self.index is None else frame.set_index(self.index)


def _class_values(classes: Sequence[str]) -> dict[str, Any]:
    if {*classes} <= {"True", "False"}:
        return {name: name == "True" for name in classes}
    for kind in (int, float) if all(name.isascii() and "_" not in name for name in classes) else ():
        with suppress(ValueError):
            return {name: kind(name) for name in classes}
    return {name: name for name in classes}


def _group_means(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Replace every row of ``values`` by the mean over its group: ``float32 [S, W]``, groups ``int64 [S]``."""
    distinct, inverse = np.unique(groups, return_inverse=True)
    return group_means(values, inverse, len(distinct)).astype(np.float32)[inverse]


# --- output columns --------------------------------------------------------------------------------


def output_columns(
    tasks: Sequence[Task], std: bool = False, interval: float | None = None, nearest: bool = False
) -> list[str]:
    """Return the columns that predictions add to a table; ``interval`` is a coverage in percent. For every target they
    are ``_pred`` (a number in its unit, or a class), ``_prob_<class>`` (of the second class only of two), ``_std`` of
    these numbers over an ensemble; with an interval ``_low`` and ``_high``, or ``_sure`` (true if the prediction set
    is the predicted class) and of several classes ``_set`` (such as ``oral|skin``)."""
    names = []
    for task in tasks:
        names += [*_prediction_names(task), *(_std_names(task) if std else [])]
        names += [] if interval is None else _interval_names(task)
    domain_names = ["in_domain", "similarity"] if interval is not None or nearest else []
    return [*names, *domain_names, *(["nearest"] if nearest else []), "error"]


def check_output_columns(tasks: Sequence[Task]) -> None:
    """Raise :class:`InputError` for equal columns, as of a class ``low`` of ``x`` and the lower bound of ``x_prob``."""
    counts = Counter(output_columns(tasks, std=True, interval=90.0, nearest=True))
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise InputError(f"two prediction columns would be called {repeated[0]!r}: rename one of the targets")


def _prediction_names(task: Task) -> list[str]:
    return [f"{task.name}_pred", *(task.columns if task.classes else [])]


def _std_names(task: Task) -> list[str]:
    return [f"{name}_std" for name in task.columns]


# A prediction set is a column only if it says more than ``_sure``.
_INTERVAL_NAMES = {REGRESSION: ("low", "high"), BINARY: ("sure",), MULTICLASS: ("sure", "set")}


def _interval_names(task: Task) -> list[str]:
    return [f"{task.name}_{name}" for name in _INTERVAL_NAMES[task.kind]]


def output_arrays(predictions: Predictions) -> dict[str, pa.Array]:
    """Return the columns of :func:`output_columns`; those of atom- and bond-level targets hold lists."""
    arrays = {name: _to_arrow(column) for name, column in _target_columns(predictions).items()}
    if predictions.ptr is not None:
        is_predicted = np.array([error is None for error in predictions.errors], bool)
        arrays = {name: list_array(array, predictions.ptr, is_predicted) for name, array in arrays.items()}
    columns: dict[str, _Column] = {}
    if (neighbours := predictions.neighbours) is not None:
        unknown = np.isnan(neighbours.similarity)  # of invalid molecules
        columns = {"in_domain": np.ma.masked_array(neighbours.in_domain, unknown), "similarity": neighbours.similarity}
        columns |= {} if neighbours.nearest is None else {"nearest": neighbours.nearest}
    return arrays | {name: _to_arrow(column) for name, column in (columns | {"error": predictions.errors}).items()}


def _to_arrow(column: _Column) -> pa.Array:
    """Convert texts, or numbers, null for nan, or masked booleans."""
    if isinstance(column, list):
        return text_array(column)
    if isinstance(column, np.ma.MaskedArray):
        return bool_array(column.data, ~np.ma.getmaskarray(column))
    return number_array(column, ~np.isnan(column))


def _target_columns(predictions: Predictions) -> dict[str, _Column]:
    columns: dict[str, _Column] = {}
    for t, task, where in each_target(predictions.tasks):
        predicted, *probabilities = _prediction_names(task)
        values, interval = predictions.values[:, where], predictions.interval
        if task.classes:
            columns[predicted] = predicted_classes(values, task)
        columns |= dict(zip(probabilities or [predicted], values.T, strict=True))
        if predictions.std is not None:
            columns |= dict(zip(_std_names(task), predictions.std[:, where].T, strict=True))
        if interval is not None and task.classes:
            sets, known = interval.sets[task.name], np.isfinite(values).all(axis=1)
            sure = np.ma.masked_array(is_sure(sets, values, task), ~known)
            different, which = np.unique(sets, axis=0, return_inverse=True)
            joined = ["|".join(compress(task.classes, row)) for row in different]
            # An empty prediction set is an empty text; a missing prediction is null.
            texts = [joined[i] if is_known else None for i, is_known in zip(which.reshape(-1), known, strict=True)]
            columns |= dict(zip(_interval_names(task), [sure, texts], strict=False))
        elif interval is not None:
            columns |= dict(zip(_interval_names(task), [interval.low[:, t], interval.high[:, t]], strict=True))
    return columns


class SummaryTables:
    """Prints predictions as tables of all targets, without empty columns; ``added`` are the columns of predictions, and
    ``compared`` names the molecules of the applicability domain."""

    def __init__(self, tasks: Sequence[Task], added: Collection[str], file: IO[str], compared: str = "") -> None:
        self.tasks, self.added, self.file, self.compared = tasks, added, file, compared

    def write(self, chunk: pa.Table) -> None:
        for row in chunk.to_pylist():
            print(*self._lines(row), "", sep="\n", file=self.file)

    def _lines(self, row: dict[str, Any]) -> list[str]:
        given = (value for column, value in row.items() if column not in self.added)
        name = ", ".join(one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in given)
        if row["error"] is not None:
            return [f"{name}: {row['error']}"]
        if row.get("in_domain") is not None:
            where = "inside" if row["in_domain"] else "outside"
            name += f": {where} the applicability domain, similarity {row['similarity']:.2f} to the nearest of "
            name += self.compared
        head = ("target", "prediction", "interval", "percentile of drugs", "description")
        table = zip(head, *(_cells(task, row) for task in self.tasks), strict=True)
        columns = [column for column in table if any(column[1:])]
        widths = [max(map(len, column)) for column in columns]
        lines = ("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in zip(*columns, strict=True))
        return [name, *lines]


def _cells(task: Task, row: dict[str, Any]) -> tuple[str, ...]:
    """Return name, prediction, interval, percentile and description of a target as texts."""
    predicted = row[f"{task.name}_pred"]
    bounds: list[Any] = [row.get(name) for name in _interval_names(task)]
    if task.classes:
        values, (sure, *classes) = np.array([row[name] for name in task.columns]), bounds
        value, text = values[0], describe_class(values, task)
        interval = "" if sure is None else "sure" if sure else "unsure"
        if sure is False and task.kind == MULTICLASS:
            interval += f": {classes[0].replace('|', ' or ') or 'no class'}"
    else:
        value, interval, digits = predicted, "", 4
        if bounds[0] is not None:
            low, high = bounds
            digits = 4 if low * high > 0 and max(low / high, high / low) < 10 else 2
            interval = " to ".join(_rounded(bound, digits) for bound in bounds)
        text = f"{_rounded(value, digits)} {task.unit}".rstrip()
    known = task.reference and task.kind != MULTICLASS
    return task.name, text, interval, f"{percentile(task, value):.0f}" if known else "", task.description


def is_sure(sets: np.ndarray, predictions: np.ndarray, task: Task) -> np.ndarray:
    """Return whether the prediction set ``bool [R, K]`` is the predicted class alone, ``bool [R]``."""
    return (sets == np.eye(len(task.classes), dtype=bool)[most_probable(predictions, task)]).all(axis=1)


def _rounded(value: float, digits: int) -> str:
    return f"{float(f'{value:.{digits}g}'):.4g}"


def percentile(task: Task, value: float) -> float:
    """Return the percentage of the reference molecules with a smaller prediction, where half of equal ones count."""
    reference = np.array(task.reference)
    below, up_to = (np.searchsorted(reference, value, side) for side in ("left", "right"))
    return float(50 * (below + up_to) / len(reference))
