"""What a user sees of a training in progress: the progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

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
