"""scikit-learn's own checks of estimators, as far as texts as input allow.

Its checks make matrices of numbers. So each runs on an estimator that makes a molecule of every row, one of its own
for the numbers in it: all but the reading of ``X`` is the estimator's.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import check_is_fitted, validate_data
from tiny import TINY

import graphslice as gs
from graphslice.config import RunConfig

CONFIG = RunConfig.from_dict(
    {"model": dict(TINY), "trainer": {"max_epochs": 1, "batch_size": 32, "accelerator": "cpu", "baselines": "off"}}
)


def molecules_of(X: np.ndarray) -> list[str]:
    """A chain for every row, whose elements are the bits of its numbers."""
    rows = np.ascontiguousarray(X, np.float64)
    bits = [np.unpackbits(np.frombuffer(row.tobytes(), np.uint8)) for row in rows]
    return ["".join(np.array(["C", "N"])[one[np.random.default_rng(0).permutation(len(one))[:24]]]) for one in bits]


class OfNumbers:
    """Rows of numbers in place of molecules."""

    def fit(self, X, y):
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        X, y = validate_data(self, X, y, multi_output=True)
        return super().fit(molecules_of(X), y)

    def predict(self, X):
        check_is_fitted(self)
        return super().predict(molecules_of(validate_data(self, X, reset=False)))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False
        tags.input_tags.string = False
        return tags


class Regressor(OfNumbers, gs.GraphSliceRegressor):
    pass


class Classifier(OfNumbers, gs.GraphSliceClassifier):
    def predict_proba(self, X):
        check_is_fitted(self)
        return super().predict_proba(molecules_of(validate_data(self, X, reset=False)))


#: Checks that are left out, and why.
LEFT_OUT = {
    "check_regressors_train": "asks for an error of half the deviation, and rows made molecules have nothing to learn",
    "check_classifiers_train": "asks for an accuracy of 0.83, and rows made molecules have nothing to learn",
}
CASES = [
    pytest.param(estimator, check, id=f"{kind.__name__}-{check.func.__name__}-{number}")
    for kind in (Regressor, Classifier)
    for number, (estimator, check) in enumerate(estimator_checks_generator(kind(config=CONFIG)))
    if check.func.__name__ not in LEFT_OUT
]


def test_what_is_left_out_is_still_asked():
    """And the estimators themselves say that they take texts, so that scikit-learn gives them no matrices."""
    names = {check.func.__name__ for kind in (Regressor, Classifier) for _, check in estimator_checks_generator(kind())}
    assert set(LEFT_OUT) < names and len(CASES) > 80
    for estimator in (gs.GraphSliceRegressor(), gs.GraphSliceClassifier()):
        tags = get_tags(estimator)
        assert tags.input_tags.string and not tags.input_tags.two_d_array and not tags.input_tags.sparse


@pytest.mark.parametrize(("estimator", "check"), CASES)
def test_scikit_learn(estimator, check):
    check(estimator)
