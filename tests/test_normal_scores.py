from statistics import NormalDist

import numpy as np
import pytest

from graphslice.tasks import fit_knots, interpolate, to_scores


@pytest.mark.parametrize("values", [np.random.default_rng(0).lognormal(size=50), np.arange(4.0), np.full(3, 2.0)])
def test_scores_are_those_of_ranks_and_have_an_inverse(values):
    knots = fit_knots(values)
    ranks = [((values < value).sum() + (values <= value).sum()) / 2 for value in values]
    expected = [NormalDist().inv_cdf(rank / len(values)) for rank in ranks]
    np.testing.assert_allclose(to_scores(values, knots), expected, atol=1e-12)
    np.testing.assert_allclose(interpolate(to_scores(values, knots), knots), values)
    assert interpolate(np.array([-99.0, 99.0]), knots).tolist() == [values.min(), values.max()]
