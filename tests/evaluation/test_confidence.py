"""Confidence intervals of means against scipy and manual computation."""

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp

from graphslice.evaluation.format_scores import describe_seeds
from graphslice.evaluation.metrics import mean_interval

VALUES = np.array([0.3, 0.29, 0.33, 0.41, 0.25, 0.31])


def test_interval_over_seeds_matches_scipy():
    interval = ttest_1samp(VALUES, 0).confidence_interval()
    assert mean_interval(VALUES) == pytest.approx((interval.low, interval.high))


def test_interval_over_folds_corrects_for_overlapping_training_sets():
    """Three repetitions of two folds: test and training sets have the same size."""
    half = t.ppf(0.975, 5) * np.sqrt((1 / 6 + 1) * VALUES.var(ddof=1))
    assert mean_interval(VALUES, 2) == pytest.approx((VALUES.mean() - half, VALUES.mean() + half))


CLEAR, UNCLEAR = ([0.5, 0.52, 0.54], [0.8, 0.81, 0.87]), ([0.5, 0.9, 0.7], [0.6, 0.61, 0.62])


@pytest.mark.parametrize(
    ("network", "forest", "metric", "expected"),
    [
        (*CLEAR, "mae", "network is better than random forest by 0.307"),
        (*CLEAR, "auroc", "random forest is better than network by 0.307"),
        (*UNCLEAR, "mae", "random forest is better than network by 0.09"),
        ([0.5, 0.52], [0.8, 0.82], "mae", "network is better than random forest by 0.3; 2 models are too few"),
    ],
)
def test_significance_of_the_difference_over_seeds(network, forest, metric, expected):
    found = [{"network": n, "forest": f, "stack": 0.4} for n, f in zip(network, forest, strict=True)]
    lines = describe_seeds("test", found, metric)
    assert "stack 0.4000 ± 0.0000" in lines[0] and lines[1].startswith(expected)
    assert describe_seeds("test", found[:1], metric) == []
    if len(network) > 2:  # by Student's t
        gains = np.subtract(forest, network)
        low, high = ttest_1samp(gains * np.sign(gains.mean()), 0).confidence_interval()
        verdict = ", not significant given the" if low < 0 else ", significant given the"
        assert f"{low:.3g} to {high:.3g})" + verdict in lines[1]


def test_metric_undefined_for_one_seed_is_omitted():
    found = [{"network": None, "forest": 0.8, "stack": None}, {"network": 0.6, "forest": 0.8, "stack": 0.7}]
    assert describe_seeds("test", found, "auroc") == []
    (line,) = describe_seeds("test", [{**each, "forest": None, "network": 0.6} for each in found], "auroc")
    assert "network 0.6000 ± 0.0000" in line
