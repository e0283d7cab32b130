"""How many labels lie where they were expected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.calibration import mean_per_molecule
from graphslice.inference.predictions import PredictionInterval
from graphslice.tasks import Task

#: Of the intervals whose coverage is reported, in percent.
COVERAGE_LEVEL = 90


def coverage(
    interval: PredictionInterval, labels: np.ndarray, molecules: np.ndarray, tasks: Sequence[Task]
) -> dict[str, dict[str, float]]:
    """Of each target how many labels lie within its intervals or sets, and how wide these are.

    Args:
        interval: of R molecules that have an answer, or of the R atoms or bonds of some.
        labels: ``float64 [R, T]``, nan where unknown.
        molecules: ``int64 [R]``, which molecule each row is of.
        tasks: T targets, under the names that they have here; the model may have others.

    Returns:
        By target ``coverage``, a share of the molecules that have a label; ``width``, the mean of
        ``high - low`` in the user's unit, or ``classes``, the mean number of classes. nan without molecules. Of atoms
        and bonds each is the mean over molecules of that in the molecule, of which intervals speak.
    """
    found = {}
    every_set = iter(interval.sets.values())
    for t, task in enumerate(tasks):
        y = labels[:, t]
        known = np.isfinite(y)
        of = molecules[known]
        if task.classes:
            sets = next(every_set)
            inside = sets[known, y[known].astype(int)]
            found[task.name] = {"coverage": _mean(inside, of), "classes": _mean(sets[known].sum(axis=1), of)}
        else:
            low, high = interval.low[:, t], interval.high[:, t]
            inside = (low[known] <= y[known]) & (y[known] <= high[known])
            found[task.name] = {"coverage": _mean(inside, of), "width": _mean(high[known] - low[known], of)}
    return found


def add_coverage(found: dict, covered: dict[str, dict[str, float]]) -> None:
    """Put ``coverage_90``, ``width_90`` and ``classes_90`` beside the scores of each target, where they are finite.

    Of intervals without end, which hold whatever there is, ``coverage_90`` is None.

    Args:
        found: of :func:`~graphslice.evaluation.metrics.scores`.
        covered: of :func:`coverage`, at :data:`COVERAGE_LEVEL`.
    """
    for name, values in covered.items():
        finite: dict[str, float | None] = {key: value for key, value in values.items() if np.isfinite(value)}
        if np.isinf(values.get("width", 0.0)):
            finite["coverage"] = None
        found["targets"][name] |= {f"{key}_{COVERAGE_LEVEL}": value for key, value in finite.items()}


def _mean(values: np.ndarray, molecules: np.ndarray) -> float:
    return float(mean_per_molecule(values, molecules).mean()) if len(values) else float("nan")
