"""Stacking weights of a weighted ensemble."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.censored import is_bounded, within_bounds
from graphslice.model_averaging import simplex_grid, within_standard_errors

#: Grid steps of a weight from 0 to 1.
_STEPS = 10
#: With fewer molecules the weights are equal.
_MIN_MOLECULES = 5
# Weights within this many standard errors of the best loss are averaged. Two here and one elsewhere: a validation set
# also selects the epoch of the network, so its validation loss is optimistic (docs/log.md).
_STANDARD_ERRORS = 2.0
# Number of molecules that the mean loss over targets counts as.
_SHARED_MOLECULES = 50
# Limit of a target's loss, relative to that of its best model, in the mean over targets.
_MAX_RATIO = 1.5
# A forest of some hundred trees predicts no smaller probability but 0, whose log loss would be infinite.
_SMALLEST_PROBABILITY = 1e-3


class HeldOutLosses:
    """Losses of the weighted averages of M models on held-out molecules, for one target.

    Args:
        predictions: for each of M models float64 ``[R, W]``, as from :meth:`graphslice.stacking.Trees.predict`.
        y: float64 ``[R]``, numbers or class indices. Rows with a missing (nan) label or prediction are ignored.
        kind: "regression" (absolute or squared error), "binary" or "multiclass" (log loss).
        molecules: int64 ``[R]``, molecule of each row, which all count equally; None if every row is another molecule.
        squared: squared errors for regression.
        bounds: float64 ``[R, 2]``, bounds of labels that are nan (:mod:`graphslice.censored`); None if there are none.
        weights: float64 ``[R]``, weight of each row, above 0; None if all are equal. A molecule has their mean.
    """

    def __init__(
        self,
        predictions: Sequence[np.ndarray],
        y: np.ndarray,
        kind: str,
        molecules: np.ndarray | None = None,
        squared: bool = False,
        bounds: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> None:
        stacked = np.stack(predictions)
        bounded = False if bounds is None else is_bounded(bounds)
        known = (np.isfinite(y) | (np.isnan(y) & bounded)) & np.isfinite(stacked).all(axis=(0, 2))
        molecules = np.arange(len(y)) if molecules is None else molecules
        self.predictions, self.y, self.kind, self.squared = stacked[:, known], y[known], kind, squared
        self.molecules = np.unique(molecules[known], return_inverse=True)[1]
        self.bounds, self.weights = (None if each is None else each[known] for each in (bounds, weights))

    @property
    def is_known(self) -> bool:
        """True with at least 5 molecules, and labels of more than one class."""
        classes = self.kind == "regression" or len(np.unique(self.y)) > 1
        return classes and self.molecules.max(initial=-1) + 1 >= _MIN_MOLECULES

    def of(self, weights: np.ndarray) -> np.ndarray:
        """Return losses of the molecules with the weights float64 ``[M]``: float64 ``[K]``, whose mean is the loss."""
        predicted = np.tensordot(weights, self.predictions, 1)
        y = self.y if self.bounds is None else within_bounds(self.y, self.bounds, predicted[:, 0])
        losses = _row_losses(predicted, y, self.kind)
        losses = losses**2 if self.squared else losses
        rows = np.bincount(self.molecules)
        if self.weights is None:
            return np.bincount(self.molecules, losses) / rows
        means = np.bincount(self.molecules, self.weights) / rows
        return np.bincount(self.molecules, losses * self.weights) / rows / means.mean()


def choose_weights(targets: Sequence[HeldOutLosses]) -> np.ndarray:
    """Choose the stacking weights of M models for each of T targets.

    The weights of a target are the mean of all choices (multiples of 0.1) whose loss is within two standard errors of
    the best, paired over molecules: few molecules give nearly equal weights. With several targets, the mean loss over
    targets, relative to the best model of each (at most 1.5 times it, so that a target that one model predicts almost
    exactly does not decide for the others), counts as much as 50 more molecules, so that a target with few labels has
    nearly the weights of the others; one with too few has their mean. If one of the models alone has less loss than
    these weights, the nearest weights with less loss than that model are taken, or that model alone.

    Returns:
        float64 ``[M, T]``, not negative, summing to 1; equal if no target has losses.
    """
    models = len(targets[0].predictions)
    grid = np.array(list(simplex_grid(_STEPS, models))) / _STEPS
    alone = grid.max(axis=1) == 1
    losses = [np.stack([target.of(choice) for choice in grid]) if target.is_known else None for target in targets]
    relative = [None if each is None else _relative(each, alone) for each in losses]
    known = [np.minimum(each.mean(axis=1), _MAX_RATIO) for each in relative if each is not None]
    if all(each is None for each in losses):
        return np.full((models, len(targets)), 1 / models)
    shared = np.repeat(np.mean(known or [np.zeros(len(grid))], axis=0)[:, None], _SHARED_MOLECULES, axis=1)
    columns = np.full((models, len(targets)), np.nan)
    for t, (target, own, compared) in enumerate(zip(targets, losses, relative, strict=True)):
        if own is None:
            continue
        if compared is None:
            compared = shared
        elif len(targets) > 1:
            compared = np.concatenate([compared, shared], axis=1)
        weights = grid[within_standard_errors(compared, _STANDARD_ERRORS)].mean(axis=0)
        weights /= weights.sum()
        means = own.mean(axis=1)
        best = means[alone].min()
        if target.of(weights).mean() >= best:
            better = grid[means < best] if (means < best).any() else grid[alone][[means[alone].argmin()]]
            weights = better[((better - weights) ** 2).sum(axis=1).argmin()]
        columns[:, t] = weights
    unknown = np.isnan(columns[0])
    columns[:, unknown] = np.nanmean(columns, axis=1, keepdims=True)
    return columns


def _relative(losses: np.ndarray, alone: np.ndarray) -> np.ndarray | None:
    """Divide losses by that of the best single model; None if it has none."""
    best = losses[alone].mean(axis=1).min()
    return losses / best if best > 0 else None


def _row_losses(predictions: np.ndarray, y: np.ndarray, kind: str) -> np.ndarray:
    """Absolute error, or log loss, of each row: ``[R]``."""
    if kind == "regression":
        return np.abs(predictions[:, 0] - y)
    if kind == "binary":
        true_class = np.where(y == 1, predictions[:, 0], 1 - predictions[:, 0])
    else:
        true_class = predictions[np.arange(len(y)), y.astype(np.int64)]
    return -np.log(np.clip(true_class, _SMALLEST_PROBABILITY, 1))
