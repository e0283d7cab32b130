"""Bounds of labels, against scipy's integrals and direct computation."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from graphslice.tasks import expected_values, is_bounded, parse_bound, within_bounds

INF = np.inf


@pytest.mark.parametrize(
    ("cell", "bound"),
    [
        (">1000", (1000, INF)),
        (" < 0.01 ", (-INF, 0.01)),
        (">=50", (50, INF)),
        ("\u22643", (-INF, 3)),
        ("\u2265 -2.5e-3", (-0.0025, INF)),
        ("=>5", (5, INF)),
        ("<\u22123", (-INF, -3)),
        ("> .5", (0.5, INF)),
    ],
)
def test_bounds_are_parsed(cell, bound):
    assert parse_bound(cell) == bound


@pytest.mark.parametrize("cell", ["5", ">abc", ">", ">>5", "> 5 uM", "5>", ">1,5", ">nan", ">inf", "~5", ">1_000", ""])
def test_other_cells_are_no_bounds(cell):
    assert parse_bound(cell) is None


def test_label_within_bounds_is_the_nearest_to_the_prediction():
    labels = np.array([2.0, np.nan, np.nan, np.nan, np.nan])
    bounds = np.array([(-INF, INF), (5, INF), (5, INF), (1, 3), (-INF, INF)])
    found = within_bounds(labels, bounds, np.array([9.0, 4, 7, 4, 4]))
    assert found[:4].tolist() == [2, 5, 7, 3] and np.isnan(found[4])


def test_expected_values_are_means_of_the_fitted_normal_distribution():
    labels = np.random.default_rng(0).normal(3, 2, 4000)
    bounds = np.full((4000, 2), (-INF, INF))
    bounds[labels > 5, 0], bounds[labels < 0, 1] = 5, 0
    bounds[100:200] = 2, 4
    exact = ~is_bounded(bounds)
    filled = expected_values(np.where(exact, labels, np.nan), bounds)
    assert np.array_equal(filled[exact], labels[exact])
    for low, high in [(5, INF), (-INF, 0), (2, 4)]:
        chosen = (bounds == (low, high)).all(axis=1)
        share = quad(lambda x: norm.pdf(x, 3, 2), low, high)[0]
        mean = quad(lambda x: x * norm.pdf(x, 3, 2), low, high)[0] / share
        assert filled[chosen] == pytest.approx(mean, abs=0.15) and len(np.unique(filled[chosen])) == 1


@pytest.mark.parametrize("scale", [1e-9, 1, 1e12])
def test_expected_values_respect_bounds_in_any_unit(scale):
    random = np.random.default_rng(1)
    labels, low = random.normal(size=200) * scale, np.full(200, -INF)
    low[:50] = random.normal(size=50) * 20 * scale  # some far beyond all numbers
    labels[:50] = np.nan
    filled = expected_values(labels, np.stack([low, np.full(200, INF)], axis=1))
    assert np.isfinite(filled).all() and (filled[:50] >= low[:50]).all() and filled.max() < 200 * scale


def test_expected_values_without_numbers_are_the_bounds():
    bounds = np.array([(5, INF), (-INF, 2), (1, 3), (-INF, INF)])
    assert expected_values(np.full(4, np.nan), bounds)[:3].tolist() == [5, 2, 2]
    assert expected_values(np.array([np.nan, np.nan, 4, 4.0]), bounds).tolist() == [5, 2, 4, 4]


@pytest.mark.parametrize("bound", [(-INF, 1000), (-1000, INF), (-INF, 1e12), (-1e12, 1e12)])
def test_bounds_that_say_nothing_give_the_mean_of_the_numbers(bound):
    labels = np.concatenate([np.random.default_rng(0).normal(1.1, 0.8, 100), np.full(20, np.nan)])
    bounds = np.concatenate([np.full((100, 2), (-INF, INF)), np.full((20, 2), bound)])
    assert expected_values(labels, bounds)[100:] == pytest.approx(labels[:100].mean(), abs=0.02)


def test_one_bound_in_another_unit_does_not_change_the_others():
    labels = np.random.default_rng(0).normal(1.1, 0.8, 120)
    bounds = np.full((120, 2), (-INF, INF))
    bounds[labels > 2, 0] = 2
    labels[labels > 2] = np.nan
    usual = expected_values(labels, bounds)
    labels[0], bounds[0, 0] = np.nan, 1e6
    found = expected_values(labels, bounds)
    assert found[0] == 1e6 and found[1:] == pytest.approx(usual[1:], abs=0.4)
