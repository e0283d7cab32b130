"""Error and uncertainty of the prediction for each molecule, as one number per molecule for any set of targets.

Labels ``true`` are ``float64 [R, T]`` for R molecules and T tasks, nan where unknown, and class indices for
classification; predictions ``values`` and their standard deviations ``std`` over the models are ``float [R, W]``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from graphslice.evaluation.format_scores import MINUS
from graphslice.tasks import BINARY, REGRESSION, Task, each_target

# Lower bound of values before their logarithm is taken.
_MIN_VALUE = 1e-30


def errors_by_target(tasks: Sequence[Task], true: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Compute the error of each prediction as :func:`describe_error` says, ``float64 [R, T]``; nan without a label."""
    errors = np.full(true.shape, np.nan)
    for t, task, where in each_target(tasks):
        known = np.flatnonzero(~np.isnan(true[:, t]))
        y, predicted = true[known, t], values[known, where].astype(np.float64)
        if task.kind == REGRESSION:
            decades = task.transform == "log"
            errors[known, t] = np.abs(_log10(predicted[:, 0]) - _log10(y) if decades else predicted[:, 0] - y)
        elif task.kind == BINARY:
            errors[known, t] = np.abs(y - predicted[:, 0])
        else:
            errors[known, t] = 1 - predicted[np.arange(len(y)), y.astype(int)]
    return errors


def std_by_target(tasks: Sequence[Task], values: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Compute the standard deviation for each target, ``float64 [R, T]``; of several classes, the largest one."""
    by_target = np.empty((len(values), len(tasks)))
    for t, task, where in each_target(tasks):
        by_target[:, t] = std[:, where].max(axis=1)
        if task.transform == "log":
            by_target[:, t] /= np.maximum(values[:, where.start], _MIN_VALUE) * np.log(10)
    return by_target


def error_scales(tasks: Sequence[Task], labels: np.ndarray) -> np.ndarray:
    """Compute the scales of the errors of several targets, ``float64 [T]``: the scatter of labels; 1 for classes."""
    scales = np.ones(len(tasks))
    for t, task in enumerate(tasks if len(tasks) > 1 else ()):
        known = labels[~np.isnan(labels[:, t]), t]
        if task.kind == REGRESSION and len(known) > 1:
            scales[t] = np.std(_log10(known) if task.transform == "log" else known) or 1.0
    return scales


def mean_of_known(by_target: np.ndarray) -> np.ndarray:
    """Average the known values over the targets: ``float64 [R, T]`` to ``float64 [R]``, nan where none is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows without any
        return np.nanmean(by_target, axis=1)


def error_name(tasks: Sequence[Task]) -> str:
    """Return the axis label of the combined error."""
    if len(tasks) > 1:
        return "error, mean of the targets"
    (task,) = tasks
    if task.kind != REGRESSION:
        return f"1 {MINUS} P(true class)"
    return "absolute error in decades" if task.transform == "log" else "absolute error"


def describe_error(tasks: Sequence[Task]) -> str:
    """Describe the combined error in one sentence."""
    definitions = {
        "classes": "1 minus the predicted probability of the true class",
        "log": "the absolute difference of log10 of the predicted and true values",
        "none": "the absolute difference of the predicted and true values in the unit of the dataset",
    }
    kinds = {"classes" if task.classes else "log" if task.transform == "log" else "none" for task in tasks}
    if len(tasks) == 1:
        return f"The error of a molecule is {definitions[kinds.pop()]}."
    scale = ", divided by the standard deviation of the labels"
    names = {"classes": "class", "log": "log-transformed", "none": "regression"}
    parts = [f"for {names[kind]} targets, {definitions[kind]}{scale * (kind != 'classes')}" for kind in sorted(kinds)]
    return f"The error of a molecule is the mean over its targets: {'; '.join(parts)}."


def _log10(values: np.ndarray) -> np.ndarray:
    return np.log10(np.maximum(values, _MIN_VALUE))
