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
    """Compute coverage and mean width, or size of sets, by target; nan without labels ``float64 [R, T]``. On a
    logarithmic scale ``factor`` is the geometric mean of upper over lower bound. Atoms and bonds are averaged within
    ``molecules int64 [R]`` first, which is the coverage that the intervals guarantee."""
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
            if task.transform == "log":
                with np.errstate(divide="ignore", invalid="ignore"):  # infinite intervals begin at 0
                    logs = np.log(high[known]) - np.log(low[known])
                results[task.name]["factor"] = float(np.exp(_mean(logs, groups)))
    return results


def add_coverage(result: dict, coverages: dict[str, dict[str, float]]) -> None:
    """Add finite ``coverage_90``, ``width_90``, ``classes_90``; the first is None if infinite intervals cover all."""
    for name, values in coverages.items():
        finite: dict[str, float | None] = {key: value for key, value in values.items() if np.isfinite(value)}
        if np.isinf(values.get("width", 0.0)):
            finite["coverage"] = None
        result["targets"][name] |= {f"{key}_{COVERAGE_LEVEL}": value for key, value in finite.items()}


def _mean(values: np.ndarray, molecules: np.ndarray) -> float:
    """Mean over molecules of the mean within each; nan without values."""
    return float(mean_per_molecule(values, molecules).mean()) if len(values) else float("nan")
