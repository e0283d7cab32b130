from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphslice.calibration.conformal import CONSTANT, check_level, conformal_quantile, fit_scale, scale_of
from graphslice.errors import InputError


@pytest.mark.parametrize("level", [49, 100, 0.9, float("nan"), "90", None, True])
def test_levels_that_are_none(level):
    with pytest.raises(InputError, match="level in percent"):
        check_level(level)


@given(st.integers(1, 300), st.integers(50, 99))
def test_the_rank_of_the_quantile(count, level):
    """By counting: the smallest score that at least ceil((n + 1) level) scores do not exceed."""
    scores = np.sort(np.random.default_rng(count).random(count))
    needed = -(-(count + 1) * level // 100)
    found = conformal_quantile(scores, check_level(level))
    if needed > count:
        assert found == np.inf
    else:
        assert (scores <= found).sum() == needed


def test_coverage_of_new_molecules():
    """Over many calibrations of few molecules the mean coverage is at least what was asked for."""
    random = np.random.default_rng(0)
    for level in (0.8, 0.9):
        inside = [
            random.normal() ** 2 <= conformal_quantile(np.sort(random.normal(size=30) ** 2), level) for _ in range(4000)
        ]
        assert level - 0.02 < np.mean(inside) < level + 0.04


def test_what_tells_of_the_error_is_found():
    random = np.random.default_rng(0)
    useful, noise = random.gamma(2, size=500), random.gamma(2, size=500)
    errors = np.abs(random.normal(size=500)) * useful
    weights = fit_scale({"useful": useful, "noise": noise}, errors)
    share = {name: weight * (1 if name == CONSTANT else 2) for name, weight in weights.items()}  # a gamma's mean is 2
    assert share["useful"] > 0.5 > share.get("noise", 0) + share[CONSTANT] and sum(share.values()) == pytest.approx(
        1, abs=0.1
    )
    scale = scale_of({"useful": useful, "noise": noise}, weights, 500)
    assert scale.min() > 0 and np.corrcoef(scale, useful)[0, 1] > 0.9 and scale.mean() == pytest.approx(1, rel=1e-6)


def test_few_rows_or_no_difference_give_equal_scales():
    random = np.random.default_rng(1)
    assert fit_scale({"a": random.random(10)}, random.random(10)) == {CONSTANT: 1.0}
    assert fit_scale({"a": np.zeros(50)}, random.random(50)) == {CONSTANT: 1.0}
    assert scale_of({"a": np.ones(3)}, {CONSTANT: 1.0}, 3).tolist() == [1, 1, 1]
    weights = fit_scale({"a": random.random(50)}, np.zeros(50))  # no error at all
    assert np.isfinite(list(weights.values())).all() and weights[CONSTANT] > 0
