"""Confidence intervals of means against scipy and manual computation."""

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp

from graphslice.evaluation.metrics import mean_interval

VALUES = np.array([0.3, 0.29, 0.33, 0.41, 0.25, 0.31])


def test_interval_over_seeds_matches_scipy():
    interval = ttest_1samp(VALUES, 0).confidence_interval()
    assert mean_interval(VALUES) == pytest.approx((interval.low, interval.high))


def test_interval_over_folds_corrects_for_overlapping_training_sets():
    """Three repetitions of two folds: test and training sets have the same size."""
    half = t.ppf(0.975, 5) * np.sqrt((1 / 6 + 1) * VALUES.var(ddof=1))
    assert mean_interval(VALUES, 2) == pytest.approx((VALUES.mean() - half, VALUES.mean() + half))
