"""Length of a run and its learning rate schedule."""

from __future__ import annotations

import math
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
