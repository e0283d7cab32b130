"""How wrong the answer for each molecule is, and how unsure: one number each, whatever is asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.report.svg import MINUS
from graphslice.tasks import BINARY, REGRESSION, Task, each_target

# Numbers learned as logarithms are kept so far from 0 where their logarithm is taken.
_MIN_VALUE = 1e-30


def errors_by_target(tasks: Sequence[Task], true: np.ndarray, values: np.ndarray) -> np.ndarray:
    """``float64 [R, T]``: of a number how far the answer is away, in its unit, or in decades where its logarithm is
    learned; of classes 1 minus the probability of the true one. nan where the label is unknown.

    Args:
        tasks: T targets.
        true: ``float64 [R, T]``, nan where unknown; places of classes.
        values: ``float [R, W]``.
    """
    found = np.full(true.shape, np.nan)
    for t, task, where in each_target(tasks):
        known = np.flatnonzero(~np.isnan(true[:, t]))
        y, given = true[known, t], values[known, where].astype(np.float64)
        if task.kind == REGRESSION:
            decades = task.transform == "log"
            found[known, t] = np.abs(_log10(given[:, 0]) - _log10(y) if decades else given[:, 0] - y)
        elif task.kind == BINARY:
            found[known, t] = np.abs(y - given[:, 0])
        else:
            found[known, t] = 1 - given[np.arange(len(y)), y.astype(int)]
    return found


def std_by_target(tasks: Sequence[Task], values: np.ndarray, std: np.ndarray) -> np.ndarray:
    """``float64 [R, T]``: the deviation of the models for each target, in the unit of :func:`errors_by_target`; of
    several classes that of the probability they disagree on most.

    Args:
        tasks: T targets.
        values, spread: ``float [R, W]``.
    """
    found = np.empty((len(values), len(tasks)))
    for t, task, where in each_target(tasks):
        found[:, t] = std[:, where].max(axis=1)
        if task.transform == "log":
            found[:, t] /= np.maximum(values[:, where.start], _MIN_VALUE) * np.log(10)
    return found


def error_scales(tasks: Sequence[Task], labels: np.ndarray) -> np.ndarray:
    """``float64 [T]``: what the errors of several targets are divided by before their mean is taken: the standard
    deviation of the labels of a number, in the same unit; 1 of classes.

    Args:
        tasks: T targets.
        labels: ``float64 [R, T]`` of the molecules for training, nan where unknown.
    """
    found = np.ones(len(tasks))
    for t, task in enumerate(tasks):
        known = labels[~np.isnan(labels[:, t]), t]
        if task.kind == REGRESSION and len(known) > 1:
            found[t] = np.std(_log10(known) if task.transform == "log" else known) or 1.0
    return found


def combine_targets(by_target: np.ndarray, divided_by: np.ndarray) -> np.ndarray:
    """``float64 [R]``: of one target its numbers as they are, of several the mean of the scaled ones that are known.

    Args:
        by_target: ``float64 [R, T]``, nan where unknown.
        divided_by: ``float64 [T]`` of :func:`error_scales`.
    """
    if by_target.shape[1] == 1:
        return by_target[:, 0]
    scaled = by_target / divided_by
    known = ~np.isnan(scaled)
    with np.errstate(invalid="ignore"):
        return np.where(known, scaled, 0).sum(axis=1) / np.where(known.any(axis=1), known.sum(axis=1), np.nan)


def error_name(tasks: Sequence[Task]) -> str:
    """What :func:`combine_targets` gives of :func:`errors_by_target`, for the label of an axis."""
    if len(tasks) > 1:
        return "error, mean of the targets"
    (task,) = tasks
    if task.kind != REGRESSION:
        return f"1 {MINUS} P(true class)"
    return "absolute error in decades" if task.transform == "log" else "absolute error"


def describe_error(tasks: Sequence[Task]) -> str:
    """The same, in a sentence."""
    said = {
        "classes": "1 minus the probability that its true class was given",
        "log": "how many powers of ten lie between its predicted and its true value",
        "none": "the absolute difference of its predicted and its true value, in the unit of the table",
    }
    kinds = {"classes" if task.classes else task.transform for task in tasks}
    if len(tasks) == 1:
        return f"The error of a molecule is {said[kinds.pop()]}."
    parts = [
        f"{said[kind]}{'' if kind == 'classes' else ', over the deviation of the labels'}" for kind in sorted(kinds)
    ]
    return f"The error of a molecule is the mean over its targets of {'; or '.join(parts)}."


def _log10(values: np.ndarray) -> np.ndarray:
    return np.log10(np.maximum(values, _MIN_VALUE))
