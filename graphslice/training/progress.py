"""What a user sees of a training in progress: the progress bar, and the time per stage of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from graphslice.data.batch_loader import BatchLoader
from graphslice.evaluation.metrics import METRICS


@dataclass(frozen=True)
class Part:
    """A training as a part of the whole work.

    Attributes:
        name: what is trained.
        before: optimiser steps of the trainings before it.
        after: optimiser steps of the trainings after it.
    """

    name: str = "training"
    before: int = 0
    after: int = 0


class RunProgress:
    """Progress bar of the run: steps, molecules per second, validation metric and remaining time.

    If the output is not a terminal, a line is printed at every 5% of the run instead. ``bar`` is a context manager.

    Args:
        steps, batch_size: length of the run in optimiser steps, and molecules per step.
        metric: metric that selects the best epoch.
        console: where to print; a quiet one in all but the first process.
        elapsed: returns the fraction of the run's time limit that has passed.
        part: the part of the whole work that this training is; progress and remaining time are of the whole.
    """

    def __init__(
        self, steps: int, batch_size: int, metric: str, console: Console, elapsed: Callable[[], float], part: Part
    ) -> None:
        self.steps, self.batch_size, self.console, self.elapsed, self.part = steps, batch_size, console, elapsed, part
        self.logged, self.label = f"val_{metric}", f"validation {METRICS[metric].label}"
        self.bar = Progress(
            TextColumn(part.name),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("remaining"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal or console.quiet,
        )
        self._printed = part.before / max(1, part.before + steps + part.after)
        self._score = ""

    def begin(self, step: int) -> None:
        """Begin before the first step of the run or of its resumption."""
        self._begin, self._first, self._from = time.monotonic(), step, self._fraction_done(step)
        self._task = self.bar.add_task("", total=1.0, status="")
        self.bar.update(self._task, completed=self._from)

    def update(self, step: int) -> None:
        """Show that a step was made."""
        rate = (step - self._first) * self.batch_size / max(1e-9, time.monotonic() - self._begin)
        status = f"step {step:,} · {rate:,.0f} mol/s{self._score}"
        self.bar.update(self._task, completed=self._fraction_done(step), status=status)

    def validated(self, step: int, steps_per_epoch: int, scores: Mapping[str, float]) -> None:
        """Show the score of a validation, if any; without a terminal, print a line if the run has progressed by 5%."""
        score = f"{self.label} {scores[self.logged]:.4f}, " if scores else ""
        self._score = f" · {score.removesuffix(', ')}" if scores else ""
        share = self._fraction_done(step)
        if not self.console.is_terminal and (share - self._printed >= 0.05 or share >= 1):
            self._printed = share
            passed = time.monotonic() - self._begin
            left = passed / max(1e-9, share - self._from) * (1 - share)
            where = f"epoch {-(-step // steps_per_epoch)}, step {step:,}, {100 * share:.0f}%"
            name = "" if self.part == Part() else f"{self.part.name}, "
            text = f"{name}{where}: {score}{passed:.0f} s elapsed, {left:.0f} s remaining"
            self.console.print(text, highlight=False)

    def _fraction_done(self, step: int) -> float:
        """Return the completed fraction of the whole work, by steps or time, whichever is larger."""
        part = self.part
        return max((part.before + step) / (part.before + self.steps + part.after), self.elapsed())


class StepProfile:
    """Time of each stage of a training step, printed as a table at the end.

    On a GPU, every stage is synchronised to measure its own time, which slows the run a little.

    Args:
        console: where to print.
        device: device of the run.
        batches: loader of the training batches, whose waiting for its threads is a stage of its own.
        active: False measures and prints nothing.
    """

    STAGES = ("data", "wait", "forward", "backward", "optimiser", "rest")

    def __init__(self, console: Console, device: torch.device, batches: BatchLoader, active: bool) -> None:
        self.console, self.device, self.batches, self.active = console, device, batches, active
        self.seconds = dict.fromkeys(self.STAGES, 0.0)
        self.steps = 0

    def begin(self) -> None:
        """Start the clock."""
        self._since, self._waited = time.perf_counter(), self.batches.wait_seconds

    def lap(self, stage: str) -> None:
        """Add the time since the previous call to a stage."""
        if not self.active:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds[stage] += now - self._since
        self._since = now
        if stage == "data":
            waited = self.batches.wait_seconds - self._waited
            self.seconds["wait"] += waited
            self.seconds["data"] -= waited
            self._waited += waited
        self.steps += stage == "optimiser"

    def print(self) -> None:
        """Print the table."""
        if not self.active:
            return
        table = Table("stage", "seconds", "share", "ms per step", title=f"{self.steps:,} steps")
        total = sum(self.seconds.values())
        for stage, seconds in [*self.seconds.items(), ("total", total)]:
            share, per_step = f"{100 * seconds / max(total, 1e-9):.1f}%", f"{1e3 * seconds / max(self.steps, 1):.2f}"
            table.add_row(stage, f"{seconds:.2f}", share, per_step)
        self.console.print(table)
