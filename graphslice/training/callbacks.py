"""What happens beside the training: the last checkpoint, and what the user sees."""

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

# Steps after which several devices agree on the time or an end: each of them waits for the others then.
_SYNC_EVERY = 20


class BestCheckpoint(ModelCheckpoint):
    """Keeps the best epoch, and knows it also where the folder of the run was moved since.

    Args:
        folder: of the run.
        monitor: what is logged of every epoch, by which it is chosen.
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
        """That of the class above, by which older runs have it too."""
        return super().state_key.replace(type(self).__qualname__, ModelCheckpoint.__qualname__, 1)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the score of the best epoch; no path is taken, since the run has one file for it."""
        score = state.get("best_model_score")
        known = isinstance(score, torch.Tensor) and score.numel() == 1 and score.is_floating_point()
        path = str(Path(str(self.dirpath)) / BEST) if known else ""
        best = {path: score} if known else {}
        super().load_state_dict(
            {"best_model_score": score, "best_model_path": path, "kth_best_model_path": path, "best_k_models": best}
            | ({"kth_value": score} if known else {})
        )


class LastCheckpoint(pl.callbacks.Checkpoint):
    """Keep ``last.ckpt`` no older than one epoch, or some minutes within a long one.

    It is one of the checkpoints to Lightning, which asks these after all other callbacks, in their order: so it comes
    after the best one, of which it holds what is known.

    The clock is read every so many steps, since the devices must agree on it.
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
    """End a run after so many epochs without a better validation, also one that goes on when its patience is over.

    It looks after a validation alone: at the end of an epoch that was resumed there, there is nothing yet to look at.
    """

    def __init__(self, metric: str, epochs: int, mode: str) -> None:
        super().__init__(metric, patience=epochs, mode=mode, check_finite=False, check_on_train_epoch_end=False)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True


class TimeBudget(pl.Callback):
    """Counts the seconds of training, over all resumptions, and ends the run when its minutes are over.

    Args:
        minutes: of the run; None for no limit.
        judged: whether the run was judged before: no step is made then, nor after a last validation, where its minutes
            are over.

    Attributes:
        fraction: of the minutes that are over, from 0 to 1, as of the begin of the step; 0 without a limit.
    """

    def __init__(self, minutes: float | None, evaluated: bool = False) -> None:
        self.limit, self.evaluated = None if minutes is None else 60 * minutes, evaluated
        self.fraction = 0.0
        self._before, self._validated = 0.0, -1
        self._begin: float | None = None

    @property
    def seconds(self) -> float:
        """Of training so far, validation included."""
        return self._before + (0.0 if self._begin is None else time.monotonic() - self._begin)

    @property
    def seconds_left(self) -> float | None:
        """Of its minutes; None without a limit."""
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
        # All devices must go by one clock, and asking it costs them time.
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
    """Ends the run after so many steps, with a validation: at its own limit Lightning ends without one.

    Attributes:
        made: steps since the run was begun, or resumed.
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
    """Ends the run on all of several devices when one of them was told to end (SIGTERM).

    Lightning asks at every step whether one was and waits for the answer, so that no GPU is given work ahead; and it
    tells the others from within the signal's handler, into whatever they exchange at that moment.
    """

    def __init__(self) -> None:
        self._sigterm_received = False

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        # Lightning has no switch for it; the handler it registered before is replaced, and restored by it after.
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
    """One bar for the whole run: steps, molecules per second, errors, time left.

    Where the output is no terminal, a line now and then instead.

    Args:
        steps: of the run.
        batch_size: molecules of a step.
        metric: what chooses the best epoch.
        console: where the bar goes.
        elapsed: gives the fraction of the run's minutes that are over.
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
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._printed = 0.0

    def _fraction_done(self, trainer: pl.Trainer) -> float:
        """The fraction of the run that is over."""
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
        said = f"{self.label} {float(trainer.callback_metrics[self.logged]):.4f}"
        self._val = f" · {said}"
        if self.console.is_terminal or not trainer.is_global_zero:
            return
        share = self._fraction_done(trainer)
        if share - self._printed >= 0.05 or share >= 1:
            self._printed = share
            passed = time.monotonic() - self._begin
            left = passed / max(1e-9, share - self._from) * (1 - share)
            self.console.print(
                f"epoch {trainer.current_epoch + 1}, step {trainer.global_step:,}, {100 * share:.0f}%: "
                f"{said}, {passed:.0f} s passed, {left:.0f} s left",
                highlight=False,
            )

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        self.bar.stop()


class StepProfile(pl.Callback):
    """Where the time of training went, in one table at its end.

    On a GPU every stage is waited for, so that its time is its own; that slows the run a little.

    Args:
        console: where the table goes.
        waited: gives the seconds that the loader has spent waiting for its threads so far.
    """

    STAGES = ("data", "wait", "forward", "backward", "optimiser", "rest")

    def __init__(self, console: Console, wait_seconds: Callable[[], float]) -> None:
        self.console, self.wait_seconds = console, wait_seconds
        self.seconds = dict.fromkeys(self.STAGES, 0.0)
        self.steps = 0
        self._since = self._waited = 0.0

    def _lap(self, stage: str, module: pl.LightningModule) -> None:
        if module.device.type == "cuda":
            torch.cuda.synchronize(module.device)
        now = time.perf_counter()
        self.seconds[stage] += now - self._since
        self._since = now

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._since, self._waited = time.perf_counter(), self.wait_seconds()

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._lap("rest", module)

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch, batch_idx: int) -> None:
        self._lap("data", module)
        wait_seconds = self.wait_seconds()
        self.seconds["wait"] += wait_seconds - self._waited
        self.seconds["data"] -= wait_seconds - self._waited
        self._waited = wait_seconds

    def on_before_backward(self, trainer: pl.Trainer, module: pl.LightningModule, loss) -> None:
        self._lap("forward", module)

    def on_after_backward(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._lap("backward", module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs, batch, batch_idx: int
    ) -> None:
        self._lap("optimiser", module)
        self.steps += 1

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._lap("rest", module)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._lap("rest", module)
        if not trainer.is_global_zero:
            return
        table = Table("stage", "seconds", "share", "ms a step", title=f"{self.steps:,} steps")
        total = sum(self.seconds.values())
        for stage, seconds in [*self.seconds.items(), ("all", total)]:
            share, each = f"{100 * seconds / max(total, 1e-9):.1f}%", f"{1e3 * seconds / max(self.steps, 1):.2f}"
            table.add_row(stage, f"{seconds:.2f}", share, each)
        self.console.print(table)
