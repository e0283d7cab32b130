"""Empirical coverage and size of prediction intervals and prediction sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.calibration import mean_per_molecule
from graphslice.inference.predictions import PredictionInterval
from graphslice.tasks import Task

#: Nominal coverage of the intervals that are evaluated, in percent.
COVERAGE_LEVEL = 90


def coverage(
    interval: PredictionInterval, labels: np.ndarray, molecules: np.ndarray, tasks: Sequence[Task]
) -> dict[str, dict[str, float]]:
    """Compute the empirical coverage and the mean size of prediction intervals and sets for every target.

    Args:
        interval: intervals of R predicted molecules, or of their R atoms or bonds.
        labels: ``float64 [R, T]``, nan where unknown.
        molecules: ``int64 [R]``, index of the molecule of every row.
        tasks: the T prediction tasks, with the target names of the dataset, which may differ from those of the model.

    Returns:
        By target ``coverage``, the fraction of labels in the interval or set, and ``width``, the mean of ``high - low``
        in the unit of the target, or ``classes``, the mean number of classes in the set. Values are nan without labels.
        Atoms and bonds are averaged within molecules first, which is the coverage that the intervals guarantee.
    """
    results = {}
    prediction_sets = iter(interval.sets.values())
    for t, task in enumerate(tasks):
        y = labels[:, t]
        known = np.isfinite(y)
        groups = molecules[known]
        if task.classes:
            sets = next(prediction_sets)
            inside = sets[known, y[known].astype(int)]
            sizes = sets[known].sum(axis=1)
            results[task.name] = {"coverage": _mean(inside, groups), "classes": _mean(sizes, groups)}
        else:
            low, high = interval.low[:, t], interval.high[:, t]
            inside = (low[known] <= y[known]) & (y[known] <= high[known])
            results[task.name] = {"coverage": _mean(inside, groups), "width": _mean(high[known] - low[known], groups)}
    return results


def add_coverage(result: dict, coverages: dict[str, dict[str, float]]) -> None:
    """Add ``coverage_90``, ``width_90`` and ``classes_90`` to the scores of each target, as far as they are finite.

    ``coverage_90`` is None if intervals are infinite, since they cover every label.

    Args:
        result: scores of :func:`~graphslice.evaluation.metrics.scores`, modified in place.
        coverages: result of :func:`coverage` for intervals of :data:`COVERAGE_LEVEL`.
    """
    for name, values in coverages.items():
        finite: dict[str, float | None] = {key: value for key, value in values.items() if np.isfinite(value)}
        if np.isinf(values.get("width", 0.0)):
            finite["coverage"] = None
        result["targets"][name] |= {f"{key}_{COVERAGE_LEVEL}": value for key, value in finite.items()}


def _mean(values: np.ndarray, molecules: np.ndarray) -> float:
    """Mean over molecules of the mean within each; nan without values."""
    return float(mean_per_molecule(values, molecules).mean()) if len(values) else float("nan")
