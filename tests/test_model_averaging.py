"""What few rows choose: the grid, and all that is nearly as good as the best."""

import itertools

import numpy as np
import pytest

from graphslice.model_averaging import simplex_grid, within_standard_errors


@pytest.mark.parametrize(("steps", "parts"), [(0, 1), (3, 1), (0, 3), (4, 2), (5, 4)])
def test_shares_are_all_ways_to_share(steps, parts):
    every = [given for given in itertools.product(range(steps + 1), repeat=parts) if sum(given) == steps]
    assert list(simplex_grid(steps, parts)) == every


def test_near_best_takes_what_lies_within_a_standard_error():
    excess = np.array([[0.0, 0.0], [0.3, -0.1], [0.3, 0.1], [5.0, 7.0]])  # 0.1 ± 0.2, 0.2 ± 0.1, 6 ± 1
    assert within_standard_errors(excess + np.array([10.0, 20.0])).tolist() == [True, True, False, False]
    assert within_standard_errors(excess + np.array([10.0, 20.0]), 2.5).tolist() == [True, True, True, False]


def test_near_best_takes_all_that_are_alike():
    assert within_standard_errors(np.ones((3, 5))).all()
