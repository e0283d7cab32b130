"""Confidence intervals of means over seeds or cross-validation folds."""

from __future__ import annotations

import numpy as np

#: Fewest seeds for which an interval is reported: that of two seeds is six times as wide as that of many.
MIN_SEEDS = 3
# Confidence level of the interval.
_LEVEL = 0.95


def mean_interval(values: np.ndarray, folds: int = 0, comparisons: int = 1) -> tuple[float, float]:
    """Return the 95% confidence interval of a mean over seeds or folds, by Student's t.

    Training sets of ``folds`` overlap, which increases the variance of the mean (Nadeau and Bengio 2003,
    doi:10.1023/A:1024068626366). ``comparisons`` intervals hold simultaneously (Bonferroni correction).
    """
    from scipy.stats import t  # the import takes half a second

    factor = 1 / len(values) + (1 / (folds - 1) if folds else 0)  # 1 / (folds - 1): size of test over training set
    half_width = t.ppf(1 - (1 - _LEVEL) / comparisons / 2, len(values) - 1) * values.std(ddof=1) * np.sqrt(factor)
    return float(values.mean() - half_width), float(values.mean() + half_width)
