import numpy as np
import pytest

from graphslice.normal_scores import extrapolate, fit_knots, to_scores


@pytest.mark.parametrize("knots", [fit_knots(np.random.default_rng(0).lognormal(size=50)), fit_knots(np.arange(4.0))])
def test_extrapolation_has_an_inverse(knots):
    scores = np.linspace(-5, 5, 41)
    np.testing.assert_allclose(extrapolate(extrapolate(scores, knots), knots[::-1]), scores)
    inside = knots[1]
    np.testing.assert_allclose(extrapolate(inside, knots[::-1]), to_scores(inside, knots))


def test_infinite_scores_are_infinite_numbers():
    for knots in (fit_knots(np.array([3.0, 3.0])), fit_knots(np.array([1.0, 2.0]))):
        assert extrapolate(np.array([-np.inf, np.inf]), knots).tolist() == [-np.inf, np.inf]
    assert extrapolate(np.array([-2.0, 2.0]), fit_knots(np.array([3.0]))).tolist() == [3, 3]
