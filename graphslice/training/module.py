"""Training module of a GraphTransformer: loss, validation scores and contents of its checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn

from graphslice.batch import GraphBatch
from graphslice.checkpoint import Checkpoint
from graphslice.config import RunConfig
from graphslice.data.dataset import LabelledDataset
from graphslice.data.labels import Labels, pointers, ragged_indices
from graphslice.evaluation.metrics import METRICS, selection_score
from graphslice.nn import GraphTransformer
from graphslice.tasks import BINARY, REGRESSION, Task, each_target, output_slices, to_predictions
from graphslice.training.losses import AuxiliaryHeads, Loss

#: Logged value that selects the best epoch: the validation metric averaged over the last epochs. With a small
#: validation set, a single epoch may be good by chance: such early epochs were worse than the last on new molecules.
MONITOR = "val_choice"
# Number of epochs that are averaged, and the checkpoint keys of their scores and of the auxiliary errors.
_WINDOW, _RECENT, _AUXILIARY = 5, "recent_validations", "auxiliary_errors"


def standardisation(tasks: Sequence[Task], labels: np.ndarray, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and standard deviation of the training labels ``[R, T]``, for each output: ``float64 [W]``.

    For classes they are the logits of their frequencies, and 1; without labels 0 and 1.
    """
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
    """Training of a :class:`~graphslice.nn.GraphTransformer` on standardised regression targets and on classes.

    Args:
        config: configuration of the run.
        tasks: the T targets.
        labels: ``float64 [R, T]``, labels of the training molecules, atoms or bonds after their transform.
        metric: one of :data:`~graphslice.evaluation.metrics.METRICS`, which selects the best epoch.
        auxiliary: labels of auxiliary targets of the training molecules, by level.
        world: number of devices, each of which computes a part of every batch.

    Attributes:
        auxiliary_errors: mean absolute error of each auxiliary target at the last validation.
    """

    _regression: Tensor
    _outputs: Tensor
    _classes: Tensor

    def __init__(
        self,
        config: RunConfig,
        tasks: list[Task],
        labels: np.ndarray,
        metric: str,
        auxiliary: Mapping[str, Labels] | None = None,
        world: int = 1,
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
