"""Training module of a GraphTransformer: losses of all targets, validation scores and contents of its checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn import functional

from graphslice.batch import GraphBatch
from graphslice.config import LOSSES, RunConfig, TrainerConfig, split_words
from graphslice.data.dataset import LabelledDataset
from graphslice.data.labels import Labels, pointers, ragged_indices
from graphslice.errors import InputError, check_known, check_number
from graphslice.evaluation.metrics import METRICS, selection_score
from graphslice.nn import GraphTransformer
from graphslice.nn.block import AtomBondReadout
from graphslice.runs.checkpoint import Checkpoint
from graphslice.tasks import (
    BINARY,
    GAUSSIAN,
    MAX_LOG_STD,
    MULTICLASS,
    REGRESSION,
    Task,
    each_target,
    num_outputs,
    output_slices,
    regression_indices,
    to_predictions,
)

#: Logged value that selects the best epoch: the validation metric averaged over the last epochs. With a small
#: validation set, a single epoch may be good by chance: such early epochs were worse than the last on new molecules.
MONITOR = "val_choice"
# Number of epochs that are averaged, and the checkpoint keys of their scores and of the auxiliary errors.
_WINDOW, _RECENT, _AUXILIARY = 5, "recent_validations", "auxiliary_errors"


def standardisation(tasks: Sequence[Task], labels: np.ndarray, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and standard deviation of the training labels ``[R, T]``, for each output: ``float64 [W]``; for
    classes the logits of their frequencies, and 1; without labels 0 and 1."""
    mean, std = np.zeros(outputs), np.ones(outputs)
    for t, task, where in each_target(tasks):
        known = labels[~np.isnan(labels[:, t]), t]
        if not len(known):  # all of them are held out
            continue
        if task.kind == REGRESSION:
            # The standard deviation of equal numbers may be a rounding error instead of 0.
            mean[where], std[where] = known.mean(), known.std() if np.ptp(known) > 0 else 1.0
            continue
        shares = np.bincount(known.astype(int), minlength=len(task.classes)) + 0.5  # no class gets probability 0
        logs = np.log(shares / shares.sum())
        mean[where] = logs[1] - logs[0] if task.kind == BINARY else logs
    return mean, std


class PropertyModule(nn.Module):
    """Training of a :class:`~graphslice.nn.GraphTransformer` on standardised regression targets and on classes. After a
    validation, ``auxiliary_errors`` is the mean absolute error of each auxiliary target."""

    _regression: Tensor
    _outputs: Tensor
    _classes: Tensor

    def __init__(
        self,
        config: RunConfig,
        tasks: list[Task],
        labels: np.ndarray,  # float64 [R, T], after their transform
        metric: str,
        auxiliary: Mapping[str, Labels] | None = None,  # of the training molecules, by level
        world: int = 1,  # number of devices, each of which computes a part of every batch
    ) -> None:
        super().__init__()
        self.config, self.tasks, self.metric, self.world = config, tasks, metric, world
        torch.manual_seed(config.trainer.seed)
        self.model = GraphTransformer(config.model)
        self.loss = Loss(tasks, config.trainer, labels)
        weight = config.trainer.auxiliary_weight
        self.auxiliary = AuxiliaryHeads(config.model.dim, auxiliary, weight) if auxiliary else None
        self.auxiliary_errors: dict[str, float] = {}
        mean, std = standardisation(tasks, labels, config.model.tasks)
        self.model.target_mean.copy_(torch.from_numpy(mean))
        self.model.target_std.copy_(torch.from_numpy(std))
        # Index of each target's first output, mask of regression targets, and mask of class outputs.
        regression = torch.tensor([task.kind == REGRESSION for task in tasks])
        outputs = torch.tensor([where.start for where in output_slices(tasks)])
        classes = torch.ones(len(mean), dtype=torch.bool).index_fill(0, outputs[regression], False)
        for name, buffer in (("_regression", regression), ("_outputs", outputs), ("_classes", classes)):
            self.register_buffer(name, buffer, persistent=False)
        self._recent: list[float] = []
        self._validated: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def forward(self, batch: GraphBatch) -> Tensor:
        """Return the training loss of a batch, a scalar."""
        assert batch.targets is not None
        mean, std = self.model.target_mean[self._outputs], self.model.target_std[self._outputs]
        labels = torch.where(self._regression, (batch.targets - mean) / std, batch.targets)
        bounds = batch.bounds_of_targets
        bounds = None if bounds is None else (bounds - mean[:, None]) / std[:, None]
        weights = batch.label_weights()
        # Logits of the class frequencies, which predictions include too; in a fine-tuned model, of the pretraining set.
        prior = self._classes * self.model.target_mean
        if self.auxiliary is None:
            parts = [self.loss(self.model.standardised(batch) + prior, labels, bounds, weights)]
        else:
            outputs, rows = self.model.standardised_with_rows(batch)
            parts = [self.loss(outputs + prior, labels, bounds, weights), *self.auxiliary.losses(rows, batch)]
        return torch.stack([self._mean(*part) for part in parts]).sum()

    def _mean(self, total: Tensor, count: Tensor) -> Tensor:
        """Return the mean over the labels of the whole batch, independent of their distribution over devices."""
        count = count.detach()
        if self.world > 1:
            torch.distributed.all_reduce(count)
        return total * self.world / torch.where(count > 0, count, 1)

    def validate(self, batch: GraphBatch) -> None:
        """Predict a batch of validation molecules for :meth:`validation_scores`."""
        assert batch.rows is not None
        if self.auxiliary is None:
            predictions = self.model(batch)
        else:
            outputs, atom_rows = self.model.standardised_with_rows(batch)
            self.auxiliary.validate(atom_rows, batch)
            predictions = outputs * self.model.target_std + self.model.target_mean
        tensors = batch.rows, batch.atom_bond_counts(), predictions.float()
        rows, counts, values = (tensor.cpu().numpy() for tensor in tensors)
        self._validated.append((rows, counts, values))

    def validation_scores(self, dataset: LabelledDataset) -> dict[str, float]:
        """Score the predictions of all devices since the last call, by logged name, and :data:`MONITOR`."""
        batches = self._validated
        self._validated = []
        if self.world > 1:
            gathered: list = [None] * self.world
            torch.distributed.all_gather_object(gathered, batches)
            batches = [batch for rank in gathered for batch in rank]
        rows, counts, values = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        rows, first = np.unique(rows, return_index=True)  # distributed sampling may repeat rows
        predictions = to_predictions(values[ragged_indices(pointers(counts), first)], self.tasks)
        value = selection_score(self.metric, dataset, rows, predictions)
        if not math.isfinite(value):
            value = METRICS[self.metric].loss(math.inf)  # the worst possible value
        logged = {f"val_{self.metric}": value}
        if self.auxiliary is not None:
            self.auxiliary_errors = self.auxiliary.mean_errors(self.world)
            logged |= {f"val_mae {name}": error for name, error in self.auxiliary_errors.items()}
        self._recent = [*self._recent, value][-_WINDOW:]
        # In single precision, so that means of equal values are equal.
        logged[MONITOR] = float(np.float32(sum(self._recent) / len(self._recent)))
        return logged

    def trained(self) -> Checkpoint:
        """Return the model with its present weights."""
        return Checkpoint(self.config, self.tasks, {k: v.cpu() for k, v in self.model.state_dict().items()})

    def state(self) -> dict[str, Any]:
        """Return the weights, and what is needed to go on after a validation."""
        return {"state_dict": self.state_dict(), _RECENT: self._recent, _AUXILIARY: self.auxiliary_errors}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the output of :meth:`state`."""
        self.load_state_dict(state["state_dict"])
        self._recent = list(state[_RECENT])
        self.auxiliary_errors = dict(state[_AUXILIARY])


# Task type of each loss, and default loss of each task type.
_KINDS = {**dict.fromkeys(("mae", "mse", "huber", GAUSSIAN), REGRESSION), "bce": BINARY, "cross-entropy": MULTICLASS}
_DEFAULTS = {REGRESSION: "mae", BINARY: "bce", MULTICLASS: "cross-entropy"}


class Loss(nn.Module):
    """Weighted mean loss over the known labels, each with the weight of its target and class; classes are balanced by
    the ``labels``, ``float64 [R, T]``."""

    def __init__(self, tasks: Sequence[Task], config: TrainerConfig, labels: np.ndarray) -> None:
        super().__init__()
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
        self,
        outputs: Tensor,  # float [B, W]
        labels: Tensor,  # float [B, T], standardised or class indices, nan where missing
        bounds: Tensor | None = None,  # float [B, T, 2], of regression labels that are nan
        row_weights: Tensor | None = None,  # float [B]
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of the weighted losses, and the number of labels times the weights of their targets: their
        quotient is the loss. The weights of classes and rows, whose mean over the training set is 1, are not in the
        divisor, so that a label has the same influence in every batch. The loss of a bound is that of the nearest label
        that it allows, or the negative logarithm of the probability beyond it (Tobin 1958, doi:10.2307/1907382)."""
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
    """Compute weights ``float64 [K]`` that give every present class of ``labels [R]`` the same total, with a mean of 1,
    as scikit-learn's ``class_weight="balanced"``."""
    counts = np.bincount(labels[~np.isnan(labels)].astype(int), minlength=classes)
    present = (counts > 0).sum()
    return np.where(counts > 0, counts.sum() / (max(present, 1) * np.maximum(counts, 1)), 0.0)


def _loss_names(name: str, tasks: Sequence[Task]) -> list[str]:
    """Return the loss of each target: the configured one if it suits the task type, else the default; raises
    :class:`InputError` if it suits no target."""
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
        check_known("target", name, weights, "trainer.target_weights")
        try:
            weights[name] = float(value)
        except ValueError:
            weights[name] = math.nan
        check_number(f"trainer.target_weights {name}", weights[name], 0)
    return list(weights.values())


def _gaussian(outputs: Tensor, true: Tensor) -> Tensor:
    """Gaussian negative log-likelihood, weighted by the predicted standard deviation without its gradient (Seitzer et
    al. 2022, arXiv:2203.09168, beta 0.5), which keeps the model from giving up on hard examples early. ``outputs``:
    ``[B, 2 G]``, G means, then the logarithms of G standard deviations."""
    mean, log = outputs.chunk(2, dim=1)
    log = log.clamp(-MAX_LOG_STD, MAX_LOG_STD)
    return log.exp().detach() * (0.5 * ((true - mean) / log.exp()).square() + log)


def _tobit(outputs: Tensor, limits: Tensor) -> Tensor:
    """Negative logarithm of the probability between bounds ``[B, G, 2]``, weighted as :func:`_gaussian`; the bounds of
    other labels are infinite, and their loss is not used."""
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
    """Auxiliary output head of pretraining: a readout of atoms or bonds, and a linear map to T targets that the
    training ``labels`` standardise; the loss is the absolute error."""

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
        """Return the absolute errors of the labels of a batch in standard deviations of each target, 0 where unknown,
        and 1 where a label is known, else 0, ``float [M, T]`` each; ``rows``: atom embeddings ``[B, N + 1, C]``
        after the last norm."""
        labels = (getattr(batch, f"{self.level}_targets") - self.mean) / self.std
        known = ~torch.isnan(labels)
        features = self.reader(rows, getattr(batch, f"{self.level}_index"))
        with torch.autocast(rows.device.type, enabled=False):  # in full precision, as the main head
            errors = (self.head(features) - labels.nan_to_num()).abs()
        return torch.where(known, errors, 0), known.to(errors.dtype)


class AuxiliaryHeads(nn.ModuleDict):
    """Auxiliary heads, one :class:`AuxiliaryHead` for each level (atom, bond) with labels; ``weight`` is that of the
    loss of a level's targets, relative to the loss of all targets."""

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
