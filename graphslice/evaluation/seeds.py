"""What several seeds can tell of a mean."""

from __future__ import annotations

import numpy as np

#: Seeds below which nothing is said: the interval of two is six times as wide as that of many.
LEAST_SEEDS = 3
# Of the interval.
_LEVEL = 0.95


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """The 95% interval of a mean over seeds, by Student's t.

    Args:
        values: ``float64 [S]``, one of each seed, at least two.
    """
    from scipy.stats import t  # half a second, which a command that asks for none should not wait

    half = t.ppf((1 + _LEVEL) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)
