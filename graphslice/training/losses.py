"""Losses of regression and classification targets, and of auxiliary atom- and bond-level targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn import functional

from graphslice.batch import GraphBatch
from graphslice.config import LOSSES, TrainerConfig, quote_item, split_words
from graphslice.data.labels import Labels
from graphslice.errors import InputError, nearest
from graphslice.nn.atom_bond_readout import AtomBondReadout
from graphslice.tasks import (
    BINARY,
    GAUSSIAN,
    MAX_LOG_STD,
    MULTICLASS,
    REGRESSION,
    Task,
    num_outputs,
    output_slices,
    regression_indices,
)

# Task type of each loss, and default loss of each task type.
_KINDS = {**dict.fromkeys(("mae", "mse", "huber", GAUSSIAN), REGRESSION), "bce": BINARY, "cross-entropy": MULTICLASS}
_DEFAULTS = {REGRESSION: "mae", BINARY: "bce", MULTICLASS: "cross-entropy"}


class Loss(nn.Module):
    """Weighted mean loss over the known labels, each with the weight of its target and class.

    Args:
        tasks: the T targets.
        config: trainer configuration, with the loss and the weights.
        labels: ``float64 [R, T]``, labels of the training set, by which classes are balanced; nan where missing.

    Raises:
        InputError: if the loss suits no target, class weights have no target of classes, or a weight is given for an
            unknown target.
    """

    def __init__(self, tasks: Sequence[Task], config: TrainerConfig, labels: np.ndarray) -> None:
        super().__init__()
        check_losses(config, tasks)
        names, weights = _loss_names(config.loss, tasks), _target_weights(config.target_weights, tasks)
        balanced = config.class_weights == "balanced"
        slices = output_slices(tasks)
        self._groups: list[tuple[str, str]] = []  # name of the loss, and prefix of its buffers
        groups: dict[tuple[str, int], list[int]] = {}  # one loss each; multiclass targets are alone
        for t, task in enumerate(tasks):
            groups.setdefault((names[t], t if task.kind == MULTICLASS else -1), []).append(t)
        for (name, _), group in groups.items():
            prefix = f"{name}_{group[0]}_"
            classes = max(1, len(tasks[group[0]].classes))
            table = np.ones((len(group), classes))
            if balanced and classes > 1:
                table = np.stack([balanced_weights(labels[:, t], classes) for t in group])
            of_targets = np.array([weights[t] for t in group])
            table *= of_targets[:, None]
            outputs = [index for t in group for index in range(slices[t].start, slices[t].stop)]
            if name == GAUSSIAN:  # the standard deviations follow all predictions
                regression = regression_indices(tasks)
                outputs += [num_outputs(tasks) + regression.index(t) for t in group]
            self.register_buffer(prefix + "targets", torch.tensor(group), persistent=False)
            self.register_buffer(prefix + "outputs", torch.tensor(outputs), persistent=False)
            self.register_buffer(prefix + "weights", torch.tensor(table, dtype=torch.float32), persistent=False)
            self.register_buffer(prefix + "counts", torch.tensor(of_targets, dtype=torch.float32), persistent=False)
            self._groups.append((name, prefix))

    def forward(
        self, outputs: Tensor, labels: Tensor, bounds: Tensor | None = None, row_weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of the weighted losses, and the number of labels times the weights of their targets.

        Their quotient is the loss. The weights of classes and rows, whose mean over the training set is 1, are not in
        the divisor, so that a label has the same influence in every batch.

        Args:
            outputs: ``float [B, W]``, standardised predictions of regression targets, and logits of classes.
            labels: ``float [B, T]``, standardised regression labels, and class indices; nan where missing.
            bounds: ``float [B, T, 2]``, standardised bounds of regression labels that are nan; None without any. The
                loss of a bound is that of the nearest label that it allows; with the loss ``gaussian`` it is the
                negative logarithm of the probability beyond it (Tobin 1958, doi:10.2307/1907382).
            row_weights: ``float [B]``, weight of each row; None if all are equal.
        """
        total, count = outputs.new_zeros(()), outputs.new_zeros(())
        for name, prefix in self._groups:
            targets, columns, table, counts = (
                getattr(self, prefix + part) for part in ("targets", "outputs", "weights", "counts")
            )
            true, predicted = labels[:, targets], outputs[:, columns]
            known = ~torch.isnan(true)
            limits = None if bounds is None or _KINDS[name] != REGRESSION else bounds[:, targets]
            if limits is not None:
                censored = ~known & torch.isfinite(limits).any(dim=2)
                nearest = predicted[:, : len(targets)].detach().clamp(limits[..., 0], limits[..., 1])
                true, known = torch.where(censored, nearest, true), known | censored
            true = true.nan_to_num()
            losses = _ELEMENTWISE[name](predicted, true)
            if limits is not None and name == GAUSSIAN:
                losses = torch.where(censored, _tobit(predicted, limits), losses)
            classes = true.long() if table.shape[1] > 1 else torch.zeros_like(true, dtype=torch.long)
            weight = table.expand(len(labels), -1, -1).gather(2, classes[:, :, None])[:, :, 0] * known
            weight = weight if row_weights is None else weight * row_weights[:, None]
            total = total + torch.where(known, losses, 0).mul(weight).sum()
            count = count + (known * counts).sum()
        return total, count


def check_losses(config: TrainerConfig, tasks: Sequence[Task]) -> None:
    """Raise :class:`InputError` if the loss or the class weights suit no target, or a target weight is invalid."""
    _loss_names(config.loss, tasks)
    _target_weights(config.target_weights, tasks)
    if config.class_weights == "balanced" and not any(task.classes for task in tasks):
        raise InputError("trainer.class_weights balanced needs a target of classes, but all are numbers")


def balanced_weights(labels: np.ndarray, classes: int) -> np.ndarray:
    """Compute weights ``float64 [K]`` that give every present class of ``labels [R]`` the same total, with a mean of 1.

    As scikit-learn's ``class_weight="balanced"``.
    """
    counts = np.bincount(labels[~np.isnan(labels)].astype(int), minlength=classes)
    present = (counts > 0).sum()
    return np.where(counts > 0, counts.sum() / (max(present, 1) * np.maximum(counts, 1)), 0.0)


def _loss_names(name: str, tasks: Sequence[Task]) -> list[str]:
    """Return the loss of each target: the configured one if it suits the task type, else the default.

    Raises :class:`InputError` if it suits no target.
    """
    if name != "auto" and all(_KINDS[name] != task.kind for task in tasks):
        first = tasks[0]
        raise InputError(
            f"trainer.loss {name} is for {_KINDS[name]} targets, but {first.name!r} is {first.kind}: leave it out"
        )
    return [name if _KINDS.get(name) == task.kind else _DEFAULTS[task.kind] for task in tasks]


def _target_weights(text: str | None, tasks: Sequence[Task]) -> list[float]:
    """Parse target weights in the format ``NAME=2,NAME=0.5``; the weight of other targets is 1."""
    weights = {task.name: 1.0 for task in tasks}
    for part in split_words(text or ""):
        name, _, value = (word.strip() for word in part.rpartition("="))
        try:
            weight = float(value)
        except ValueError:
            weight = -1.0
        if name not in weights or not 0 <= weight < float("inf"):
            hint = nearest(name, weights, quote_item)
            raise InputError(f"trainer.target_weights {part!r} is no target{hint} with a non-negative weight")
        weights[name] = weight
    return list(weights.values())


def _gaussian(outputs: Tensor, true: Tensor) -> Tensor:
    """Gaussian negative log-likelihood, weighted by the predicted standard deviation without its gradient.

    The weight (Seitzer et al. 2022, arXiv:2203.09168, beta 0.5) keeps the model from giving up on hard examples early.

    Args:
        outputs: ``float [B, 2 G]``, G means, then the logarithms of G standard deviations.
        true: ``float [B, G]``, standardised labels.
    """
    mean, log = outputs.chunk(2, dim=1)
    log = log.clamp(-MAX_LOG_STD, MAX_LOG_STD)
    return log.exp().detach() * (0.5 * ((true - mean) / log.exp()).square() + log)


def _tobit(outputs: Tensor, limits: Tensor) -> Tensor:
    """Negative logarithm of the probability between bounds, weighted as :func:`_gaussian`.

    Args:
        outputs: ``float [B, 2 G]``, as for :func:`_gaussian`.
        limits: ``float [B, G, 2]``; bounds of other labels are infinite, and their loss is not used.
    """
    mean, log = outputs.chunk(2, dim=1)
    std = log.clamp(-MAX_LOG_STD, MAX_LOG_STD).exp()
    finite = torch.isfinite(limits)
    distances = (torch.where(finite, limits, 0) - mean[..., None]) / std[..., None]
    low, high = torch.where(finite, distances, limits).unbind(dim=2)
    # The tail that is the smaller one, since differences of probabilities near 1 are lost.
    near, far = torch.where(low > 0, -low, high), torch.where(low > 0, -high, low)
    log_near, log_far = _log_normal_cdf(near), _log_normal_cdf(far)
    share = (log_far - log_near).exp().clamp_max(1 - 1e-6)
    return -std.detach() * (log_near + torch.log1p(-share))


def _log_normal_cdf(z: Tensor) -> Tensor:
    """Logarithm of the normal distribution function, linear below -30, where torch's gradient is wrong."""
    return torch.special.log_ndtr(z.clamp_min(-30)) + 30 * (z + 30).clamp_max(0)


def _cross_entropy(outputs: Tensor, true: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, true[:, 0].long(), reduction="none")[:, None]


# "huber" is quadratic below an error of one standard deviation (Huber 1964).
_ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "mae": partial(functional.l1_loss, reduction="none"),
    "mse": partial(functional.mse_loss, reduction="none"),
    "huber": partial(functional.huber_loss, reduction="none"),
    GAUSSIAN: _gaussian,
    "bce": partial(functional.binary_cross_entropy_with_logits, reduction="none"),
    "cross-entropy": _cross_entropy,
}
assert set(_ELEMENTWISE) | {"auto"} == set(LOSSES)


class AuxiliaryHead(nn.Module):
    """Auxiliary output head of pretraining: a readout of atoms or bonds and a linear map to T standardised targets.

    The loss is the absolute error.

    Args:
        dim: width of the atom embeddings.
        labels: labels of the training set, which define the names, means and standard deviations of the targets.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, dim: int, labels: Labels) -> None:
        super().__init__()
        self.level, self.names = labels.level, labels.names
        self.reader = AtomBondReadout(dim, labels.level)
        self.head = nn.Linear(dim, len(labels.names))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                nn.init.zeros_(module.bias)
        std = np.nanstd(labels.values, axis=0)
        values = np.nanmean(labels.values, axis=0), np.where(std > 0, std, 1.0)
        for name, value in zip(("mean", "std"), values, strict=True):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))

    def forward(self, rows: Tensor, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """Compute the absolute errors of the labels of a batch.

        Args:
            rows: ``float [B, N + 1, C]``, atom embeddings after the last norm.
            batch: batch with ``atom_index`` and ``atom_targets``, or with ``bond_index`` and ``bond_targets``.

        Returns:
            The absolute errors in units of the standard deviation of each target, 0 where unknown, ``float [M, T]``;
            and 1 where a label is known, else 0, ``float [M, T]``.
        """
        labels = (getattr(batch, f"{self.level}_targets") - self.mean) / self.std
        known = ~torch.isnan(labels)
        features = self.reader(rows, getattr(batch, f"{self.level}_index"))
        with torch.autocast(rows.device.type, enabled=False):  # in full precision, as the main head
            errors = (self.head(features) - labels.nan_to_num()).abs()
        return torch.where(known, errors, 0), known.to(errors.dtype)


class AuxiliaryHeads(nn.ModuleDict):
    """Auxiliary heads, one :class:`AuxiliaryHead` for each level (atom, bond) with labels.

    Args:
        dim: width of the atom embeddings.
        labels: labels of the training set, by level.
        weight: weight of the loss of all auxiliary targets of a level, relative to the loss of all targets.
    """

    def __init__(self, dim: int, labels: Mapping[str, Labels], weight: float) -> None:
        self.weight = weight
        super().__init__({level: AuxiliaryHead(dim, level_labels) for level, level_labels in labels.items()})
        self._errors: dict[str, list[Tensor]] = {}

    def losses(self, rows: Tensor, batch: GraphBatch) -> list[tuple[Tensor, Tensor]]:
        """Return for each level the weighted sum of the errors of a batch, and the number of labels, its divisor."""
        parts = [head(rows, batch) for head in self.values()]
        return [(self.weight * errors.sum(), known.sum()) for errors, known in parts]

    def validate(self, rows: Tensor, batch: GraphBatch) -> None:
        """Accumulate the errors of a validation batch for :meth:`mean_errors`."""
        for level, head in self.items():
            self._errors.setdefault(level, []).append(torch.stack([part.sum(dim=0) for part in head(rows, batch)]))

    def mean_errors(self, world: int) -> dict[str, float]:
        """Return the mean absolute error of each target over the batches of all ``world`` processes, and reset them."""
        mae: dict[str, float] = {}
        for level, parts in self._errors.items():
            head, sums = cast(AuxiliaryHead, self[level]), torch.stack(parts).sum(dim=0)
            if world > 1:
                torch.distributed.all_reduce(sums)
            errors = (sums[0] / sums[1] * head.std).tolist()
            mae |= {name: error for name, error in zip(head.names, errors, strict=True) if math.isfinite(error)}
        self._errors = {}
        return mae
