"""Model averaging: the grid of weights, and the choices within some standard errors of the best."""

import itertools

import numpy as np
import pytest

from graphslice.stacking.stacking import simplex_grid, within_standard_errors


@pytest.mark.parametrize(("steps", "parts"), [(0, 1), (3, 1), (0, 3), (4, 2), (5, 4)])
def test_simplex_grid_is_complete(steps, parts):
    expected = [counts for counts in itertools.product(range(steps + 1), repeat=parts) if sum(counts) == steps]
    assert list(simplex_grid(steps, parts)) == expected


def test_choices_within_standard_errors_are_selected():
    excess = np.array([[0.0, 0.0], [0.3, -0.1], [0.3, 0.1], [5.0, 7.0]])  # 0.1 ± 0.2, 0.2 ± 0.1, 6 ± 1
    assert within_standard_errors(excess + np.array([10.0, 20.0])).tolist() == [True, True, False, False]
    assert within_standard_errors(excess + np.array([10.0, 20.0]), 2.5).tolist() == [True, True, True, False]


def test_equal_choices_are_all_selected():
    assert within_standard_errors(np.ones((3, 5))).all()
