"""Compilation of training steps with torch.compile, if it is expected to pay off."""

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

# Seconds of torch.compile per batch width (number of rows), forward and backward with CUDA graphs: about 40 for the
# four layers of the preset `small`, 60 for the twelve layers of the paper's size.
_SECONDS_PER_WIDTH, _SECONDS_PER_LAYER = 30.0, 2.5
# Assumed ratio of the time of eager to compiled steps; where kernel launches dominate, half of the gain is reached.
_SPEEDUP = 1.5
# The saved time must exceed the cost by this factor, since both are estimates.
_MARGIN = 1.5
# Warm-up steps, in which kernels are built and memory is allocated, and the steps measured after them.
_WARM_UP, _MEASURED = 20, 30


def is_worth_compiling(seconds_left: float, layers: int, lengths: int) -> bool:
    """True if compiled steps are expected to save clearly more time than compilation takes.

    With a time limit, the saved time allows more steps instead; the criterion is the same.

    Args:
        seconds_left: duration of the rest of the run with eager steps.
        layers: number of layers of the model.
        lengths: number of distinct batch widths, each of which is compiled separately.
    """
    cost = lengths * (_SECONDS_PER_WIDTH + _SECONDS_PER_LAYER * layers)
    return seconds_left * (1 - 1 / _SPEEDUP) > _MARGIN * cost


class Compilation(pl.Callback):
    """Compile the blocks: from the first step, never, or on a GPU if timing the first steps shows that it will pay off.

    The timed steps are synchronised one by one, and the first device decides for all. Compilation counts as training
    time. Compiled steps must equal eager steps up to rounding, which is checked on the smallest and the largest
    molecules. A resumed run decides anew.

    Args:
        config: configuration of the run.
        steps: length of the run in optimiser steps.
        seconds_left: returns the seconds until the time limit of the run; None without a limit.
        console: where to report that compiled steps fail or differ from eager steps.

    Attributes:
        compiled: True once the steps are compiled.
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
        """Compile the model, unless compiled steps differ from eager steps."""
        share = len(range(trainer.global_rank, self.config.trainer.batch_size, trainer.world_size))
        mode = "reduce-overhead" if module.device.type == "cuda" else "default"
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        batches = [batch.to(module.device) for batch in data.extreme_train_batches(share)]
        reason = compile_checked(module.model, batches, DTYPES[str(trainer.precision)], mode=mode)  # type: ignore[arg-type]
        # The first device decides for all: devices that run different programs would wait for each other forever.
        self.compiled = not trainer.strategy.broadcast(reason is not None)
        if not self.compiled:
            module.model.run_eagerly()  # type: ignore[operator,union-attr]
        if reason is not None:
            self.console.print(
                f"compiled steps: {reason}; continuing with eager steps (graphslice doctor shows details)",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._since = None  # the time between two epochs includes a validation

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
        """True if compilation will pay off, by the median time of the measured steps."""
        left = float(np.median(self._times)) * (self.steps - trainer.global_step)
        if (limit := self.seconds_left()) is not None:
            left = min(left, limit)
        lengths = trainer.datamodule.num_train_widths()  # type: ignore[attr-defined]
        return is_worth_compiling(left, self.config.model.layers, lengths)
