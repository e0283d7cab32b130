"""Trees that answer beside a network, and the weights of both in one answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphslice.errors import InputError
from graphslice.tasks import Task, each_target
from graphslice.trees.fitting import fit_boosting, fit_forest
from graphslice.trees.model import Trees
from graphslice.trees.stacking_weights import fit_stacking_weights

#: The descriptors that the trees read, and what fits them, by the names that users know.
TREE_DESCRIPTORS = ("morgan", "rdkit2d")
FITTERS = {"forest": fit_forest, "boosting": fit_boosting}


@dataclass(frozen=True, eq=False)
class Stacking:
    """A forest and boosted trees for each target, whose answers are added to a network's.

    Attributes:
        kinds: of the descriptors that the trees read, in order.
        trees: by name those of each of T targets.
        weights: ``float64 [1 + names, T]``: of the network, then of the trees in the order of their names; none is
            negative, and the sum over a target is 1.

    Raises:
        InputError: if the parts do not go together.
    """

    kinds: tuple[str, ...]
    trees: dict[str, list[Trees]]
    weights: np.ndarray

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights)
        shape = (1 + len(self.trees), weights.shape[-1] if weights.ndim else 0)
        if weights.shape != shape or any(len(trees) != shape[1] for trees in self.trees.values()):
            raise InputError("the trees beside the network are not as many as their weights: train it again")
        if not (np.isfinite(weights).all() and (weights >= 0).all() and np.allclose(weights.sum(axis=0), 1)):
            raise InputError("the weights of the trees beside the network do not add up to 1: train it again")

    def fits(self, tasks: Sequence[Task]) -> bool:
        """Whether it reads descriptors that are known, and its trees predict such targets."""
        known = len({*self.kinds}) == len(self.kinds) > 0 and {*self.kinds} <= {*TREE_DESCRIPTORS}
        return (
            known
            and self.weights.shape[1] == len(tasks)
            and all(
                each.width == task.outputs and each.of_numbers == (not task.classes)
                for trees in self.trees.values()
                for each, task in zip(trees, tasks, strict=True)
            )
        )

    def base_predictions(self, network: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
        """``float32 [R, W]`` of the network and of each kind of trees: what :func:`combine_predictions` adds.

        Args:
            network: ``float32 [R, W]``, its answers.
            x: ``float32 [R, F]``, the descriptors.
        """
        return [network, *(predict_trees(trees, x) for trees in self.trees.values())]

    def to_dict(self) -> dict[str, Any]:
        """Names and arrays, such as a checkpoint holds."""
        trees = {name: [each.to_arrays() for each in of_targets] for name, of_targets in self.trees.items()}
        return {"kinds": list(self.kinds), "trees": trees, "weights": self.weights}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Stacking:
        """The inverse of :meth:`to_dict`.

        Raises:
            InputError: for what it does not write, or a KeyError, TypeError or AttributeError.
        """
        if set(values) != {"kinds", "trees", "weights"}:
            raise KeyError("kinds, trees and weights")
        trees = {name: [Trees.from_arrays(each) for each in values["trees"][name]] for name in values["trees"]}
        return cls(tuple(values["kinds"]), trees, np.asarray(values["weights"], np.float64))


def _to_training_scale(answers: np.ndarray, task: Task) -> np.ndarray:
    """``float64 [R, W]``: what is added up of some answers, logarithms where the network learns these."""
    if task.transform != "log":
        return answers
    with np.errstate(divide="ignore"):
        return np.log(answers)


def combine_predictions(answers: Sequence[np.ndarray], weights: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    """``float32 [R, W]``: the weighted sum of what several models answer, of logarithms where the network learns these.

    Args:
        answers: of each of M models, ``float32 [R, W]``.
        weights: ``float64 [M, T]``, of each model in the answer to each target.
        tasks: T targets that W numbers answer.
    """
    blended = np.zeros(np.shape(answers[0]))
    for t, task, where in each_target(tasks):
        for each, weight in zip(answers, weights[:, t], strict=True):
            if weight > 0:
                blended[:, where] += weight * _to_training_scale(each[:, where].astype(np.float64), task)
        if task.transform == "log":
            blended[:, where] = np.exp(blended[:, where])
    return blended.astype(np.float32)


def weighted_std(answers: Sequence[np.ndarray], weights: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    """``float32 [R, T]``: the weighted standard deviation of what several models answer; 0 of classes.

    Args:
        answers, weights, tasks: as of :func:`combine_predictions`; in logarithms where the network learns these.
    """
    found = np.zeros((len(answers[0]), len(tasks)), np.float32)
    for t, task, where in each_target(tasks):
        used = np.flatnonzero(weights[:, t] > 0).tolist()
        if not task.classes and len(used) > 1:
            each = np.stack([_to_training_scale(answers[m][:, where].astype(np.float64), task)[:, 0] for m in used])
            shares = weights[used, t][:, None]
            found[:, t] = np.sqrt((shares * (each - (shares * each).sum(axis=0)) ** 2).sum(axis=0))
    return found


def fit_trees(
    x: np.ndarray, labels: np.ndarray, tasks: Sequence[Task], seed: int, threads: int
) -> dict[str, list[Trees]]:
    """A forest and boosted trees for each target.

    Args:
        x: ``float32 [R, F]``, descriptors of the training molecules.
        labels: ``float64 [R, T]`` in the user's unit, or places of classes; nan where unknown.
        tasks: T targets.
        seed: of the trees.
        threads: to fit them on.
    """
    return {
        name: [fit(x, labels[:, t], task.kind, len(task.classes), seed, threads) for t, task in enumerate(tasks)]
        for name, fit in FITTERS.items()
    }


def predict_trees(trees: Sequence[Trees], x: np.ndarray) -> np.ndarray:
    """``float32 [R, W]``: what the trees of each target answer, side by side."""
    return np.concatenate([each.predict(x) for each in trees], axis=1).astype(np.float32)


def fit_target_weights(
    answers: Sequence[np.ndarray], labels: np.ndarray, tasks: Sequence[Task], molecules: np.ndarray | None = None
) -> np.ndarray:
    """``float64 [M, T]``: the weights of M models in the answer to each target, chosen on validation molecules.

    Args:
        answers: of each model, ``float32 [R, W]``.
        labels: ``float64 [R, T]``, nan where unknown.
        tasks: T targets.
        molecules: ``int64 [R]``, which molecule each row is of; each of another one when not given.
    """

    def chosen(t: int, task: Task, where: slice) -> np.ndarray:
        added = [_to_training_scale(each[:, where], task) for each in answers]
        return fit_stacking_weights(added, _to_training_scale(labels[:, t], task), task.kind, molecules)

    weights = [chosen(*each) for each in each_target(tasks)]
    return np.stack(weights, axis=1)
