"""The stack: weighted average of a network and base models of other kinds (forest, boosting, kernel).

The prediction is a weighted average; the weights of each target are chosen on held-out molecules. With few rows,
weights are averaged over all choices that are nearly as good as the best (model averaging).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, TypeAlias

import numpy as np

from graphslice.errors import InputError
from graphslice.stacking.kernel import KernelMachine, fit_kernel
from graphslice.stacking.trees import Trees, fit_boosting, fit_forest
from graphslice.tasks import (
    REGRESSION,
    Task,
    bounds_to_training_scale,
    each_target,
    is_bounded,
    transformed,
    transformed_back,
    within_bounds,
)

BaseModel: TypeAlias = Trees | KernelMachine

#: Keys of the network and of the stack, next to those of the base models, as in ``metrics.json``.
NETWORK, STACK = "network", "stack"
#: Names that are printed.
NAMES = {
    NETWORK: "network",
    "forest": "random forest",
    "boosting": "gradient boosting",
    "kernel": "kernel machine",
    STACK: "stack",
}
#: Below this weight of the network, predictions and their scores are mostly those of the base models.
SMALL_WEIGHT = 0.3
#: Fitting functions of the base models.
FITTERS: dict[str, Callable[..., BaseModel]] = {"forest": fit_forest, "boosting": fit_boosting, "kernel": fit_kernel}


@dataclass(frozen=True, eq=False)
class Stacking:
    """Base models of each target, and the weights of network and base models in the stacked prediction."""

    models: dict[str, list[BaseModel]]  # by name ("forest", "boosting", ...), of the T targets
    weights: np.ndarray  # float64 [1 + len(models), T], the network first; not negative, summing to 1 per target

    def base_predictions(self, network: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
        """Return the predictions that :func:`combine_predictions` averages, each ``float32 [R, W]``: of the network,
        and of the base models, zeros for one without weight for any target, which is not evaluated."""
        predictions = [network]
        for models, weights in zip(self.models.values(), self.weights[1:], strict=True):
            columns = [
                model.predict(x) if weight > 0 else np.zeros((len(x), model.width))
                for model, weight in zip(models, weights, strict=True)
            ]
            predictions.append(np.concatenate(columns, axis=1).astype(np.float32))
        return predictions

    def to_dict(self) -> dict[str, Any]:
        """Return the arrays by name, for :meth:`from_dict`."""
        models = {name: [model.to_arrays() for model in models] for name, models in self.models.items()}
        return {**models, "weights": self.weights}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], tasks: Sequence[Task]) -> Stacking:
        """Restore the output of :meth:`to_dict`; raises an InputError if an index in the arrays is out of bounds, or it
        is of other targets."""
        weights, widths = values["weights"], [task.outputs for task in tasks]
        models = {
            name: [KernelMachine.from_arrays(arrays) if "ptr" in arrays else Trees(**arrays) for arrays in of_name]
            for name, of_name in values.items()
            if name != "weights"
        }
        fits = all([model.width for model in of_name] == widths for of_name in models.values())
        if not fits or (weights.shape, weights.dtype) != ((1 + len(models), len(tasks)), np.float64):
            raise InputError("the base models are for other targets")
        return cls(models, weights)


def combine_predictions(
    predictions: Sequence[np.ndarray],  # of M models, each float32 [R, W]
    weights: np.ndarray,  # float64 [M, T], of each model for each target
    tasks: Sequence[Task],  # T targets with W columns in total
) -> np.ndarray:
    """Compute the weighted average ``float32 [R, W]`` of predictions, on the scale of the targets' transforms."""
    combined = np.zeros(np.shape(predictions[0]))
    for t, task, where in each_target(tasks):
        for prediction, weight in zip(predictions, weights[:, t], strict=True):
            if weight > 0:
                combined[:, where] += weight * transformed(prediction[:, where].astype(np.float64), task)
        combined[:, where] = transformed_back(combined[:, where], task)
    return combined.astype(np.float32)


def weighted_std(predictions: Sequence[np.ndarray], weights: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    """Compute the weighted standard deviation of predictions, as for :func:`combine_predictions`: ``float32 [R, T]``,
    on the scale of the transforms; 0 for classification."""
    std = np.zeros((len(predictions[0]), len(tasks)), np.float32)
    for t, task, where in each_target(tasks):
        models = np.flatnonzero(weights[:, t] > 0).tolist()
        if not task.classes and len(models) > 1:
            values = np.stack([transformed(predictions[m][:, where].astype(np.float64), task)[:, 0] for m in models])
            model_weights = weights[models, t][:, None]
            std[:, t] = np.sqrt((model_weights * (values - (model_weights * values).sum(axis=0)) ** 2).sum(axis=0))
    return std


def fit_base_models(
    x: np.ndarray,  # float32 [R, F], inputs of the training molecules
    labels: np.ndarray,  # float64 [R, T], in the units of the dataset, or class indices; nan where missing
    tasks: Sequence[Task],
    seed: int,
    weights: np.ndarray | None = None,  # float64 [R], of the rows
) -> dict[str, list[BaseModel]]:
    """Fit the base models of the T targets, by name as in :data:`FITTERS`; without a label, a constant prediction."""
    unknown = np.isnan(labels).all(axis=0)
    labels = np.where(unknown, 0.0, labels)
    return {
        name: [fit(x, labels[:, t], task.kind, len(task.classes), seed, weights) for t, task in enumerate(tasks)]
        for name, fit in FITTERS.items()
    }


def predict_base_models(models: Sequence[BaseModel], x: np.ndarray) -> np.ndarray:
    """Predict all targets, each with its base model: ``float32 [R, W]``."""
    return np.concatenate([model.predict(x) for model in models], axis=1).astype(np.float32)


def fit_weights(
    predictions: Sequence[np.ndarray],  # of each model, float32 [R, W]
    labels: np.ndarray,  # float64 [R, T], nan where missing
    tasks: Sequence[Task],  # numbers are compared on the scale of their transforms
    molecules: np.ndarray | None = None,  # int64 [R], molecule of each row; None: every row another
    squared: bool = False,  # choose by squared instead of absolute errors of regression
    bounds: np.ndarray | None = None,  # float64 [R, T, 2], of labels that are nan
    row_weights: np.ndarray | None = None,  # float64 [R]
) -> np.ndarray:
    """Choose the stacking weights of M models for each target on held-out molecules: ``float64 [M, T]``."""

    def losses(t: int, task: Task, where: slice) -> HeldOutLosses:
        scaled = [transformed(each[:, where].astype(np.float64), task) for each in predictions]
        y, limits = transformed(labels[:, t], task), None
        if bounds is not None and task.kind == REGRESSION:
            limits = bounds_to_training_scale(bounds[:, t : t + 1], [task])[:, 0]
        return HeldOutLosses(scaled, y, task.kind, molecules, squared, limits, row_weights)

    return choose_weights([losses(*each) for each in each_target(tasks)])


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
    """Losses of the weighted averages of M models on held-out molecules, for one target."""

    def __init__(
        self,
        predictions: Sequence[np.ndarray],  # of M models, float64 [R, W], as from Trees.predict
        y: np.ndarray,  # float64 [R], numbers or class indices; rows with a nan label or prediction are ignored
        kind: str,  # "regression" (absolute or squared error), "binary" or "multiclass" (log loss)
        molecules: np.ndarray | None = None,  # int64 [R], which all count equally; None: every row another
        squared: bool = False,  # squared errors for regression
        bounds: np.ndarray | None = None,  # float64 [R, 2], of labels that are nan (graphslice.tasks)
        weights: np.ndarray | None = None,  # float64 [R], above 0; a molecule has their mean
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
    """Choose the stacking weights of M models for each of T targets: ``float64 [M, T]``; equal if no target has losses.

    The weights of a target are the mean of all choices (multiples of 0.1) whose loss is within two standard errors of
    the best, paired over molecules: few molecules give nearly equal weights. The mean loss over several targets counts
    as much as 50 more molecules, with losses relative to the best model of each target, at most 1.5. If a single model
    has less loss than these weights, the nearest weights with less loss than that model are taken, or that model.
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


def simplex_grid(steps: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to divide a number of steps among a number of parts."""
    end = steps + parts - 1
    for bars in combinations(range(end), parts - 1):
        yield tuple(after - before - 1 for before, after in pairwise((-1, *bars, end)))


def within_standard_errors(losses: np.ndarray, errors: float = 1.0) -> np.ndarray:
    """Select the choices whose mean loss is within some standard errors of the best, paired over at least two rows:
    losses ``float64 [C, R]`` to ``bool [C]``, at least one True."""
    excess = losses - losses[losses.mean(axis=1).argmin()]
    return excess.mean(axis=1) <= errors * excess.std(axis=1, ddof=1) / np.sqrt(losses.shape[1])
