"""Length of a run in steps and time, and its learning rate schedule."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from graphslice.config import OptimizerConfig, TrainerConfig

# Default length: 30 epochs of up to 10,000 molecules. With more molecules the number of steps grows with the square
# root of their number, down to 5 epochs; with few molecules there are at least 100 steps.
_EPOCHS, _MOLECULES, _MIN_STEPS, _MIN_EPOCHS = 30, 10_000, 100, 5
#: Number of epochs, and least number of steps, of a run that is limited only by time.
NO_STEP_LIMIT = 1_000_000


def default_epochs(molecules: int, steps_per_epoch: int) -> int:
    """Return the default number of epochs.

    Args:
        molecules: size of the training set.
        steps_per_epoch: optimiser steps per epoch.
    """
    factor = math.sqrt(min(1.0, _MOLECULES / max(molecules, 1)))
    return max(_MIN_EPOCHS, round(_EPOCHS * factor), math.ceil(_MIN_STEPS / max(steps_per_epoch, 1)))


def run_steps(config: TrainerConfig, molecules: int, steps_per_epoch: int) -> int:
    """Return the length of a run in optimiser steps, unless its time limit ends it earlier.

    Args:
        config: trainer configuration, with a maximum of epochs, steps or minutes, or none of these.
        molecules, steps_per_epoch: as in :func:`default_epochs`.
    """
    epochs = config.max_epochs
    if epochs is None:
        limited = config.max_steps is not None or config.max_minutes is not None
        epochs = NO_STEP_LIMIT if limited else default_epochs(molecules, steps_per_epoch)
    return min(config.max_steps or epochs * steps_per_epoch, epochs * steps_per_epoch)


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
        self.fraction = 0.0
        self._before = 0.0
        self._begin: float | None = None

    def resume(self, seconds: float) -> None:
        """Count the seconds of training before this resumption."""
        self._before = seconds
        self.update(seconds)

    def start(self) -> None:
        """Start the clock."""
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds of training so far, including validation."""
        return self._before + (0.0 if self._begin is None else time.monotonic() - self._begin)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the time limit; None without a limit."""
        return None if self.limit is None else self.limit - self.seconds

    def update(self, seconds: float) -> None:
        """Set the fraction that has passed after some seconds, those of the first of several devices."""
        if self.limit is not None:
            self.fraction = min(1.0, seconds / self.limit)


def linear_schedule(config: OptimizerConfig, steps: int) -> Callable[[float], float]:
    """Make the learning rate schedule: linear warm-up to ``peak_lr``, then linear decay to ``end_lr``.

    As for Graphormer (Ying et al. 2021, appendix B).

    Args:
        config: learning rates, and steps of warm-up and in total.
        steps: length of the run, used if the configuration sets no total.

    Returns:
        A function from the step to the factor of ``peak_lr``.
    """
    total = config.total_steps or steps
    warmup = config.warmup_steps if config.warmup_steps is not None else max(1, round(0.05 * total))
    end = config.end_lr / config.peak_lr

    def factor(step: float) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if step >= total:
            return end
        return end + (1 - end) * (total - step) / max(1, total - warmup)

    return factor
