"""Fitted trees match scikit-learn and LightGBM, and all labels give valid predictions or an error message."""

import builtins

import lightgbm
import numpy as np
import pytest
from scipy.stats import norm, rankdata, spearmanr
from sklearn import ensemble
from test_trees import CLASSES, FITS, labels, rows

from graphslice.errors import InputError
from graphslice.stacking import trees as fit_trees
from graphslice.stacking.trees import Trees, fit_boosting, fit_forest


def expected_numbers(decision: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Take normal scores back to numbers."""
    values, indices = np.unique(norm.ppf((rankdata(y) - 0.5) / len(y)), return_index=True)
    return np.interp(decision, values, y[indices])[:, None]


def check_against(trees: Trees, new: np.ndarray, expected: np.ndarray) -> None:
    assert np.allclose(trees.predict(new), expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(
        trees.predict(np.where(new <= -1e6, np.nan, new)), trees.predict(np.where(new <= -1e6, -np.inf, new))
    )


@pytest.mark.parametrize("kind", CLASSES)
def test_forest_matches_scikit_learn(kind, monkeypatch):
    models = []
    name = "ExtraTreesRegressor" if kind == "regression" else "ExtraTreesClassifier"

    class Recorder(getattr(ensemble, name)):
        __init__ = getattr(ensemble, name).__init__  # scikit-learn reads the settings from its signature

        def fit(self, x, y, sample_weight=None):
            models.append(self)
            return super().fit(x, y, sample_weight)

    monkeypatch.setattr(ensemble, name, Recorder)
    x = rows(300)
    new = np.nan_to_num(rows(200, seed=5), nan=-1e6, posinf=1e6, neginf=-1e6)
    y = labels(x, kind)
    trees = fit_forest(x, y, kind, CLASSES[kind], 0)
    (model,) = models
    assert model.get_params()["random_state"] == 0
    if kind == "regression":
        check_against(trees, new, expected_numbers(model.predict(new), y))
    else:
        check_against(trees, new, model.predict_proba(new)[:, 1 if kind == "binary" else 0 :])


@pytest.mark.parametrize("kind", CLASSES)
def test_boosting_matches_lightgbm(kind, monkeypatch):
    models, train = [], lightgbm.train

    def record(settings, *arguments, **options):
        models.append(train(settings, *arguments, **options))
        assert settings["seed"] == 0
        return models[-1]

    monkeypatch.setattr(lightgbm, "train", record)
    x = rows(300)
    new = np.nan_to_num(rows(200, seed=5), nan=-1e6, posinf=1e6, neginf=-1e6)
    y = labels(x, kind)
    trees = fit_boosting(x, y, kind, CLASSES[kind], 0)
    (model,) = models
    expected = model.predict(new)
    check_against(trees, new, expected_numbers(expected, y) if kind == "regression" else expected.reshape(200, -1))
    thresholds = np.resize(np.unique(trees.threshold), (50, x.shape[1])).astype(np.float32)  # ties go left in both
    expected = model.predict(thresholds.astype(np.float64))
    expected = expected_numbers(expected, y) if kind == "regression" else expected.reshape(50, -1)
    assert np.mean(np.isclose(trees.predict(thresholds), expected, rtol=1e-5, atol=1e-6)) > 0.95


def test_values_that_lightgbm_takes_for_zero_go_its_way():
    tiny = np.resize(np.float32([-1e-35, 1e-35, 0, -0.0, 1e-40, -2e-35, 2e-35]), 70)
    x = np.stack([tiny, np.arange(70) % 3], axis=1).astype(np.float32)
    trees = fit_boosting(x, (tiny < 0) + 0.1 * x[:, 1], "regression", 0, 0)  # compares with LightGBM's predictions
    assert trees.predict(x)[tiny == np.float32(-2e-35)].min() > trees.predict(x)[tiny == np.float32(2e-35)].max()


def test_missing_openmp_library_is_explained(monkeypatch):
    original = builtins.__import__

    def fail(name, *arguments, **settings):
        if name == "lightgbm":
            raise OSError("libgomp.so.1: cannot open shared object file")
        return original(name, *arguments, **settings)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(InputError, match=r"\(libgomp.so.1: .*\): install the OpenMP library"):
        fit_boosting(rows(5), np.arange(5.0), "regression", 0, 0)


def test_forest_does_not_depend_on_threads(monkeypatch):
    x, fitted = rows(100), []
    for count in (1, 3):
        monkeypatch.setattr("graphslice.stacking.trees.cores", lambda count=count: count)
        fitted.append(fit_forest(x, labels(x, "regression"), "regression", 0, 1))
    single, multithreaded = fitted
    assert all(np.array_equal(array, multithreaded.to_arrays()[name]) for name, array in single.to_arrays().items())


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
@pytest.mark.parametrize(
    ("kind", "classes", "y"),
    [
        ("regression", 0, [2.5] * 20), ("regression", 0, [2.5]), ("regression", 0, [np.nan, 1e300, -1e300, 0.0]),
        ("regression", 0, [5e-324, 0.0, 1e-300]), ("regression", 0, [1.0, 2.0]),
        ("regression", 0, [1.0] * 30 + [1.0000000000000002]), ("binary", 2, [1.0] * 20), ("binary", 2, [0.0] * 20),
        ("binary", 2, [0.0, 1.0, 1.0]), ("binary", 2, [0.0] * 30 + [1.0, 1.0]), ("multiclass", 4, [2.0] * 5),
        ("multiclass", 4, [0.0, 3.0, 3.0] * 7), ("multiclass", 4, [0.0] * 12 + [1.0] * 12 + [3.0] * 2),
        ("multiclass", 2, [0.0, 1.0] * 20),
    ],
)  # fmt: skip
def test_predictions_are_valid_for_all_kinds_of_labels(fit, kind, classes, y):
    y = np.array(y)
    x = rows(len(y), seed=1)
    trees = fit(x, y, kind, classes, 0)
    predictions = trees.predict(rows(10, seed=2))
    known = y[~np.isnan(y)]
    assert isinstance(trees, Trees) and predictions.shape == (10, classes if kind == "multiclass" else 1)
    if len(set(known)) == 1:
        constant = np.arange(classes) == known[0] if kind == "multiclass" else known[:1]
        assert len(trees.columns) == 0 and np.array_equal(predictions, np.tile(constant, (10, 1)))
    elif kind == "regression":
        assert (predictions >= known.min()).all() and (predictions <= known.max()).all()
    else:
        assert (predictions >= 0).all() and (predictions <= 1).all()
    if kind == "multiclass":
        assert np.allclose(predictions.sum(axis=1), 1, rtol=0, atol=1e-12)
        assert (predictions[:, [k not in known for k in range(classes)]] == 0).all()


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_extreme_inputs_are_accepted(fit):
    largest = np.finfo(np.float32).max
    x = np.zeros((40, 7), np.float32)
    x[:, 1] = np.nan
    x[:, 2] = np.inf
    x[:, 3] = np.resize([largest, -largest, 0], 40)
    x[:, 4] = np.resize([np.nan, 1, np.inf, -np.inf], 40)
    x[:, 5] = np.arange(40) * 1e-45
    x[:, 6] = np.arange(40)
    y = np.arange(40.0)
    trees = fit(x, y, "regression", 0, 0)
    assert spearmanr(trees.predict(x)[:, 0], y)[0] > 0.9
    constant_inputs = fit(np.full((30, 3), np.nan, np.float32), y[:30], "regression", 0, 0)
    assert len(set(constant_inputs.predict(np.resize(rows(3), (5, 3)))[:, 0])) == 1
    many = np.zeros((30, 1 << 15), np.float32)
    many[:, -1] = np.arange(30)
    wide = fit(many, y[:30], "regression", 0, 0)
    assert wide.feature.dtype == np.int32 and wide.feature.max() == (1 << 15) - 1


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_unlabelled_rows_are_ignored(fit):
    x = rows(60)
    y = labels(x, "regression")
    y[::4] = np.nan
    known = ~np.isnan(y)
    sparse, dense = fit(x, y, "regression", 0, 0), fit(x[known], y[known], "regression", 0, 0)
    assert np.array_equal(sparse.predict(x), dense.predict(x))


@pytest.mark.parametrize("kind", CLASSES)
def test_trees_that_are_described_in_another_way_are_refused(kind, monkeypatch):
    """The converted trees must reproduce the predictions of the library."""
    original = fit_trees._boosting_tree

    def convert(root, used):
        feature, threshold, child, values = original(root, used)
        return feature, threshold, child, values + 1e-3

    monkeypatch.setattr(fit_trees, "_boosting_tree", convert)
    x = rows(60)
    with pytest.raises(InputError, match=r"LightGBM [\d.]+ describes trees in a way that"):
        fit_boosting(x, labels(x, kind), kind, CLASSES[kind], 0)


def test_bimodal_labels_stay_in_range():
    """Between the clusters a tiny step in score is a large step in prediction, which is not a layout error."""
    rng = np.random.default_rng(1)
    x, z = rng.normal(size=(1600, 30)).astype(np.float32), rng.normal(size=1600)
    y = np.where(z > 0, 100 + z, z)
    predictions = fit_boosting(x, y, "regression", 0, 0).predict(x)
    assert y.min() <= predictions.min() and predictions.max() <= y.max()
    assert spearmanr(predictions[:, 0], y).statistic > 0.8


@pytest.mark.parametrize("fit", [fit_forest, fit_boosting])
@pytest.mark.parametrize("kind", CLASSES)
def test_rows_with_a_large_weight_decide(fit, kind):
    x = rows(300)
    x[150:] = x[:150]
    y = labels(x, kind)
    y[150:] = y[:150][::-1]  # each input with two labels
    weights = np.repeat([1000.0, 1.0], 150)

    def error(weights: np.ndarray | None) -> float:
        predicted = fit(x, y, kind, CLASSES[kind], 0, weights).predict(x[:150])
        if kind == "multiclass":
            return 1 - predicted[np.arange(150), y[:150].astype(int)].mean()
        return np.abs(predicted[:, 0] - y[:150]).mean()

    assert error(weights) < 0.6 * error(None)
