"""Lightning callbacks: checkpoints, early stopping, time and step limits, progress bar and step profile."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.utilities.exceptions import SIGTERMException
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from graphslice.evaluation.metrics import METRICS
from graphslice.run_files import BEST, LAST

# Interval in steps at which several devices agree on elapsed time or a stop; each agreement makes them wait.
_SYNC_EVERY = 20


class BestCheckpoint(ModelCheckpoint):
    """Checkpoint of the best epoch, which can be resumed after the run directory was moved.

    Args:
        folder: run directory.
        monitor: logged value that selects the best epoch.
        mode: ``"min"`` or ``"max"``.
    """

    def __init__(self, folder: Path, monitor: str, mode: str) -> None:
        super().__init__(
            folder,
            Path(BEST).stem,
            monitor=monitor,
            mode=mode,
            enable_version_counter=False,
            auto_insert_metric_name=False,
        )

    @property
    def state_key(self) -> str:
        """State key of the base class, so that runs of older versions can be resumed."""
        return super().state_key.replace(type(self).__qualname__, ModelCheckpoint.__qualname__, 1)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the score of the best epoch; its path is set from the present run directory."""
        score = state.get("best_model_score")
        known = isinstance(score, torch.Tensor) and score.numel() == 1 and score.is_floating_point()
        path = str(Path(str(self.dirpath)) / BEST) if known else ""
        best = {path: score} if known else {}
        super().load_state_dict(
            {"best_model_score": score, "best_model_path": path, "kth_best_model_path": path, "best_k_models": best}
            | ({"kth_value": score} if known else {})
        )


class LastCheckpoint(pl.callbacks.Checkpoint):
    """Write ``last.ckpt`` after every epoch, and every few minutes within a long one.

    Lightning calls checkpoint callbacks after all others, in their order. This one follows :class:`BestCheckpoint`, so
    that ``last.ckpt`` contains its current state.

    Args:
        folder: run directory.
        minutes: greatest age of the checkpoint within an epoch.
        every: interval in steps at which the clock is read, since all devices must agree on it.
    """

    def __init__(self, folder: Path, minutes: float, every: int = _SYNC_EVERY) -> None:
        self.folder, self.seconds, self.every = folder, 60 * minutes, every
        self._saved = time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs, batch, batch_idx: int
    ) -> None:
        if trainer.global_step % self.every or trainer.is_last_batch:
            return
        if trainer.strategy.broadcast(time.monotonic() - self._saved > self.seconds):  # all devices or none
            self._save(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        trainer.save_checkpoint(self.folder / LAST)
        self._saved = time.monotonic()


class Patience(EarlyStopping):
    """Early stopping after a number of epochs without improvement, also in a resumed run whose patience is exhausted.

    It is checked only after a validation: a run resumed at the end of an epoch has no validation score yet.

    Args:
        metric: logged value to monitor.
        epochs: number of epochs without improvement.
        mode: ``"min"`` or ``"max"``.
    """

    def __init__(self, metric: str, epochs: int, mode: str) -> None:
        super().__init__(metric, patience=epochs, mode=mode, check_finite=False, check_on_train_epoch_end=False)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True


class TimeBudget(pl.Callback):
    """Count the seconds of training, including those before resumptions, and stop the run at its time limit.

    Args:
        minutes: time limit of the run; None for no limit.
        evaluated: the run was evaluated before. If its time is used up, no further step is made then; nor is one
            made after a last validation.

    Attributes:
        fraction: fraction of the time limit that had passed at the beginning of the step, 0 to 1; 0 without a limit.
    """

    def __init__(self, minutes: float | None, evaluated: bool = False) -> None:
        self.limit, self.evaluated = None if minutes is None else 60 * minutes, evaluated
        self.fraction = 0.0
        self._before, self._validated = 0.0, -1
        self._begin: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds of training so far, including validation."""
        return self._before + (0.0 if self._begin is None else time.monotonic() - self._begin)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the time limit; None without a limit."""
        return None if self.limit is None else self.limit - self.seconds

    def state_dict(self) -> dict:
        return {"seconds": self.seconds, "validated": self._validated}

    def load_state_dict(self, state: dict) -> None:
        self._before, self._validated = state["seconds"], state.get("validated", -1)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._begin = time.monotonic()
        self._sync_fraction(trainer)
        validated = self.evaluated or self._validated == trainer.global_step
        if validated and self.limit is not None and self._before >= self.limit:
            trainer.should_stop = True

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch, batch_idx: int) -> None:
        # All devices must use one clock, and reading it is a broadcast.
        if trainer.world_size == 1 or trainer.global_step % _SYNC_EVERY == 0:
            self._sync_fraction(trainer)

    def _sync_fraction(self, trainer: pl.Trainer) -> None:
        if self.limit is not None:
            self.fraction = min(1.0, trainer.strategy.broadcast(self.seconds) / self.limit)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs, batch, batch_idx: int
    ) -> None:
        if self.fraction >= 1:
            trainer.should_stop = True

    def on_validation_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        module.log("seconds", self.seconds, rank_zero_only=True)
        self._validated = trainer.global_step


class StepLimit(pl.Callback):
    """Stop the run after a number of steps with a validation, which Lightning's own limit skips.

    Args:
        steps: length of the run in optimiser steps.

    Attributes:
        steps_done: steps since the run was started or resumed.
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.steps_done = steps, 0

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs, batch, batch_idx: int
    ) -> None:
        self.steps_done += 1
        if trainer.global_step >= self.steps:
            trainer.should_stop = True


class StopAllRanks(pl.Callback):
    """Stop the run on all devices when one of them receives SIGTERM.

    Lightning's own handling is replaced: it synchronises the devices at every step, so that no work is queued ahead on
    the GPUs, and it broadcasts from within the signal handler, which can interfere with other communication.
    """

    def __init__(self) -> None:
        self._sigterm_received = False

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        # Lightning has no option for this. It restores the original signal handler itself afterwards.
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, *_: object) -> None:
        self._sigterm_received = True

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs, batch, batch_idx: int
    ) -> None:
        if trainer.global_step % _SYNC_EVERY:
            return
        if trainer.strategy.reduce_boolean_decision(self._sigterm_received, all=False):
            raise SIGTERMException


class RunProgress(pl.Callback):
    """Progress bar of the run: steps, molecules per second, validation metric and remaining time.

    If the output is not a terminal, a line is printed at every 5% of the run instead.

    Args:
        steps: length of the run in optimiser steps.
        batch_size: molecules per step.
        metric: metric that selects the best epoch.
        console: where to print.
        elapsed: returns the fraction of the run's time limit that has passed.
    """

    def __init__(
        self, steps: int, batch_size: int, metric: str, console: Console, elapsed: Callable[[], float]
    ) -> None:
        self.steps, self.batch_size, self.console, self.elapsed = steps, batch_size, console, elapsed
        self.logged, self.label = f"val_{metric}", f"validation {METRICS[metric].label}"
        self.bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("remaining"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._printed = 0.0

    def _fraction_done(self, trainer: pl.Trainer) -> float:
        """Return the completed fraction of the run, by steps or time, whichever is larger."""
        return max(trainer.global_step / self.steps, self.elapsed())

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._begin, self._first, self._from = time.monotonic(), trainer.global_step, self._fraction_done(trainer)
        self._task = self.bar.add_task("", total=1.0, status="")
        self.bar.update(self._task, completed=self._from)
        self._val = ""
        if trainer.is_global_zero:
            self.bar.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs, batch, batch_idx: int
    ) -> None:
        done = trainer.global_step - self._first
        rate = done * self.batch_size / max(1e-9, time.monotonic() - self._begin)
        status = f"step {trainer.global_step:,} · {rate:,.0f} mol/s{self._val}"
        self.bar.update(self._task, completed=self._fraction_done(trainer), status=status)

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.sanity_checking or self.logged not in trainer.callback_metrics:
            return
        score = f"{self.label} {float(trainer.callback_metrics[self.logged]):.4f}"
        self._val = f" · {score}"
        if self.console.is_terminal or not trainer.is_global_zero:
            return
        share = self._fraction_done(trainer)
        if share - self._printed >= 0.05 or share >= 1:
            self._printed = share
            passed = time.monotonic() - self._begin
            left = passed / max(1e-9, share - self._from) * (1 - share)
            self.console.print(
                f"epoch {trainer.current_epoch + 1}, step {trainer.global_step:,}, {100 * share:.0f}%: "
                f"{score}, {passed:.0f} s elapsed, {left:.0f} s remaining",
                highlight=False,
            )

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        self.bar.stop()


class StepProfile(pl.Callback):
    """Measure the time of each stage of a training step, and print a table at the end.

    On a GPU, every stage is synchronised to measure its own time, which slows the run a little.

    Args:
        console: where to print.
        wait_seconds: returns the total seconds that the data loader has waited for its threads so far.
    """

    STAGES = ("data", "wait", "forward", "backward", "optimiser", "rest")

    def __init__(self, console: Console, wait_seconds: Callable[[], float]) -> None:
        self.console, self.wait_seconds = console, wait_seconds
        self.seconds = dict.fromkeys(self.STAGES, 0.0)
        self.steps = 0
        self._since = self._waited = 0.0

    def _add_lap(self, stage: str, module: pl.LightningModule) -> None:
        """Add the time since the previous call to a stage."""
        if module.device.type == "cuda":
            torch.cuda.synchronize(module.device)
        now = time.perf_counter()
        self.seconds[stage] += now - self._since
        self._since = now

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._since, self._waited = time.perf_counter(), self.wait_seconds()

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._add_lap("rest", module)

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch, batch_idx: int) -> None:
        self._add_lap("data", module)
        wait_seconds = self.wait_seconds()
        self.seconds["wait"] += wait_seconds - self._waited
        self.seconds["data"] -= wait_seconds - self._waited
        self._waited = wait_seconds

    def on_before_backward(self, trainer: pl.Trainer, module: pl.LightningModule, loss) -> None:
        self._add_lap("forward", module)

    def on_after_backward(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._add_lap("backward", module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs, batch, batch_idx: int
    ) -> None:
        self._add_lap("optimiser", module)
        self.steps += 1

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._add_lap("rest", module)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._add_lap("rest", module)
        if not trainer.is_global_zero:
            return
        table = Table("stage", "seconds", "share", "ms per step", title=f"{self.steps:,} steps")
        total = sum(self.seconds.values())
        for stage, seconds in [*self.seconds.items(), ("total", total)]:
            share, per_step = f"{100 * seconds / max(total, 1e-9):.1f}%", f"{1e3 * seconds / max(self.steps, 1):.2f}"
            table.add_row(stage, f"{seconds:.2f}", share, per_step)
        self.console.print(table)
