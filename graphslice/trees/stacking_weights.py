"""The weights of several models in one answer, and whether one is better than another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphslice.errors import InputError
from graphslice.model_averaging import simplex_grid, within_standard_errors

#: Steps of a weight from 0 to 1.
_STEPS = 10
#: With fewer molecules nothing is chosen.
_MIN_MOLECULES = 5
_RESAMPLES = 1000
# Weights that are worse by no more standard errors are as good as the best. Not one, as elsewhere: the rows have chosen
# the network's epoch too, so it looks better on them than it is (docs/log.md).
_STANDARD_ERRORS = 2.0
# A forest of some hundred trees says no smaller probability but 0, which one row would make infinitely bad.
_SMALLEST_PROBABILITY = 1e-3


@dataclass(frozen=True)
class ErrorDifference:
    """How much better one model is than another, on the same rows.

    Attributes:
        metric: "MAE", "AUROC" or "log loss".
        a: the metric of the first model.
        b: that of the second.
        difference: by how much the first is better, in the unit of the metric; negative where it is worse.
        low: where its 95% interval begins.
        high: where it ends. Both are nan where one molecule, or one class, leaves nothing to resample.
    """

    metric: str
    a: float
    b: float
    difference: float
    low: float
    high: float


def fit_stacking_weights(
    answers: Sequence[np.ndarray], y: np.ndarray, kind: str, molecules: np.ndarray | None = None
) -> np.ndarray:
    """The weights with which the models' answers are added up, chosen on validation rows.

    Not the best weighting alone: the mean of all on a grid (steps of 0.1) whose loss lies within two standard errors of
    the best, paired over the molecules, each of which counts as one. So few molecules give nearly equal weights.

    Args:
        answers: for each of M models float64 ``[R, W]``, as :meth:`graphslice.trees.Trees.predict` gives them.
        y: float64 ``[R]``, numbers or indices of classes; nan where unknown: left out, as are rows without an answer.
        kind: "regression" (by MAE), "binary" or "multiclass" (by log loss).
        molecules: int64 ``[R]``, which molecule each row is of; each of another one when not given.

    Returns:
        float64 ``[M]``, none negative, their sum 1; equal with fewer than 5 molecules, or rows of one class.

    Raises:
        InputError: if the answers are none, or not of the same rows.
    """
    y, stacked, of = _labelled_predictions(y, answers, molecules)
    models = len(answers)
    equal = np.full(models, 1 / models)
    if len(np.unique(of)) < _MIN_MOLECULES or (kind != "regression" and len(np.unique(y)) < 2):
        return equal
    grid = np.array(list(simplex_grid(_STEPS, models))) / _STEPS
    losses = np.stack([_row_losses(np.tensordot(weights, stacked, 1), y, kind) for weights in grid])
    losses = np.stack([np.bincount(of, each) for each in losses]) / np.bincount(of)
    weights = grid[within_standard_errors(losses, _STANDARD_ERRORS)].mean(axis=0)
    return weights / weights.sum()


def prediction_loss(y: np.ndarray, answers: np.ndarray, kind: str) -> float:
    """MAE, minus AUROC, or log loss, as :func:`compare_errors` takes them; nan where it is not defined.

    Args:
        y, kind: as in :func:`fit_stacking_weights`.
        answers: float64 ``[R, W]``.
    """
    y, (answer,), _ = _labelled_predictions(y, [answers])
    if kind == "binary":
        return -_WeightedAuroc(y, answer[:, 0])(np.ones(len(y)))
    return float(_row_losses(answer, y, kind).mean()) if len(y) else float("nan")


def compare_errors(
    y: np.ndarray, a: np.ndarray, b: np.ndarray, kind: str, seed: int = 0, molecules: np.ndarray | None = None
) -> ErrorDifference:
    """How much better the answers ``a`` are than ``b``: paired bootstrap over the molecules, 1,000 resamples.

    Args:
        y: as in :func:`fit_stacking_weights`.
        a: float64 ``[R, W]``.
        b: as ``a``, of the other model.
        kind: "regression" (MAE), "binary" (AUROC) or "multiclass" (log loss).
        seed: of the resamples.
        molecules: as in :func:`fit_stacking_weights`; what is measured of one is drawn together.

    Raises:
        InputError: if the answers are not of the same rows, or no row has a label.
    """
    y, stacked, of = _labelled_predictions(y, [a, b], molecules)
    if len(y) == 0:
        raise InputError("two models cannot be compared: no row has a label and both answers")
    random = np.random.default_rng(seed)
    drawn = len(np.unique(of))
    counts = (np.bincount(random.integers(drawn, size=drawn), minlength=drawn)[of] for _ in range(_RESAMPLES))
    metric = {"regression": "MAE", "binary": "AUROC", "multiclass": "log loss"}[kind]
    if kind == "binary":
        areas = [_WeightedAuroc(y, answer[:, 0]) for answer in stacked]
        first, second = (area(np.ones(len(y))) for area in areas)
        resampled = np.array([areas[0](count) - areas[1](count) for count in counts])
        difference = first - second
    else:
        losses = np.stack([_row_losses(answer, y, kind) for answer in stacked])
        first, second = losses.mean(axis=1)
        gains = losses[1] - losses[0]
        resampled = np.array([gains @ count / count.sum() for count in counts])
        difference = second - first
    resampled = resampled[~np.isnan(resampled)]  # resamples of one class have no AUROC
    low, high = np.quantile(resampled, [0.025, 0.975]) if drawn > 1 and len(resampled) else (np.nan, np.nan)
    return ErrorDifference(metric, float(first), float(second), float(difference), float(low), float(high))


def _labelled_predictions(
    y: np.ndarray, answers: Sequence[np.ndarray], molecules: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, answers ``[M, R, W]``, and the molecules counted from 0, of the rows that have labels and answers."""
    y = np.asarray(y, np.float64)
    if not answers or y.ndim != 1 or any(np.shape(answer) != (len(y), *np.shape(answers[0])[1:]) for answer in answers):
        shapes = ", ".join(str(np.shape(answer)) for answer in answers)
        raise InputError(
            f"answers of shapes {shapes or 'none'} do not go with {len(y)} labels: give [rows, width] each"
        )
    stacked = np.stack([np.asarray(answer, np.float64).reshape(len(y), -1) for answer in answers])
    known = np.isfinite(y) & np.isfinite(stacked).all(axis=(0, 2))
    of = np.arange(len(y)) if molecules is None else np.asarray(molecules)
    if of.shape != y.shape:
        raise InputError(f"molecules of shape {of.shape} do not go with {len(y)} labels: give one for each")
    return y[known], stacked[:, known], np.unique(of[known], return_inverse=True)[1]


def _row_losses(answer: np.ndarray, y: np.ndarray, kind: str) -> np.ndarray:
    """``[R]``: the absolute error, or minus the logarithm of the probability of the class that is true."""
    if kind == "regression":
        return np.abs(answer[:, 0] - y)
    if kind == "binary":
        right = np.where(y == 1, answer[:, 0], 1 - answer[:, 0])
    else:
        right = answer[np.arange(len(y)), y.astype(np.int64)]
    return -np.log(np.clip(right, _SMALLEST_PROBABILITY, 1))


class _WeightedAuroc:
    """The area under the ROC curve of rows taken several times each; ties count half."""

    def __init__(self, y: np.ndarray, score: np.ndarray) -> None:
        self.positive = y == 1
        self.place = np.unique(score, return_inverse=True)[1]

    def __call__(self, counts: np.ndarray) -> float:
        """nan where a class is missing.

        Args:
            counts: ``[R]``, how often each row is taken.
        """
        positive = np.bincount(self.place, counts * self.positive)
        negative = np.bincount(self.place, counts * ~self.positive)
        pairs = positive.sum() * negative.sum()
        return float(positive @ (negative.cumsum() - negative / 2) / pairs) if pairs else float("nan")
