"""Weights that few rows are to choose: not the best ones alone, but the mean of all that are nearly as good."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def simplex_grid(steps: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to give a number of steps to a number of parts."""
    if parts == 1:
        yield (steps,)
        return
    for first in range(steps + 1):
        for rest in simplex_grid(steps - first, parts - 1):
            yield first, *rest


def within_standard_errors(losses: np.ndarray, errors: float = 1.0) -> np.ndarray:
    """Which of several choices lie within one standard error of the best, paired over the rows.

    Args:
        losses: ``float64 [C, R]``, of each choice on each of at least two rows.
        errors: within how many standard errors, where not one.

    Returns:
        ``bool [C]``, at least one of them true.
    """
    excess = losses - losses[losses.mean(axis=1).argmin()]
    return excess.mean(axis=1) <= errors * excess.std(axis=1, ddof=1) / np.sqrt(losses.shape[1])
