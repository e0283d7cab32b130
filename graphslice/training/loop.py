"""The training loop of a run: steps, validations, checkpoints, limits and logs, in the order in which they happen."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import Tensor

from graphslice.atomic_write import atomic_write
from graphslice.batch import GraphBatch
from graphslice.checkpoint import save_checkpoint
from graphslice.data.datamodule import MoleculeData
from graphslice.evaluation.metrics import METRICS
from graphslice.run_files import BEST, LAST
from graphslice.signals import interrupts_are_handled, signals_handled
from graphslice.torch_io import load_weights, torch_bytes
from graphslice.training.devices import autocast, device_share
from graphslice.training.fast_steps import FastSteps
from graphslice.training.module import MONITOR, PropertyModule
from graphslice.training.optimizer import make_optimizer
from graphslice.training.progress import Part, RunProgress

# Interval in steps at which last.ckpt may be due, and at which several devices agree on the time or a stop.
_SYNC_EVERY = 20
# Interval in steps at which the loss and the learning rates are logged.
_LOG_EVERY = 50


class Interrupted(KeyboardInterrupt):
    """Raised when the user stops the run."""


@dataclass
class TrainingState:
    """Where training stands, apart from weights, optimiser and learning rates.

    Attributes:
        step: optimiser steps so far.
        seconds: time of training so far, with validations.
        validated: step of the last validation.
        best: best validation score so far, of :data:`~graphslice.training.module.MONITOR`.
        waited: validations since the best one.
    """

    step: int = 0
    seconds: float = 0.0
    validated: int = -1
    best: float | None = None
    waited: int = 0


class TimeBudget:
    """Time limit of a run, which includes the time before its resumptions.

    Args:
        minutes: time limit; None for no limit.

    Attributes:
        limit: time limit in seconds, or None.
        fraction: fraction of the time limit that had passed at the last update, 0 to 1; 0 without a limit.
    """

    def __init__(self, minutes: float | None) -> None:
        self.limit = None if minutes is None else 60 * minutes
        self.fraction = self._before = 0.0
        self._begin: float | None = None

    def resume(self, seconds: float) -> None:
        """Count the seconds of training before this resumption."""
        self._before = seconds
        self.update(seconds)

    def start(self) -> None:
        """Start the clock."""
        self._begin = time.monotonic()

    def update(self, seconds: float) -> None:
        """Set the fraction that has passed after some seconds, those of the first of several devices."""
        self.fraction = 0.0 if self.limit is None else min(1.0, seconds / self.limit)

    @property
    def seconds(self) -> float:
        """Seconds of training so far, including validation."""
        return self._before + (0.0 if self._begin is None else time.monotonic() - self._begin)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the time limit; None without a limit."""
        return None if self.limit is None else self.limit - self.seconds


class TrainingLoop:
    """Training of a model until it reaches its limit of steps or time, runs out of patience, or is stopped.

    Args:
        fabric, module, data: devices and loggers, model, molecules of the run.
        out: run directory.
        steps: length of the run in optimiser steps.
        console: where to report.
        part: the part of the whole work that this training is, for the progress bar.
        after_epoch: called with this loop after every epoch; an exception ends the training.

    Attributes:
        state: where training stands.
        budget: time limit of the run.
        fast: checks of fast execution, and whether the steps are compiled.
    """

    def __init__(
        self,
        fabric: Fabric,
        module: PropertyModule,
        data: MoleculeData,
        out: Path,
        steps: int,
        console: Console,
        *,
        part: Part | None = None,
        after_epoch: Callable[[TrainingLoop], object] | None = None,
    ) -> None:
        self.after_epoch = after_epoch
        self.fabric, self.module, self.data, self.out, self.steps = fabric, module, data, out, steps
        self.settings, self.state = module.config.trainer, TrainingState()
        self.budget = budget = TimeBudget(self.settings.max_minutes)
        self.fast = FastSteps(module, data, fabric, steps, lambda: budget.seconds_left, console)
        self.progress = RunProgress(
            steps, self.settings.batch_size, module.metric, console, lambda: budget.fraction, part or Part()
        )
        share = device_share(fabric)
        self.train_batches = data.train_loader(share, lambda: self.state.step)
        self.valid_batches = data.eval_loader("valid", share)
        fabric.to_device(module)
        self.model = fabric.strategy.setup_module(module)  # over several devices, averages the gradients
        fused = share.precision != "16-mixed"  # gradients are scaled
        self.optimizer, self.schedule = make_optimizer(module, steps, lambda: budget.fraction, fused=fused)
        self._saved = time.monotonic()
        self._signals: list[int] = []  # received, and still to take effect

    def run(self, last: Path | None) -> None:
        """Train the model from scratch, or from the last checkpoint of a run.

        Raises:
            Interrupted: if the run is stopped by a signal.
            KeyboardInterrupt: if it is stopped by a second signal that is Ctrl-C, at once.
        """
        numbers = (signal.SIGTERM, *([signal.SIGINT] if interrupts_are_handled() else []))
        with signals_handled(self._receive_signal, numbers):
            if last is not None:
                self._restore(last)
            self.fast.check_backends()
            self.budget.resume(self.state.seconds)
            if self._finished():
                return
            for logger in self.fabric.loggers:
                logger.save()  # creates the logs, which takes seconds
            self.budget.start()
            with self.progress.bar:
                self.fast.begin(self.state.step)
                self.progress.begin(self.state.step)
                while not self._finished():
                    self._train_epoch()
            for logger in self.fabric.loggers:
                logger.finalize("success")

    def _finished(self) -> bool:
        """True if neither a step nor a validation remains; checked before every epoch."""
        patience = self.settings.patience
        if self._awaits_validation():
            return False
        return self._out_of_limits() or (patience is not None and self.state.waited >= patience)

    def _awaits_validation(self) -> bool:
        """True between the last step before a validation and the validation, in which a run may be stopped."""
        state = self.state
        return state.step not in (0, state.validated) and (
            self._out_of_limits() or state.step % len(self.train_batches) == 0
        )

    def _out_of_limits(self) -> bool:
        return self.state.step >= self.steps or self.budget.fraction >= 1

    def _train_epoch(self) -> None:
        """Make the steps that remain of an epoch, or until the run ends; then validate and write last.ckpt."""
        self.fast.begin_epoch()
        if not self._awaits_validation():
            self._train_steps()
        self._validate()
        self._save_last()
        self._stop_if_signalled()
        if self.after_epoch is not None:
            self.after_epoch(self)

    def _train_steps(self) -> None:
        """Make the steps that remain of an epoch, or until the run ends."""
        total, molecules = torch.zeros((), device=self.fabric.device), 0
        for batch in self.train_batches:
            if self.fabric.world_size == 1 or self.state.step % _SYNC_EVERY == 0:
                self._read_clock()
            batch = batch.to(self.fabric.device, non_blocking=True)
            loss = self._step(batch)
            total, molecules = total + loss * len(batch), molecules + len(batch)
            ended = self._out_of_limits()
            self.fast.after_step(self.state.step)
            self.progress.update(self.state.step)
            if ended or self.state.step % _LOG_EVERY == 0:
                self._log({"train_loss_step": float(loss)})
            if ended:
                break
            if self.state.step % _SYNC_EVERY == 0 and self.state.step % len(self.train_batches):
                if self.fabric.broadcast(time.monotonic() - self._saved > 60 * self.settings.checkpoint_minutes):
                    self._save_last()
                self._stop_if_signalled()
            self._stop_if_alone()
        self._log({"train_loss_epoch": float(total) / molecules})

    def _step(self, batch: GraphBatch) -> Tensor:
        """Make one optimiser step and return the loss of its batch."""
        self.module.zero_grad()  # before the forward pass, since a CUDA graph may overwrite the memory of the gradients
        torch.compiler.cudagraph_mark_step_begin()
        # The dropout mask depends only on seed, step and device, so a resumed run draws the same.
        seed = (self.settings.seed, self.state.step, self.fabric.global_rank)
        torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))
        with autocast(self.fabric):
            loss = self.model(batch)
        self.fabric.backward(loss)
        if clip := self.settings.gradient_clip:
            self.fabric.clip_gradients(self.module, self.optimizer, max_norm=clip, error_if_nonfinite=False)
        self.fabric.strategy.optimizer_step(self.optimizer)
        self.state.step += 1
        if self.state.step % _LOG_EVERY == 0:
            rates = self.schedule.get_last_lr()
            names = ["lr-AdamW"] if len(rates) == 1 else [f"lr-AdamW/pg{i + 1}" for i in range(len(rates))]
            self.fabric.log_dict(dict(zip(names, rates, strict=True)), self.state.step - 1)
        self.schedule.step()
        return loss.detach()

    def _validate(self) -> None:
        """Score the validation set, log the scores, and write ``model.safetensors`` if they are the best so far.

        Without a validation set it is the model after the last step.
        """
        if not len(self.data.splits["valid"]):
            self.state.seconds, self.state.validated = self.budget.seconds, self.state.step
            if self.state.step >= self.steps:
                self._save_best()
            self.progress.validated(self.state.step, len(self.train_batches), {})
            return
        self.module.zero_grad()  # frees memory
        self.module.eval()
        with torch.inference_mode(), autocast(self.fabric):
            for batch in self.valid_batches:
                self.module.validate(batch.to(self.fabric.device, non_blocking=True))
                self._stop_if_alone()
        self.module.train()
        scores = self.module.validation_scores(self.data.dataset)
        state, lower_is_better = self.state, METRICS[self.module.metric].loss
        state.seconds, state.validated = self.budget.seconds, state.step
        self._log({**scores, "seconds": state.seconds})
        state.waited += 1
        if state.best is None or lower_is_better(scores[MONITOR]) < lower_is_better(state.best):
            state.best, state.waited = scores[MONITOR], 0
            self._save_best()
        self.progress.validated(state.step, len(self.train_batches), scores)

    def _read_clock(self) -> None:
        """Update the fraction of the time limit that has passed; all devices use the clock of the first."""
        if self.budget.limit is not None:
            self.budget.update(self.fabric.broadcast(self.budget.seconds))

    def _receive_signal(self, number: int, frame: object) -> None:
        """Note Ctrl-C or SIGTERM, which stops the run between two steps; a second Ctrl-C stops it at once.

        An exception that a signal raises anywhere could leave a file half-written, or strike compiled code. A signal
        after SIGTERM is no wish of a person: systemd and Slurm send SIGTERM to all processes, of which an ensemble
        then interrupts its members.
        """
        if number == signal.SIGINT and signal.SIGINT in self._signals:
            raise KeyboardInterrupt
        self._signals.append(number)

    def _stop_if_signalled(self) -> None:
        """Save the state and stop all devices if one of them has received a signal."""
        if self.fabric.strategy.reduce_boolean_decision(bool(self._signals), all=False):
            self._save_last()
            raise Interrupted

    def _stop_if_alone(self) -> None:
        """Do so with the only device, without waiting for the step at which several would agree."""
        if self.fabric.world_size == 1:
            self._stop_if_signalled()

    def _log(self, values: dict[str, float]) -> None:
        epoch = (self.state.step - 1) // len(self.train_batches)
        self.fabric.log_dict({"epoch": epoch, **values}, self.state.step - 1)
        for logger in self.fabric.loggers:
            logger.save()

    def _save_last(self) -> None:
        """Write ``last.ckpt``, from which the run can be continued."""
        self._saved, self.state.seconds = time.monotonic(), self.budget.seconds
        training = {
            "training": asdict(self.state),
            "optimizer_states": [self.optimizer.state_dict()],
            "lr_schedulers": [self.schedule.state_dict()],
            "precision": self.fabric.strategy.precision.state_dict(),  # scale of the loss in float16
        }
        if self.fabric.is_global_zero:
            with atomic_write(self.out / LAST) as temporary:
                temporary.write_bytes(torch_bytes(self.module.state() | training))

    def _save_best(self) -> None:
        if self.fabric.is_global_zero:
            save_checkpoint(self.module.trained(), self.out / BEST)

    def _restore(self, last: Path) -> None:
        contents = load_weights(last)
        self.module.restore(contents)
        self.optimizer.load_state_dict(contents["optimizer_states"][0])
        self.schedule.load_state_dict(contents["lr_schedulers"][0])
        if contents["precision"]:  # empty unless the run was trained in float16 before
            self.fabric.strategy.precision.load_state_dict(contents["precision"])
        self.state = TrainingState(**contents["training"])
