"""Stacking: weighted ensemble of a network with base models of other kinds (forest, boosting, kernel).

The prediction is a weighted average; the weights of each target are chosen on held-out molecules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from graphslice.stacking.fit_trees import fit_boosting, fit_forest
from graphslice.stacking.kernel import KernelMachine, fit_kernel
from graphslice.stacking.trees import Trees
from graphslice.stacking.weights import HeldOutLosses, choose_weights
from graphslice.tasks import REGRESSION, Task, bounds_to_training_scale, each_target, transformed, transformed_back

BaseModel: TypeAlias = Trees | KernelMachine

#: Keys of the network and of the weighted ensemble, next to those of the base models, as in ``metrics.json``.
NETWORK, STACK = "network", "stacking"
#: Names that are printed.
NAMES = {
    NETWORK: "network",
    "forest": "random forest",
    "boosting": "gradient boosting",
    "kernel": "kernel machine",
    STACK: "weighted ensemble",
}
#: Fitting functions of the base models.
FITTERS: dict[str, Callable[..., BaseModel]] = {"forest": fit_forest, "boosting": fit_boosting, "kernel": fit_kernel}


@dataclass(frozen=True, eq=False)
class Stacking:
    """Base models of each target, and the weights of network and base models in the stacked prediction.

    Attributes:
        models: by name ("forest", "boosting", ...) the base models of the T targets.
        weights: ``float64 [1 + len(models), T]``: weight of the network, then of each entry of ``models`` in its order;
            not negative, summing to 1 for each target.
    """

    models: dict[str, list[BaseModel]]
    weights: np.ndarray

    def base_predictions(self, network: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
        """Return the predictions that :func:`combine_predictions` averages: of the network and of each base model.

        A base model without weight for any target is not evaluated: its predictions are zeros.

        Args:
            network: predictions of the network, ``float32 [R, W]``.
            x: inputs of the base models, ``float32 [R, F]``.

        Returns:
            ``float32 [R, W]`` for each model, in the order of the weights.
        """
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
    def from_dict(cls, values: Mapping[str, Any]) -> Stacking:
        """Restore the output of :meth:`to_dict`; raises an InputError if an index in the arrays is out of bounds."""
        models = {
            name: [KernelMachine.from_arrays(arrays) if "ptr" in arrays else Trees(**arrays) for arrays in of_name]
            for name, of_name in values.items()
            if name != "weights"
        }
        return cls(models, values["weights"])


def combine_predictions(predictions: Sequence[np.ndarray], weights: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    """Compute the weighted average of the predictions of several models, on the scale of the targets' transforms.

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
                combined[:, where] += weight * transformed(prediction[:, where].astype(np.float64), task)
        combined[:, where] = transformed_back(combined[:, where], task)
    return combined.astype(np.float32)


def weighted_std(predictions: Sequence[np.ndarray], weights: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    """Compute the weighted standard deviation of the predictions of several models.

    Args:
        predictions, weights, tasks: as for :func:`combine_predictions`.

    Returns:
        ``float32 [R, T]``: on the scale of the transforms; 0 for classification.
    """
    std = np.zeros((len(predictions[0]), len(tasks)), np.float32)
    for t, task, where in each_target(tasks):
        models = np.flatnonzero(weights[:, t] > 0).tolist()
        if not task.classes and len(models) > 1:
            values = np.stack([transformed(predictions[m][:, where].astype(np.float64), task)[:, 0] for m in models])
            model_weights = weights[models, t][:, None]
            std[:, t] = np.sqrt((model_weights * (values - (model_weights * values).sum(axis=0)) ** 2).sum(axis=0))
    return std


def fit_base_models(
    x: np.ndarray,
    labels: np.ndarray,
    tasks: Sequence[Task],
    seed: int,
    weights: np.ndarray | None = None,
) -> dict[str, list[BaseModel]]:
    """Fit the base models of each target.

    Args:
        x: inputs of the training molecules, ``float32 [R, F]``.
        labels: ``float64 [R, T]`` in the units of the dataset, or class indices; nan where missing. A target without a
            label gets a constant prediction.
        tasks: T targets.
        seed: random seed.
        weights: ``float64 [R]``, weight of each row; None if all are equal.

    Returns:
        The base models of the T targets, by the names of :data:`FITTERS`.
    """
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
    predictions: Sequence[np.ndarray],
    labels: np.ndarray,
    tasks: Sequence[Task],
    molecules: np.ndarray | None = None,
    squared: bool = False,
    bounds: np.ndarray | None = None,
    row_weights: np.ndarray | None = None,
) -> np.ndarray:
    """Choose the stacking weights of M models for each target on held-out molecules.

    Args:
        predictions: predictions of each model, ``float32 [R, W]``.
        labels: ``float64 [R, T]``, nan where missing.
        tasks: T targets; numbers are compared on the scale of their transforms.
        molecules: ``int64 [R]``, molecule of each row; None if every row is another molecule.
        squared: choose by squared instead of absolute errors of regression.
        bounds: ``float64 [R, T, 2]``, bounds of labels that are nan, or None.
        row_weights: ``float64 [R]``, weight of each row; None if all are equal.

    Returns:
        ``float64 [M, T]``; see :func:`~graphslice.stacking.weights.choose_weights`.
    """

    def losses(t: int, task: Task, where: slice) -> HeldOutLosses:
        scaled = [transformed(each[:, where].astype(np.float64), task) for each in predictions]
        y, limits = transformed(labels[:, t], task), None
        if bounds is not None and task.kind == REGRESSION:
            limits = bounds_to_training_scale(bounds[:, t : t + 1], [task])[:, 0]
        return HeldOutLosses(scaled, y, task.kind, molecules, squared, limits, row_weights)

    return choose_weights([losses(*each) for each in each_target(tasks)])
