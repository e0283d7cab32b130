"""Summaries of predictions to be read: one row for each target of a molecule, with its unit and its percentile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphslice.errors import InputError
from graphslice.inference.predictions import Predictions
from graphslice.tasks import MULTICLASS, Task, each_target


@dataclass(frozen=True)
class TargetSummary:
    """The prediction of one target of one molecule.

    Attributes:
        target: name of the target.
        prediction: a number in ``unit``, or the probability of ``class_name``.
        class_name: the class to which the probability belongs: the second class of a binary target, the most probable
            one of several; empty for regression.
        unit: unit of a regression target; empty if it is not known.
        interval: bounds of the prediction interval, or None.
        classes: classes in the prediction set, or None.
        percentile: percentage of the reference molecules with a smaller prediction, where half of equal ones count
            (Task.reference); None without a reference, and of several classes.
        description: what was measured.
    """

    target: str
    prediction: float
    class_name: str
    unit: str
    interval: tuple[float, float] | None
    classes: tuple[str, ...] | None
    percentile: float | None
    description: str


def summarize(predictions: Predictions, row: int) -> list[TargetSummary]:
    """Summarize the predictions of a molecule, which has some in ``row``, target by target.

    Raises:
        InputError: if the targets are properties of atoms or bonds.
    """
    if predictions.ptr is not None:
        raise InputError("a summary needs molecule-level targets")
    return [
        _summarize_target(predictions, row, t, task, predictions.values[row, where])
        for t, task, where in each_target(predictions.tasks)
    ]


def _summarize_target(predictions: Predictions, row: int, t: int, task: Task, values: np.ndarray) -> TargetSummary:
    best = int(values.argmax()) if task.kind == MULTICLASS else len(values) - 1
    interval, classes = predictions.interval, None
    bounds = None
    if interval is not None and task.classes:
        included = interval.sets[task.name][row]
        classes = tuple(name for name, is_in in zip(task.classes, included, strict=True) if is_in)
    elif interval is not None:
        bounds = float(interval.low[row, t]), float(interval.high[row, t])
    class_name = task.classes[best - len(values)] if task.classes else ""
    value = float(values[best])
    return TargetSummary(
        task.name, value, class_name, task.unit, bounds, classes, _percentile(task, value), task.description
    )


def _percentile(task: Task, value: float) -> float | None:
    if not task.reference or task.kind == MULTICLASS:
        return None
    reference = np.array(task.reference)
    below, up_to = (np.searchsorted(reference, value, side) for side in ("left", "right"))
    return float(50 * (below + up_to) / len(reference))
