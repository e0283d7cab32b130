"""How many labels lie where they were expected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.inference.predictions import Interval
from graphslice.tasks import Task

#: Of the intervals whose coverage is reported, in percent.
LEVEL = 90


def coverage(
    interval: Interval, labels: np.ndarray, tasks: Sequence[Task], answered: np.ndarray
) -> dict[str, dict[str, float]]:
    """Of each target how many labels lie within its intervals or sets, and how wide these are.

    Args:
        interval: of R molecules.
        labels: ``float64 [R, T]``, nan where unknown.
        tasks: T targets.
        answered: ``bool [R]``, whether the molecule has an answer.

    Returns:
        By target ``coverage``, a share of the molecules that have a label and an answer; ``width``, the mean of
        ``high - low`` in the user's unit, or ``classes``, the mean number of classes. nan without molecules.
    """
    found = {}
    for t, task in enumerate(tasks):
        y = labels[:, t]
        known = np.isfinite(y) & answered
        if task.classes:
            sets = interval.sets[task.name]
            inside = sets[known, y[known].astype(int)]
            found[task.name] = {"coverage": _mean(inside), "classes": _mean(sets[known].sum(axis=1))}
        else:
            low, high = interval.low[:, t], interval.high[:, t]
            inside = (low[known] <= y[known]) & (y[known] <= high[known])
            found[task.name] = {"coverage": _mean(inside), "width": _mean(high[known] - low[known])}
    return found


def add_coverage(found: dict, covered: dict[str, dict[str, float]]) -> None:
    """Put ``coverage_90``, ``width_90`` and ``classes_90`` beside the scores of each target, where they are finite.

    Args:
        found: of :func:`~graphslice.evaluation.metrics.scores`.
        covered: of :func:`coverage`, at :data:`LEVEL`.
    """
    for name, values in covered.items():
        finite = {key: value for key, value in values.items() if np.isfinite(value)}
        found["targets"][name] |= {f"{key}_{LEVEL}": value for key, value in finite.items()}


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values, dtype=np.float64)) if len(values) else float("nan")
