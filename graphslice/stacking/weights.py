"""Stacking weights of a weighted ensemble, and the paired bootstrap comparison of two models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphslice.errors import InputError
from graphslice.model_averaging import simplex_grid, within_standard_errors

#: Grid steps of a weight from 0 to 1.
_STEPS = 10
#: With fewer molecules the weights are equal.
_MIN_MOLECULES = 5
_RESAMPLES = 1000
# Weights within this many standard errors of the best loss are averaged. Two here and one elsewhere: a validation set
# also selects the epoch of the network, so its validation loss is optimistic (docs/log.md).
_STANDARD_ERRORS = 2.0
# Number of molecules that the mean loss over targets counts as.
_SHARED_MOLECULES = 50
# A forest of some hundred trees predicts no smaller probability but 0, whose log loss would be infinite.
_SMALLEST_PROBABILITY = 1e-3


@dataclass(frozen=True)
class ErrorDifference:
    """Difference in error between two models on the same rows, with a 95% confidence interval.

    Attributes:
        metric: "MAE", "AUROC" or "log loss".
        a: metric of the first model.
        b: metric of the second model.
        difference: improvement of the first model over the second, in the units of the metric; negative if it is worse.
        low: lower bound of the 95% confidence interval of the difference.
        high: upper bound. Both are nan if there is only one molecule or one class.
    """

    metric: str
    a: float
    b: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class WeightLosses:
    """Losses of one target for each choice of the weights, of which :func:`choose_weights` takes the best.

    Attributes:
        grid: float64 ``[G, M]``, choices of the weights of M models: multiples of 0.1 that sum to 1.
        losses: float64 ``[G, K]``, loss of each choice on each of K molecules, relative to the best model alone; None
            with fewer than 5 molecules, or labels of one class.
    """

    grid: np.ndarray
    losses: np.ndarray | None

    @classmethod
    def of(
        cls,
        predictions: Sequence[np.ndarray],
        y: np.ndarray,
        kind: str,
        molecules: np.ndarray | None = None,
        squared: bool = False,
    ) -> WeightLosses:
        """Compute the losses on held-out rows; all molecules count equally.

        Args:
            predictions: for each of M models float64 ``[R, W]``, as from :meth:`graphslice.stacking.Trees.predict`.
            y: float64 ``[R]``, numbers or class indices. Rows with a missing (nan) label or prediction are ignored.
            kind: "regression" (absolute or squared error), "binary" or "multiclass" (log loss).
            molecules: int64 ``[R]``, molecule of each row; None if every row is another molecule.
            squared: squared errors for regression.

        Raises:
            InputError: if there are no predictions, or their rows do not match the labels.
        """
        y, stacked, molecule = _labelled_predictions(y, predictions, molecules)
        grid = np.array(list(simplex_grid(_STEPS, len(predictions)))) / _STEPS
        if len(np.unique(molecule)) < _MIN_MOLECULES or (kind != "regression" and len(np.unique(y)) < 2):
            return cls(grid, None)
        rows = [_row_losses(np.tensordot(weights, stacked, 1), y, kind) for weights in grid]
        sums = np.stack([np.bincount(molecule, loss**2 if squared else loss) for loss in rows])
        losses = sums / np.bincount(molecule)
        best_alone = losses[grid.max(axis=1) == 1].mean(axis=1).min()
        return cls(grid, losses / max(best_alone, 1e-300))


def choose_weights(targets: Sequence[WeightLosses]) -> np.ndarray:
    """Choose the stacking weights of M models for each of T targets.

    The weights of a target are the mean of all choices whose loss is within two standard errors of the best, paired
    over molecules: few molecules give nearly equal weights. With several targets, the mean loss over targets counts as
    much as 50 more molecules, so that a target with few labels has the weights of the others.

    Returns:
        float64 ``[M, T]``, not negative, summing to 1; equal if no target has losses.
    """
    grid = targets[0].grid
    known = [target.losses.mean(axis=1) for target in targets if target.losses is not None]
    if not known:
        return np.full((grid.shape[1], len(targets)), 1 / grid.shape[1])
    shared = np.repeat(np.mean(known, axis=0)[:, None], _SHARED_MOLECULES if len(targets) > 1 else 0, axis=1)
    columns = []
    for target in targets:
        losses = shared if target.losses is None else np.concatenate([target.losses, shared], axis=1)
        weights = grid[within_standard_errors(losses, _STANDARD_ERRORS)].mean(axis=0)
        columns.append(weights / weights.sum())
    return np.stack(columns, axis=1)


def at_least_as_good(weights: np.ndarray, loss: Callable[[np.ndarray], float]) -> np.ndarray:
    """Return the weights nearest to the given ones with which the stack is better than its best model alone.

    Args:
        weights: float64 ``[M]``.
        loss: loss of the predictions with given weights ``[M]``; lower is better, nan where it is undefined.

    Returns:
        float64 ``[M]``: the given weights, the nearest multiples of 0.1, or the best model alone if none are better.
    """
    alone = np.eye(len(weights))
    losses = np.array([loss(single) for single in alone])
    if np.isnan(losses).any():
        return weights
    grid = np.array(list(simplex_grid(_STEPS, len(weights)))) / _STEPS
    nearest = grid[np.argsort(((grid - weights) ** 2).sum(axis=1), kind="stable")]
    candidates = (choice for choice in (weights, *nearest) if loss(choice) < losses.min())
    return next(candidates, alone[losses.argmin()])


def prediction_loss(y: np.ndarray, predictions: np.ndarray, kind: str) -> float:
    """Compute the loss of a model: MAE (regression), minus AUROC (binary), or log loss (multiclass).

    Args:
        y, kind: as for :meth:`WeightLosses.of`.
        predictions: float64 ``[R, W]``.

    Returns:
        The loss, as used by :func:`compare_errors`; nan if undefined.
    """
    y, (known,), _ = _labelled_predictions(y, [predictions])
    if kind == "binary":
        return -_WeightedAuroc(y, known[:, 0])(np.ones(len(y)))
    return float(_row_losses(known, y, kind).mean()) if len(y) else float("nan")


def compare_errors(
    y: np.ndarray, a: np.ndarray, b: np.ndarray, kind: str, seed: int = 0, molecules: np.ndarray | None = None
) -> ErrorDifference:
    """Compare two models by a paired bootstrap over molecules (1,000 resamples).

    Args:
        y: as for :meth:`WeightLosses.of`.
        a: predictions of the first model, float64 ``[R, W]``.
        b: predictions of the second model, float64 ``[R, W]``.
        kind: "regression" (MAE), "binary" (AUROC) or "multiclass" (log loss).
        seed: random seed of the resamples.
        molecules: as for :meth:`WeightLosses.of`; all rows of a molecule are resampled as one unit.

    Raises:
        InputError: if rows do not match, or no row has a label and both predictions.
    """
    y, stacked, molecule = _labelled_predictions(y, [a, b], molecules)
    if len(y) == 0:
        raise InputError("two models cannot be compared: no row has a label and both predictions")
    random = np.random.default_rng(seed)
    size = len(np.unique(molecule))
    counts = (np.bincount(random.integers(size, size=size), minlength=size)[molecule] for _ in range(_RESAMPLES))
    metric = {"regression": "MAE", "binary": "AUROC", "multiclass": "log loss"}[kind]
    if kind == "binary":
        areas = [_WeightedAuroc(y, predictions[:, 0]) for predictions in stacked]
        first, second = (area(np.ones(len(y))) for area in areas)
        resampled = np.array([areas[0](count) - areas[1](count) for count in counts])
        difference = first - second
    else:
        losses = np.stack([_row_losses(predictions, y, kind) for predictions in stacked])
        first, second = losses.mean(axis=1)
        gains = losses[1] - losses[0]
        resampled = np.array([gains @ count / count.sum() for count in counts])
        difference = second - first
    resampled = resampled[~np.isnan(resampled)]  # resamples of one class have no AUROC
    low, high = np.quantile(resampled, [0.025, 0.975]) if size > 1 and len(resampled) else (np.nan, np.nan)
    return ErrorDifference(metric, float(first), float(second), float(difference), float(low), float(high))


def _labelled_predictions(
    y: np.ndarray, predictions: Sequence[np.ndarray], molecules: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, predictions ``[M, R, W]`` and molecules (numbered from 0) of the rows with label and predictions."""
    y = np.asarray(y, np.float64)
    if (
        not predictions
        or y.ndim != 1
        or any(np.shape(each) != (len(y), *np.shape(predictions[0])[1:]) for each in predictions)
    ):
        shapes = ", ".join(str(np.shape(each)) for each in predictions)
        raise InputError(
            f"predictions of shapes {shapes or 'none'} do not match {len(y)} labels: expected [rows, width] per model"
        )
    stacked = np.stack([np.asarray(each, np.float64).reshape(len(y), -1) for each in predictions])
    known = np.isfinite(y) & np.isfinite(stacked).all(axis=(0, 2))
    molecule = np.arange(len(y)) if molecules is None else np.asarray(molecules)
    if molecule.shape != y.shape:
        raise InputError(f"molecules of shape {molecule.shape} do not match {len(y)} labels: expected one per label")
    return y[known], stacked[:, known], np.unique(molecule[known], return_inverse=True)[1]


def _row_losses(predictions: np.ndarray, y: np.ndarray, kind: str) -> np.ndarray:
    """Absolute error, or log loss, of each row: ``[R]``."""
    if kind == "regression":
        return np.abs(predictions[:, 0] - y)
    if kind == "binary":
        true_class = np.where(y == 1, predictions[:, 0], 1 - predictions[:, 0])
    else:
        true_class = predictions[np.arange(len(y)), y.astype(np.int64)]
    return -np.log(np.clip(true_class, _SMALLEST_PROBABILITY, 1))


class _WeightedAuroc:
    """Area under the ROC curve (AUROC) of rows with counts; ties count half."""

    def __init__(self, y: np.ndarray, score: np.ndarray) -> None:
        self.positive = y == 1
        self.rank = np.unique(score, return_inverse=True)[1]

    def __call__(self, counts: np.ndarray) -> float:
        """Compute the AUROC; nan if a class is missing.

        Args:
            counts: ``[R]``, number of times that each row counts.
        """
        positive = np.bincount(self.rank, counts * self.positive)
        negative = np.bincount(self.rank, counts * ~self.positive)
        pairs = positive.sum() * negative.sum()
        return float(positive @ (negative.cumsum() - negative / 2) / pairs) if pairs else float("nan")
