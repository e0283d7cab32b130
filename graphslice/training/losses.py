"""What training makes small: of numbers their error, of classes what their probabilities lack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from graphslice.config import LOSSES, TrainerConfig, split_words
from graphslice.errors import InputError, nearest
from graphslice.tasks import (
    BINARY,
    GAUSSIAN,
    MULTICLASS,
    REGRESSION,
    Task,
    num_outputs,
    output_slices,
    regression_indices,
)

# Logarithms of standardised deviations are kept so far from 0.
_MAX_LOG_STD = 7.0
# The loss of each kind of target where the user names none.
_DEFAULTS = {REGRESSION: "mae", BINARY: "bce", MULTICLASS: "cross-entropy"}


class Loss(nn.Module):
    """The mean loss of the labels that are there, each with the weight of its target and class.

    Args:
        tasks: of the T targets.
        config: names the loss and the weights.
        labels: ``float64 [R, T]`` of the training molecules, by which classes are balanced; nan where unknown.

    Raises:
        InputError: for a loss that no target can have, or weights of targets that are not there.
    """

    def __init__(self, tasks: Sequence[Task], config: TrainerConfig, labels: np.ndarray) -> None:
        super().__init__()
        names = [_loss_name(task, config.loss, tasks) for task in tasks]
        weights = _target_weights(config.target_weights, [task.name for task in tasks])
        balanced = config.class_weights == "balanced"
        slices = output_slices(tasks)
        self._groups: list[tuple[str, str]] = []  # the name of a loss, and the prefix of its buffers
        for group in _group_targets(tasks, names):
            prefix = f"{names[group[0]]}_{group[0]}_"
            classes = max(1, len(tasks[group[0]].classes))
            table = np.ones((len(group), classes))
            if balanced and classes > 1:
                table = np.stack([balanced_weights(labels[:, t], classes) for t in group])
            table *= np.array([weights[t] for t in group])[:, None]
            outputs = [place for t in group for place in range(slices[t].start, slices[t].stop)]
            if names[group[0]] == GAUSSIAN:  # the deviations lie behind all answers
                numbers = regression_indices(tasks)
                outputs += [num_outputs(tasks) + numbers.index(t) for t in group]
            self.register_buffer(prefix + "targets", torch.tensor(group), persistent=False)
            self.register_buffer(prefix + "outputs", torch.tensor(outputs), persistent=False)
            self.register_buffer(prefix + "weights", torch.tensor(table, dtype=torch.float32), persistent=False)
            self._groups.append((names[group[0]], prefix))

    def forward(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the weighted losses, and of the weights: their quotient is the loss.

        Args:
            outputs: ``float [B, W]``: standardised numbers, and logits.
            labels: ``float [B, T]``: standardised numbers, and places of classes; nan where unknown.
        """
        total, weights = outputs.new_zeros(()), outputs.new_zeros(())
        for name, prefix in self._groups:
            targets, places, table = (getattr(self, prefix + part) for part in ("targets", "outputs", "weights"))
            wanted = labels[:, targets]
            known = ~torch.isnan(wanted)
            wanted = wanted.nan_to_num()
            losses = _ELEMENTWISE[name](outputs[:, places], wanted)
            of_class = wanted.long() if table.shape[1] > 1 else torch.zeros_like(wanted, dtype=torch.long)
            weight = table.expand(len(labels), -1, -1).gather(2, of_class[:, :, None])[:, :, 0] * known
            total = total + torch.where(known, losses, 0).mul(weight).sum()
            weights = weights + weight.sum()
        return total, weights


def check_losses(config: TrainerConfig, tasks: Sequence[Task]) -> None:
    """Raise :class:`InputError` for a loss that no target can have, or weights of targets that are not there."""
    for task in tasks:
        _loss_name(task, config.loss, tasks)
    _target_weights(config.target_weights, [task.name for task in tasks])


def _group_targets(tasks: Sequence[Task], names: Sequence[str]) -> list[list[int]]:
    """The targets that are computed at once: all of one loss, but each target of several classes alone."""
    groups: dict[tuple[str, int], list[int]] = {}
    for t, task in enumerate(tasks):
        groups.setdefault((names[t], t if task.kind == MULTICLASS else -1), []).append(t)
    return list(groups.values())


def balanced_weights(labels: np.ndarray, classes: int) -> np.ndarray:
    """``float64 [K]``: weights that give every class that is there the same sum, with a mean of 1 over the labels.

    As scikit-learn's ``class_weight="balanced"``.

    Args:
        labels: ``float64 [R]``, places of classes; nan where unknown.
        classes: K.
    """
    counts = np.bincount(labels[~np.isnan(labels)].astype(int), minlength=classes)
    there = (counts > 0).sum()
    return np.where(counts > 0, counts.sum() / (max(there, 1) * np.maximum(counts, 1)), 0.0)


def _loss_name(task: Task, name: str, tasks: Sequence[Task]) -> str:
    """The loss of a target: the named one if it is one of its kind, else the usual one.

    Raises:
        InputError: if no target has the named one.
    """
    numbers = dict.fromkeys(("mae", "mse", "huber", GAUSSIAN), REGRESSION)
    fitting = {**numbers, "bce": BINARY, "cross-entropy": MULTICLASS}
    if name != "auto" and not any(fitting[name] == each.kind for each in tasks):
        raise InputError(
            f"trainer.loss {name} is one of {fitting[name]} targets, and {task.name!r} is {task.kind}: leave it out"
        )
    return name if name != "auto" and fitting[name] == task.kind else _DEFAULTS[task.kind]


def _target_weights(text: str | None, names: Sequence[str]) -> list[float]:
    """The weights of the targets, ``NAME=2,NAME=0.5``; 1 where none is given."""
    weights = dict.fromkeys(names, 1.0)
    for part in split_words(text or ""):
        name, _, value = (word.strip() for word in part.rpartition("="))
        try:
            weight = float(value)
        except ValueError:
            weight = -1.0
        if name not in weights:
            raise InputError(f"trainer.target_weights names {name!r}{nearest(name, names)}, which is not predicted")
        if not 0 <= weight < float("inf"):
            raise InputError(f"trainer.target_weights: the weight of {name!r} must be a number from 0, not {value!r}")
        weights[name] = weight
    if not any(weights.values()):
        raise InputError("trainer.target_weights leaves every target without weight")
    return list(weights.values())


def _mae(outputs: Tensor, wanted: Tensor) -> Tensor:
    return (outputs - wanted).abs()


def _mse(outputs: Tensor, wanted: Tensor) -> Tensor:
    return (outputs - wanted).square()


def _huber(outputs: Tensor, wanted: Tensor) -> Tensor:
    """Quadratic below an error of one deviation (Huber 1964)."""
    return functional.huber_loss(outputs, wanted, reduction="none")


def _gaussian(outputs: Tensor, wanted: Tensor) -> Tensor:
    """Minus the logarithm of the normal density, times the deviation taken as constant (Seitzer et al. 2022,
    arXiv:2203.09168, beta 0.5): without it what is hard is given up early.

    Args:
        outputs: ``float [B, 2 G]``: G means, then the logarithms of G deviations.
        wanted: ``float [B, G]``.
    """
    mean, log = outputs.chunk(2, dim=1)
    log = log.clamp(-_MAX_LOG_STD, _MAX_LOG_STD)
    return log.exp().detach() * (0.5 * ((wanted - mean) / log.exp()).square() + log)


def _bce(outputs: Tensor, wanted: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")


def _cross_entropy(outputs: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, wanted[:, 0].long(), reduction="none")[:, None]


_ELEMENTWISE = {"mae": _mae, "mse": _mse, "huber": _huber, GAUSSIAN: _gaussian, "bce": _bce}
_ELEMENTWISE |= {"cross-entropy": _cross_entropy}
assert set(_ELEMENTWISE) | {"auto"} == set(LOSSES)
