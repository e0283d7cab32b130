"""Kernel machines against scikit-learn with a kernel computed by numpy."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, rankdata, spearmanr
from sklearn.svm import SVC, SVR

from graphslice.errors import InputError
from graphslice.stacking import kernel
from graphslice.stacking.kernel import KernelMachine, fit_kernel, kernel_matrix, training_kernel
from graphslice.system import threads
from graphslice.tasks import fit_knots, interpolate, to_scores

COUNTS, DESCRIPTORS = 40, 6


def inputs(rows: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    counts = random.poisson(0.6, size=(rows, COUNTS))
    return np.concatenate([counts, 100 * random.normal(size=(rows, DESCRIPTORS))], axis=1).astype(np.float32)


X = inputs(90)
Y = X[:, 0] + 0.5 * X[:, 1] - 0.01 * X[:, COUNTS]
LABELS = {
    "regression": Y,
    "binary": (Y.mean() < Y) * 1.0,
    "multiclass": np.digitize(Y, np.quantile(Y, [0.3, 0.7])) * 1.0,
}


def fitted(kind: str, x: np.ndarray = X, y: np.ndarray | None = None, classes: int = 3) -> KernelMachine:
    return fit_kernel(x, LABELS[kind] if y is None else y, kind, classes, 0, counts=COUNTS)


def slow_kernel(a: np.ndarray, b: np.ndarray, training: np.ndarray) -> np.ndarray:
    """The formula of the module, pair by pair, in double precision."""

    def standardised(x):
        logs = np.sign(x[:, COUNTS:]) * np.log1p(np.abs(x[:, COUNTS:].astype(np.float64)))
        reference = np.sign(training[:, COUNTS:]) * np.log1p(np.abs(training[:, COUNTS:].astype(np.float64)))
        return np.clip((logs - reference.mean(axis=0)) / reference.std(axis=0), -4, 4)

    za, zb, kernel = standardised(a), standardised(b), np.empty((len(a), len(b)))
    for i in range(len(a)):
        for j in range(len(b)):
            largest = np.maximum(a[i, :COUNTS], b[j, :COUNTS]).sum()
            tanimoto = np.minimum(a[i, :COUNTS], b[j, :COUNTS]).sum() / largest if largest else 0.0
            kernel[i, j] = (tanimoto + np.exp(-((za[i] - zb[j]) ** 2).sum() / (2 * DESCRIPTORS))) / 2
    return kernel


def test_kernel_matches_the_formula():
    x = X.copy()
    x[3, :COUNTS], x[:, 7], x[[5, 8], 7] = 0, 0, (3, 200)  # a row without counts, a count of two rows
    logs = np.sign(x[:, COUNTS:]) * np.log1p(np.abs(x[:, COUNTS:]))
    z = ((logs - logs.mean(axis=0)) / logs.std(axis=0)).clip(-4, 4).astype(np.float32)
    found = kernel_matrix(x[:, :COUNTS].astype(np.uint8), np.ascontiguousarray(z))
    np.testing.assert_allclose(found, slow_kernel(x, x, x), rtol=1e-5)
    np.testing.assert_allclose(np.diag(found)[np.arange(len(x)) != 3], 1, rtol=1e-6)
    assert found[3, 3] == pytest.approx(0.5)


def test_regression_matches_scikit_learn():
    """On normal scores of the labels: the ranks of predictions are those of scikit-learn's decision values."""
    new = inputs(30, seed=1)
    scores = norm.ppf((rankdata(Y) - 0.5) / len(Y))
    model = SVR(kernel="precomputed", C=3.0, epsilon=0.1).fit(slow_kernel(X, X, X), scores)
    expected = model.predict(slow_kernel(new, X, X))
    found = fitted("regression").predict(new)[:, 0]
    assert spearmanr(found, expected).statistic > 0.999
    back = np.interp(expected, np.sort(scores), np.sort(Y))
    np.testing.assert_allclose(found, back, atol=0.02 * np.ptp(Y))
    assert Y.min() <= found.min() and found.max() <= Y.max()


def test_probabilities_rank_as_the_decision_values_of_scikit_learn():
    new = inputs(30, seed=1)
    model = SVC(kernel="precomputed", C=3.0).fit(slow_kernel(X, X, X), LABELS["binary"])
    decision = model.decision_function(slow_kernel(new, X, X))
    found = fitted("binary").predict(new)
    assert found.shape == (30, 1) and (found > 0).all() and (found < 1).all()
    assert np.array_equal(np.argsort(found[:, 0]), np.argsort(decision))


def test_probabilities_of_repeated_rows_are_those_of_the_rows_once():
    """Rows of one molecule in training and held-out rows would make the decision values too sure."""
    x, y = inputs(80, seed=2), (np.random.default_rng(3).random(80) < 0.5) * 1.0
    once = fitted("binary", x, y).predict(inputs(200, seed=4))
    thrice = fitted("binary", np.tile(x, (3, 1)), np.tile(y, 3)).predict(inputs(200, seed=4))
    assert thrice.std() < 1.5 * once.std() + 0.05


def test_classes_sum_to_one_and_absent_ones_have_no_probability():
    found = fitted("multiclass").predict(X)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert (found.argmax(axis=1) == LABELS["multiclass"]).mean() > 0.8
    absent = fitted("multiclass", classes=4).predict(X)
    assert absent.shape == (90, 4) and absent[:, 3].max() < 1e-9
    two = fitted("multiclass", y=np.where(LABELS["multiclass"] == 1, 0.0, LABELS["multiclass"]))
    assert two.predict(X)[:, 1].max() < 1e-9


@pytest.mark.parametrize("kind", LABELS)
def test_a_prediction_does_not_depend_on_the_batch(kind):
    machine = fitted(kind)
    batch = machine.predict(X)
    alone = np.concatenate([machine.predict(X[i : i + 1]) for i in range(len(X))])
    np.testing.assert_array_equal(batch, alone)
    np.testing.assert_array_equal(machine.predict(np.asfortranarray(X[::-1]))[::-1], batch)


@pytest.mark.parametrize("kind", LABELS)
def test_fit_and_prediction_do_not_depend_on_the_number_of_threads(kind, monkeypatch):
    machine = fitted(kind)
    predictions = machine.predict(X)
    monkeypatch.setattr(threads, "_MIN_VALUES", 1)
    monkeypatch.setattr(threads, "cores", lambda: 3)
    np.testing.assert_array_equal(machine.predict(X), predictions)
    for name, array in fitted(kind).to_arrays().items():
        np.testing.assert_array_equal(array, machine.to_arrays()[name])


def test_unusual_inputs_get_finite_predictions():
    machine = fitted("regression")
    x = np.zeros((7, COUNTS + DESCRIPTORS), np.float32)
    x[1], x[2], x[3], x[4], x[5, COUNTS:], x[6, 0] = np.nan, np.inf, -np.inf, -3, 1e30, 1e9
    with np.errstate(invalid="ignore", over="ignore"):
        assert np.isfinite(machine.predict(x)).all()
    with pytest.raises(InputError, match="a model of 46 features"):
        machine.predict(x[:, 1:])


@pytest.mark.parametrize("kind", LABELS)
def test_few_or_equal_labels_are_predicted(kind):
    one = fitted(kind, X[:1], np.ones(1))
    constant = fitted(kind, X, np.ones(90))
    missing = np.where(np.arange(90) < 5, LABELS[kind], np.nan)
    for machine in (one, constant, fitted(kind, X, missing), fitted(kind, X[:2], np.array([0.0, 1.0]))):
        assert np.isfinite(machine.predict(X)).all()
    expected = {"regression": [1.0], "binary": [1.0], "multiclass": [0.0, 1.0, 0.0]}[kind]
    np.testing.assert_allclose(constant.predict(X[:3]), [expected] * 3, atol=1e-9)
    assert len(constant.sizes) == 0


def changed(name, value):
    return lambda arrays: arrays.update({name: value(arrays[name])})


def with_value(index, value):
    def change(array):
        array = array.copy()
        array.flat[index] = value
        return array

    return change


OVERFLOW = [3 << 61, -(3 << 61)]  # the difference of the two is above 0 in int64
DAMAGE = [
    *(changed("ptr", with_value(*each)) for each in ((0, 1), (-1, 10**9), (3, -1), (5, 10**6), ([1, 2], OVERFLOW))),
    *(changed("vectors", with_value(0, value)) for value in (-1, 10**4)),
    *(changed(name, lambda array: array[:-1]) for name in ("sizes", "scale", "counts", "knots", "link")),
    changed("descriptors", lambda array: np.ascontiguousarray(array[:, :-1])),
    *(changed(*each) for each in (("scale", np.zeros_like), ("intercepts", lambda array: np.zeros(2)))),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_indices_out_of_bounds_are_rejected(damage):
    arrays = dict(vars(fitted("regression")))
    damage(arrays)
    with pytest.raises(InputError, match=r"ptr is not|no support vector|a scale|is not an array \["):
        KernelMachine.from_arrays(arrays)


def test_arrays_are_stored_in_the_smallest_dtype_that_is_exact():
    machine = fitted("regression")
    coarse = replace(machine, descriptors=machine.descriptors.astype(np.float16).astype(np.float32))
    for one, dtype in ((machine, np.float32), (coarse, np.float16), (fitted("multiclass"), np.float32)):
        arrays = one.to_arrays()
        assert arrays["descriptors"].dtype == dtype
        assert (arrays["ptr"].dtype, arrays["vectors"].dtype, arrays["sizes"].dtype) == (np.int32, np.int16, np.float32)
        back = KernelMachine.from_arrays(arrays)
        np.testing.assert_array_equal(back.predict(X), one.predict(X))
        assert (back.features, back.link) == (COUNTS + DESCRIPTORS, one.link)


@pytest.mark.parametrize("kind", LABELS)
def test_machine_with_weights_matches_scikit_learn(kind):
    random = np.random.default_rng(0)
    weights = random.integers(1, 5, len(X)).astype(float)
    machine = fit_kernel(X, LABELS[kind], kind, 3, 0, weights=weights, counts=COUNTS)
    kernel = training_kernel(X, COUNTS)
    if kind == "regression":
        knots = fit_knots(LABELS[kind])
        model = SVR(kernel="precomputed", C=3, epsilon=0.1)
        model.fit(kernel, to_scores(LABELS[kind], knots), weights / weights.mean())
        expected = interpolate(model.predict(kernel), knots)
        np.testing.assert_allclose(machine.predict(X)[:, 0], expected, rtol=1e-3, atol=1e-3)
    elif kind == "binary":
        model = SVC(kernel="precomputed", C=3).fit(kernel, LABELS[kind] == 1, weights / weights.mean())
        decision = model.decision_function(kernel)
        assert spearmanr(machine.predict(X)[:, 0], decision).statistic > 0.999
    assert np.abs(machine.predict(X) - fitted(kind).predict(X)).max() > 1e-4


def test_sample_of_many_rows_has_the_shares_of_the_classes(monkeypatch):
    monkeypatch.setattr(kernel, "MAX_ROWS", 50)
    classes = np.repeat([0.0, 1.0, 2.0], [700, 297, 3])
    np.random.default_rng(1).shuffle(classes)
    rows = kernel._stratified_sample(classes, 0)
    assert len(set(rows.tolist())) == 50 and (np.diff(rows) > 0).all()
    assert np.bincount(classes[rows].astype(int)).tolist() in ([35, 14, 1], [34, 15, 1])
    assert not np.array_equal(rows, kernel._stratified_sample(classes, 1))
    assert len(fitted("regression").sizes) <= 50


def test_labels_without_a_relation_get_the_frequency_of_their_class():
    """The slope of the decision value, fitted to inner folds, is often negative then."""
    shares, means = [], []
    for seed in range(6):
        random = np.random.default_rng(seed)
        x, y = inputs(100, seed=seed), (random.random(100) < 0.15) * 1.0
        shares.append(y.mean())
        means.append(fitted("binary", x, y).predict(inputs(50, seed=seed + 100)).mean())
    np.testing.assert_allclose(means, shares, atol=0.06)


def test_folds_of_molecules_may_lack_a_class():
    molecules = np.array([0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 4, 5])
    y = np.array([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0.0])
    for seed in range(3):
        machine = fit_kernel(inputs(6)[molecules], y, "binary", 2, seed=seed)
        assert np.isfinite(machine.predict(inputs(6))).all()
