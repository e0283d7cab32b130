"""Model averaging: with few rows, weights are averaged over all choices that are nearly as good as the best."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np


def simplex_grid(steps: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to divide a number of steps among a number of parts."""
    end = steps + parts - 1
    for bars in combinations(range(end), parts - 1):
        yield tuple(after - before - 1 for before, after in pairwise((-1, *bars, end)))


def within_standard_errors(losses: np.ndarray, errors: float = 1.0) -> np.ndarray:
    """Select the choices whose mean loss is within some standard errors of the best, paired over the rows.

    Args:
        losses: ``float64 [C, R]``, the loss of each choice on each of at least two rows.
        errors: number of standard errors.

    Returns:
        ``bool [C]``, at least one of them True.
    """
    excess = losses - losses[losses.mean(axis=1).argmin()]
    return excess.mean(axis=1) <= errors * excess.std(axis=1, ddof=1) / np.sqrt(losses.shape[1])
