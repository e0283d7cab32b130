"""What several seeds, or folds, can tell of a mean."""

from __future__ import annotations

import numpy as np

#: Seeds below which nothing is said: the interval of two is six times as wide as that of many.
MIN_SEEDS = 3
# Of the interval.
_LEVEL = 0.95


def mean_interval(values: np.ndarray, folds: int = 0, comparisons: int = 1) -> tuple[float, float]:
    """The 95% interval of a mean over seeds, by Student's t.

    Args:
        values: ``float64 [S]``, one of each seed, at least two.
        folds: of a cross-validation, of which each value is one: their models share most of what they learned, so the
            variance of the mean is larger (Nadeau and Bengio 2003, doi:10.1023/A:1024068626366). 0 for seeds.
        among: how many such intervals there are, which hold all at once in 95% of cases (Bonferroni).
    """
    from scipy.stats import t  # half a second, which a command that asks for none should not wait

    share = 1 / len(values) + (1 / (folds - 1) if folds else 0)  # the test molecules over those for training
    half = t.ppf(1 - (1 - _LEVEL) / comparisons / 2, len(values) - 1) * values.std(ddof=1) * np.sqrt(share)
    return float(values.mean() - half), float(values.mean() + half)
