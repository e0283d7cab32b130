"""The LightningModule: loss, optimiser, schedule and validation of a GraphTransformer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed
from torch import Tensor

from graphslice.batch import GraphBatch
from graphslice.checkpoint import KEY, header
from graphslice.compat import migrate_weight_name
from graphslice.config import RunConfig
from graphslice.data.labels import Labels, pointers, ragged_indices
from graphslice.evaluation.metrics import METRICS, score
from graphslice.nn import GraphTransformer
from graphslice.tasks import BINARY, REGRESSION, Task, each_target, output_slices, to_predictions
from graphslice.training.auxiliary import AuxiliaryHeads
from graphslice.training.fine_tuning import parameter_groups
from graphslice.training.losses import Loss
from graphslice.training.schedule import linear_schedule

#: Logged value that selects the best epoch: the validation metric averaged over the last epochs. With a small
#: validation set, a single epoch may be good by chance: such early epochs were worse than the last on new molecules.
MONITOR = "val_choice"
# Number of epochs that are averaged, and the checkpoint keys of their scores and of the auxiliary errors.
_WINDOW, _RECENT, _AUXILIARY = 5, "recent_validations", "auxiliary_errors"


def standardisation(tasks: Sequence[Task], labels: np.ndarray, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the offset and the scale of each output of the network.

    Args:
        tasks: the T targets.
        labels: ``float64 [R, T]``, labels of the training set after their transform; nan where missing.
        outputs: number of outputs W.

    Returns:
        Two arrays ``float64 [W]``: mean and standard deviation of regression targets; for classes the logits of their
        frequencies, and 1.
    """
    mean, std = np.zeros(outputs), np.ones(outputs)
    for t, task, where in each_target(tasks):
        known = labels[~np.isnan(labels[:, t]), t]
        if task.kind == REGRESSION:
            # The standard deviation of equal numbers may be a rounding error instead of 0.
            mean[where], std[where] = known.mean(), known.std() if np.ptp(known) > 0 else 1.0
            continue
        shares = np.bincount(known.astype(int), minlength=len(task.classes)) + 0.5  # no class gets probability 0
        logs = np.log(shares / shares.sum())
        mean[where] = logs[1] - logs[0] if task.kind == BINARY else logs
    return mean, std


class PropertyModule(pl.LightningModule):
    """Training of a :class:`~graphslice.nn.GraphTransformer` on standardised regression targets and on classes.

    Args:
        config: configuration of the run.
        tasks: the T targets.
        labels: ``float64 [R, T]``, labels of the training molecules, atoms or bonds after their transform.
        metric: one of :data:`~graphslice.evaluation.metrics.METRICS`, which selects the best epoch.
        steps: length of the run in optimiser steps.
        elapsed: returns the fraction of the run's time limit that has passed; 0 without a time limit.
        auxiliary: labels of auxiliary atom- and bond-level targets of the training molecules, by level.

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
        steps: int,
        elapsed: Callable[[], float] = lambda: 0.0,
        auxiliary: Mapping[str, Labels] | None = None,
    ) -> None:
        super().__init__()
        self.config, self.tasks, self.metric, self.steps, self.elapsed = config, tasks, metric, steps, elapsed
        torch.manual_seed(config.trainer.seed)
        self.model = GraphTransformer(config.model)
        self.loss = Loss(tasks, config.trainer, labels)
        self.auxiliary = AuxiliaryHeads(config.model.dim, auxiliary) if auxiliary else None
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

    def configure_optimizers(self):
        settings = self.config.optimizer
        groups = parameter_groups(self.model, settings)
        if self.auxiliary is not None:
            groups.append({"params": list(self.auxiliary.parameters()), "lr": settings.peak_lr})
        optimizer = torch.optim.AdamW(
            groups,
            lr=settings.peak_lr,
            weight_decay=settings.weight_decay,
            # Gradient scaling with float16 and gradient clipping do not work with a fused optimiser.
            fused=self.trainer.precision != "16-mixed",
        )
        factor, total = linear_schedule(settings, self.steps), settings.total_steps or self.steps
        # The progress of the run is that of its steps or of its time limit, whichever is further.
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(max(step, self.elapsed() * total)))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None) -> None:
        if self.trainer.precision == "16-mixed":
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val:  # Lightning rejects clipping with fused optimisers in any mixed precision
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, gradient_clip_val)

    def transfer_batch_to_device(self, batch: GraphBatch, device: torch.device, dataloader_idx: int) -> GraphBatch:
        return batch.to(device, non_blocking=True)

    def on_train_batch_start(self, batch: GraphBatch, batch_idx: int) -> None:
        self.zero_grad()  # before the forward pass, since a CUDA graph may overwrite the memory of the gradients
        torch.compiler.cudagraph_mark_step_begin()
        # The dropout mask depends only on seed, step and device, so a resumed run draws the same.
        seed = (self.config.trainer.seed, self.global_step, self.global_rank)
        torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))

    def training_step(self, batch: GraphBatch, batch_idx: int) -> Tensor:
        assert batch.targets is not None
        mean, std = self.model.target_mean[self._outputs], self.model.target_std[self._outputs]
        labels = torch.where(self._regression, (batch.targets - mean) / std, batch.targets)
        # Logits of the class frequencies, which predictions include too; in a fine-tuned model, of the pretraining set.
        prior = self._classes * self.model.target_mean
        if self.auxiliary is None:
            parts = [self.loss(self.model.standardised(batch) + prior, labels)]
        else:
            outputs, rows = self.model.standardised_with_rows(batch)
            parts = [self.loss(outputs + prior, labels), *self.auxiliary.losses(rows, batch)]
        loss = torch.stack([self._mean(*part) for part in parts]).sum()
        self.log("train_loss", loss, on_step=True, on_epoch=True, batch_size=len(batch))
        return loss

    def _mean(self, total: Tensor, weight: Tensor) -> Tensor:
        """Return the mean over the labels of the whole batch, independent of their distribution over devices."""
        weight, world = weight.detach(), self.trainer.world_size
        if world > 1:
            torch.distributed.all_reduce(weight)
        return total * world / torch.where(weight > 0, weight, 1)

    def validation_step(self, batch: GraphBatch, batch_idx: int) -> None:
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

    def on_validation_epoch_end(self) -> None:
        batches = self._validated
        self._validated = []
        if self.trainer.world_size > 1:
            gathered: list = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(gathered, batches)
            batches = [batch for rank in gathered for batch in rank]
        dataset = self.trainer.datamodule.dataset  # type: ignore[attr-defined]
        rows, counts, values = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        rows, first = np.unique(rows, return_index=True)  # distributed sampling may repeat rows
        predictions = to_predictions(values[ragged_indices(pointers(counts), first)], self.tasks)
        value = score(self.metric, dataset.name, self.tasks, dataset.labels(rows), predictions)
        if not math.isfinite(value):
            value = METRICS[self.metric].loss(math.inf)  # the worst possible value
        self.log(f"val_{self.metric}", value)
        if self.auxiliary is not None:
            self.auxiliary_errors = self.auxiliary.mean_errors(self.trainer.world_size)
            self.log_dict({f"val_mae {name}": error for name, error in self.auxiliary_errors.items()})
        self._recent = [*self._recent, value][-_WINDOW:]
        self.log(MONITOR, sum(self._recent) / len(self._recent))

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        checkpoint[KEY] = header(self.config, self.tasks)
        checkpoint[_RECENT] = self._recent
        checkpoint[_AUXILIARY] = self.auxiliary_errors

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        checkpoint["state_dict"] = {migrate_weight_name(k): v for k, v in checkpoint["state_dict"].items()}
        self._recent = list(checkpoint.get(_RECENT, []))
        self.auxiliary_errors = dict(checkpoint.get(_AUXILIARY, {}))
        callbacks = checkpoint.get("callbacks", {})
        if "Clock" in callbacks:  # the name of TimeBudget in 0.1
            callbacks["TimeBudget"] = callbacks.pop("Clock")
