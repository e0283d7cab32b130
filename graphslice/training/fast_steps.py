"""Fast execution of training steps: check of the operator backends, and compilation if it is expected to pay off."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console

from graphslice.data.batch_loader import extreme_batches
from graphslice.data.datamodule import MoleculeData
from graphslice.nn.agreement import compile_checked, faulty_backends
from graphslice.ops.dispatch import OPERATORS
from graphslice.training.devices import DTYPES, device_share
from graphslice.training.module import PropertyModule

# Seconds of torch.compile per batch width (number of rows), forward and backward with CUDA graphs, on two cores: about
# 24 for the four layers of the preset `small`, 28 for the twelve layers of the paper's size.
_SECONDS_PER_WIDTH, _SECONDS_PER_LAYER = 22.0, 0.5
# Assumed ratio of the time of eager to compiled steps; where kernel launches dominate, half of the gain is reached.
_SPEEDUP = 1.5
# The saved time must exceed the cost by this factor, since both are estimates.
_MARGIN = 1.5
# Warm-up steps, in which kernels are built and memory is allocated, and the steps measured after them.
_WARM_UP, _MEASURED = 20, 30


def is_worth_compiling(seconds_left: float, layers: int, lengths: int) -> bool:
    """True if compiled steps are expected to save clearly more time of the rest of a run than compilation takes.

    Each of ``lengths`` distinct batch widths is compiled separately.
    """
    cost = lengths * (_SECONDS_PER_WIDTH + _SECONDS_PER_LAYER * layers)
    return seconds_left * (1 - 1 / _SPEEDUP) > _MARGIN * cost


class FastSteps:
    """Fast backends and compiled steps, as far as they compute the right values and compilation pays off.

    The blocks are compiled from the first step, never, or on a GPU if timing the first steps shows that it will pay
    off. The timed steps are synchronised one by one, and the first device decides for all. Compilation counts as
    training time. Compiled steps must equal eager steps up to rounding, which is checked on the smallest and the
    largest molecules. A resumed run decides anew.

    ``seconds_left`` returns the seconds until the time limit of the run, None without a limit; the other arguments are
    those of :class:`~graphslice.training.loop.TrainingLoop`. ``compiled`` is True once the steps are compiled.
    """

    def __init__(
        self,
        module: PropertyModule,
        data: MoleculeData,
        fabric: Fabric,
        steps: int,
        seconds_left: Callable[[], float | None],
        console: Console,
    ) -> None:
        self.config, self.model, self.data, self.fabric = module.config, module.model, data, fabric
        self.steps, self.seconds_left, self.console = steps, seconds_left, console
        self.compiled = False
        self._measuring = False
        self._times: list[float] = []
        self._since: float | None = None

    def check_backends(self) -> None:
        """On a GPU, disable the operators that fail in the model, or whose results differ from plain torch."""
        if self.fabric.device.type != "cuda":
            return
        batches = extreme_batches(self.data.store, self.data.splits["train"], **self.data.config.collate_settings)
        batches = [batch.to(self.fabric.device) for batch in batches]
        dtype = DTYPES[device_share(self.fabric).precision]
        for name, reason in faulty_backends(self.model, batches, dtype).items():
            for backend in OPERATORS[name].backends:
                OPERATORS[name].disable(backend)
            self._report(f"{name}: {reason}; this run uses plain torch instead")

    def begin(self, step: int) -> None:
        """Compile or begin to measure before the first step of the run or of its resumption."""
        wanted = self.config.trainer.compile
        self._first = step
        self._measuring = wanted == "auto" and self.fabric.device.type == "cuda"
        if wanted == "on":
            self._compile()

    def begin_epoch(self) -> None:
        """Do not measure the time since the last step, which includes a validation."""
        self._since = None

    def after_step(self, step: int) -> None:
        """Measure a step, and compile after the last measured one if it will pay off."""
        if not self._measuring or step - self._first < _WARM_UP:
            return
        torch.cuda.synchronize(self.fabric.device)
        now = time.perf_counter()
        if self._since is not None:
            self._times.append(now - self._since)
        self._since = now
        if len(self._times) == _MEASURED:
            self._measuring = False
            if self.fabric.broadcast(self._is_worth_it(step)):
                self._compile()

    def _compile(self) -> None:
        """Compile the model, unless compiled steps differ from eager steps."""
        share, device = device_share(self.fabric), self.fabric.device
        size = len(range(share.rank, self.config.trainer.batch_size, share.world))
        mode = "reduce-overhead" if share.kind == "cuda" else "default"
        batches = [batch.to(device) for batch in self.data.extreme_train_batches(size, share)]
        reason = compile_checked(self.model, batches, DTYPES[share.precision], mode=mode)
        # The first device decides for all: devices that run different programs would wait for each other forever.
        self.compiled = not self.fabric.broadcast(reason is not None)
        if not self.compiled:
            self.model.run_eagerly()
        if reason is not None:
            self._report(f"compiled steps: {reason}; continuing with eager steps")

    def _is_worth_it(self, step: int) -> bool:
        """True if compilation will pay off, by the median time of the measured steps."""
        left = float(np.median(self._times)) * (self.steps - step)
        if (limit := self.seconds_left()) is not None:
            left = min(left, limit)
        return is_worth_compiling(left, self.config.model.layers, self.data.num_train_widths(device_share(self.fabric)))

    def _report(self, message: str) -> None:
        self.console.out(f"{message} (graphslice doctor shows details)", highlight=False)
