"""How long a run is, and its learning rate from beginning to end."""

from __future__ import annotations

import math
from collections.abc import Callable

from graphslice.config import OptimizerConfig, TrainerConfig

# Where the user names no length: so many epochs of up to so many molecules. Of more molecules the steps grow with the
# root of their number; of few there are so many steps at least.
_EPOCHS, _MOLECULES, _STEPS, _LEAST_EPOCHS = 30, 10_000, 100, 5
#: Epochs of a run that only its minutes end; such a run has as many steps at least.
NO_STEP_LIMIT = 1_000_000


def default_epochs(molecules: int, steps_per_epoch: int) -> int:
    """Epochs that suit a number of training molecules, where the user names none.

    Args:
        molecules: for training.
        steps_per_epoch: optimiser steps of an epoch.
    """
    fewer = math.sqrt(min(1.0, _MOLECULES / max(molecules, 1)))
    return max(_LEAST_EPOCHS, round(_EPOCHS * fewer), math.ceil(_STEPS / max(steps_per_epoch, 1)))


def run_steps(config: TrainerConfig, molecules: int, steps_per_epoch: int) -> int:
    """Optimiser steps until a run ends, unless its minutes end it before.

    Args:
        config: says how many epochs or steps, or minutes, or nothing.
        molecules, steps_per_epoch: as of :func:`default_epochs`.
    """
    epochs = config.max_epochs
    if epochs is None:
        limited = config.max_steps is not None or config.max_minutes is not None
        epochs = NO_STEP_LIMIT if limited else default_epochs(molecules, steps_per_epoch)
    return min(config.max_steps or epochs * steps_per_epoch, epochs * steps_per_epoch)


def linear_schedule(config: OptimizerConfig, steps: int) -> Callable[[float], float]:
    """Factor of the peak learning rate at a step: up linearly, then down linearly to ``end_lr``.

    As Graphormer trains (Ying et al. 2021, appendix B). ``steps`` is the length of the run.
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
