"""Stacking: weighted ensemble of a network, a random forest and gradient boosting.

The prediction is a weighted average of the three; the weights of each target are chosen on the validation set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphslice.errors import InputError
from graphslice.stacking.fit_trees import fit_boosting, fit_forest
from graphslice.stacking.trees import Trees
from graphslice.stacking.weights import fit_stacking_weights
from graphslice.tasks import Task, each_target

#: Descriptors that the tree ensembles use as features.
TREE_DESCRIPTORS = ("morgan", "rdkit2d")
#: Fitting functions of the tree ensembles, by the names shown to users.
FITTERS = {"forest": fit_forest, "boosting": fit_boosting}


@dataclass(frozen=True, eq=False)
class Stacking:
    """Tree ensembles of each target, and the weights of network and tree ensembles in the stacked prediction.

    Attributes:
        kinds: descriptors that the tree ensembles use as features, in order.
        trees: by name ("forest", "boosting") the tree ensembles of the T targets.
        weights: ``float64 [1 + len(trees), T]``: weight of the network, then of each entry of ``trees`` in its order;
            not negative, summing to 1 for each target.

    Raises:
        InputError: if shapes do not match or the weights are invalid.
    """

    kinds: tuple[str, ...]
    trees: dict[str, list[Trees]]
    weights: np.ndarray

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights)
        shape = (1 + len(self.trees), weights.shape[-1] if weights.ndim else 0)
        if weights.shape != shape or any(len(trees) != shape[1] for trees in self.trees.values()):
            raise InputError("the numbers of tree ensembles and stacking weights differ: train the model again")
        if not (np.isfinite(weights).all() and (weights >= 0).all() and np.allclose(weights.sum(axis=0), 1)):
            raise InputError(
                "the stacking weights of network and tree ensembles do not sum to 1: train the model again"
            )

    def fits(self, tasks: Sequence[Task]) -> bool:
        """True if the descriptors are known and the tree ensembles match the targets."""
        valid_kinds = len({*self.kinds}) == len(self.kinds) > 0 and {*self.kinds} <= {*TREE_DESCRIPTORS}
        return (
            valid_kinds
            and self.weights.shape[1] == len(tasks)
            and all(
                predictor.width == task.outputs and predictor.of_numbers == (not task.classes)
                for trees in self.trees.values()
                for predictor, task in zip(trees, tasks, strict=True)
            )
        )

    def base_predictions(self, network: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
        """Return the predictions that :func:`combine_predictions` averages: of the network and of each tree ensemble.

        Args:
            network: predictions of the network, ``float32 [R, W]``.
            x: descriptors, ``float32 [R, F]``.

        Returns:
            ``float32 [R, W]`` for each model, in the order of the weights.
        """
        return [network, *(predict_trees(trees, x) for trees in self.trees.values())]

    def to_dict(self) -> dict[str, Any]:
        """Return names and arrays for a checkpoint."""
        trees = {
            name: [ensemble.to_arrays() for ensemble in target_ensembles]
            for name, target_ensembles in self.trees.items()
        }
        return {"kinds": list(self.kinds), "trees": trees, "weights": self.weights}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Stacking:
        """Restore the output of :meth:`to_dict`.

        Raises:
            InputError, KeyError, TypeError, AttributeError: if ``values`` is not such an output.
        """
        if set(values) != {"kinds", "trees", "weights"}:
            raise KeyError("kinds, trees and weights")
        trees = {name: [Trees.from_arrays(arrays) for arrays in values["trees"][name]] for name in values["trees"]}
        return cls(tuple(values["kinds"]), trees, np.asarray(values["weights"], np.float64))


def _to_training_scale(predictions: np.ndarray, task: Task) -> np.ndarray:
    """Logarithm of predictions of log-transformed targets, else the predictions: ``float64 [R, W]``."""
    if task.transform != "log":
        return predictions
    with np.errstate(divide="ignore"):
        return np.log(predictions)


def combine_predictions(predictions: Sequence[np.ndarray], weights: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    """Compute the weighted average of the predictions of several models, of logarithms for log-transformed targets.

    Args:
        predictions: predictions of M models, each ``float32 [R, W]``.
        weights: ``float64 [M, T]``, weight of each model for each target.
        tasks: T targets with W columns in total.

    Returns:
        ``float32 [R, W]``.
    """
    combined = np.zeros(np.shape(predictions[0]))
    for t, task, where in each_target(tasks):
        for prediction, weight in zip(predictions, weights[:, t], strict=True):
            if weight > 0:
                combined[:, where] += weight * _to_training_scale(prediction[:, where].astype(np.float64), task)
        if task.transform == "log":
            combined[:, where] = np.exp(combined[:, where])
    return combined.astype(np.float32)


def weighted_std(predictions: Sequence[np.ndarray], weights: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    """Compute the weighted standard deviation of the predictions of several models.

    Args:
        predictions, weights, tasks: as for :func:`combine_predictions`.

    Returns:
        ``float32 [R, T]``: of logarithms for log-transformed targets; 0 for classification.
    """
    std = np.zeros((len(predictions[0]), len(tasks)), np.float32)
    for t, task, where in each_target(tasks):
        models = np.flatnonzero(weights[:, t] > 0).tolist()
        if not task.classes and len(models) > 1:
            values = np.stack(
                [_to_training_scale(predictions[m][:, where].astype(np.float64), task)[:, 0] for m in models]
            )
            model_weights = weights[models, t][:, None]
            std[:, t] = np.sqrt((model_weights * (values - (model_weights * values).sum(axis=0)) ** 2).sum(axis=0))
    return std


def fit_trees(
    x: np.ndarray, labels: np.ndarray, tasks: Sequence[Task], seed: int, threads: int
) -> dict[str, list[Trees]]:
    """Fit a random forest and gradient boosting for each target.

    Args:
        x: descriptors of the training molecules, ``float32 [R, F]``.
        labels: ``float64 [R, T]`` in the units of the dataset, or class indices; nan where missing.
        tasks: T targets.
        seed: random seed of the tree ensembles.
        threads: number of threads.

    Returns:
        Tree ensembles of the T targets, by the names of :data:`FITTERS`.
    """
    return {
        name: [fit(x, labels[:, t], task.kind, len(task.classes), seed, threads) for t, task in enumerate(tasks)]
        for name, fit in FITTERS.items()
    }


def predict_trees(trees: Sequence[Trees], x: np.ndarray) -> np.ndarray:
    """Predict all targets, each with its tree ensemble: ``float32 [R, W]``."""
    return np.concatenate([ensemble.predict(x) for ensemble in trees], axis=1).astype(np.float32)


def fit_target_weights(
    predictions: Sequence[np.ndarray], labels: np.ndarray, tasks: Sequence[Task], molecules: np.ndarray | None = None
) -> np.ndarray:
    """Choose the stacking weights of M models for each target on the validation set.

    Args:
        predictions: predictions of each model, ``float32 [R, W]``.
        labels: ``float64 [R, T]``, nan where missing.
        tasks: T targets.
        molecules: ``int64 [R]``, molecule of each row; None if every row is another molecule.

    Returns:
        ``float64 [M, T]``.
    """

    def fit_weights(t: int, task: Task, where: slice) -> np.ndarray:
        scaled = [_to_training_scale(each[:, where], task) for each in predictions]
        return fit_stacking_weights(scaled, _to_training_scale(labels[:, t], task), task.kind, molecules)

    weights = [fit_weights(*each) for each in each_target(tasks)]
    return np.stack(weights, axis=1)
