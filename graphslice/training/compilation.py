"""Whether a run earns the time back that compiling its steps takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from rich.console import Console

from graphslice.config import RunConfig
from graphslice.doctor.agreement import compile_checked
from graphslice.training.backend_check import DTYPES

# Seconds that torch.compile took for one number of rows, forward and backward with CUDA graphs: some 40 for the four
# layers of the preset `small` and 60 for the twelve of the paper's size.
_SECONDS_A_LENGTH, _SECONDS_A_LAYER = 30.0, 2.5
# Eager steps take so many times as long as compiled ones. Assumed: half of it is reached where launches take the time.
_SPEEDUP = 1.5
# What is saved must be so many times what compiling costs, for all of these are guesses.
_MARGIN = 1.5
# Steps that warm up, as kernels are built and memory is claimed, and steps that are measured after them.
_WARM_UP, _MEASURED = 20, 30


def is_worth_compiling(seconds_left: float, layers: int, lengths: int) -> bool:
    """Whether compiled steps save clearly more than compiling takes.

    With a limit of time nothing is saved, but as much more is done within it: the question is the same.

    Args:
        seconds_left: that the rest of the run takes with eager steps.
        layers: of the model.
        lengths: different numbers of rows of its batches; each is compiled by itself.
    """
    cost = lengths * (_SECONDS_A_LENGTH + _SECONDS_A_LAYER * layers)
    return seconds_left * (1 - 1 / _SPEEDUP) > _MARGIN * cost


class Compilation(pl.Callback):
    """Compiles the blocks: from the first step, never, or on a GPU once the first steps say that it is worth it.

    The steps that are measured are waited for, one by one; the first device decides for all. Compiling goes on
    within the training, so that it counts as time of training. Compiled steps give what eager ones do up to
    rounding, which is checked on the smallest molecules and the largest; a resumed run decides anew.

    Args:
        config: of the run.
        steps: its length in optimiser steps.
        seconds_left: gives the seconds of the run's minutes that are left; None without a limit.
        console: where it is told that compiled steps fail or compute something else than eager ones.

    Attributes:
        compiled: whether the steps are compiled by now.
    """

    def __init__(
        self, config: RunConfig, steps: int, seconds_left: Callable[[], float | None], console: Console
    ) -> None:
        self.config, self.steps, self.seconds_left, self.console = config, steps, seconds_left, console
        self.compiled = False
        self._measuring = False
        self._times: list[float] = []
        self._since: float | None = None

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        wanted = self.config.trainer.compile
        self._first = trainer.global_step
        self._measuring = wanted == "auto" and module.device.type == "cuda"
        if wanted == "on":
            self._compile(trainer, module)

    def _compile(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        share = len(range(trainer.global_rank, self.config.trainer.batch_size, trainer.world_size))
        mode = "reduce-overhead" if module.device.type == "cuda" else "default"
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        batches = [batch.to(module.device) for batch in data.extreme_train_batches(share)]
        reason = compile_checked(module.model, batches, DTYPES[str(trainer.precision)], mode=mode)  # type: ignore[arg-type]
        # The first device decides for all: those that compute differently would wait for each other.
        self.compiled = not trainer.strategy.broadcast(reason is not None)
        if not self.compiled:
            module.model.run_eagerly()  # type: ignore[operator,union-attr]
        if reason is not None:
            self.console.print(
                f"compiled steps: {reason}; this run goes on without them (graphslice doctor shows more)",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._since = None  # between two epochs there is a validation

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs, batch, batch_idx: int
    ) -> None:
        if not self._measuring or trainer.global_step - self._first < _WARM_UP:
            return
        torch.cuda.synchronize(module.device)
        now = time.perf_counter()
        if self._since is not None:
            self._times.append(now - self._since)
        self._since = now
        if len(self._times) == _MEASURED:
            self._measuring = False
            if trainer.strategy.broadcast(self._is_worth_it(trainer)):
                self._compile(trainer, module)

    def _is_worth_it(self, trainer: pl.Trainer) -> bool:
        left = float(np.median(self._times)) * (self.steps - trainer.global_step)
        if (limit := self.seconds_left()) is not None:
            left = min(left, limit)
        lengths = trainer.datamodule.num_train_widths()  # type: ignore[attr-defined]
        return is_worth_compiling(left, self.config.model.layers, lengths)
