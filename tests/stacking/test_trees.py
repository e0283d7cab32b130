"""Tree ensembles as arrays: predictions match a Python traversal, and damaged arrays are rejected or safe."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.errors import InputError
from graphslice.stacking.trees import Trees, fit_boosting, fit_forest
from graphslice.system import threads

FITS = {"forest": fit_forest, "boosting": fit_boosting}
CLASSES = {"regression": 0, "binary": 2, "multiclass": 3}


def rows(count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 12)).astype(np.float32)
    x[:, 6:] = random.poisson(0.5, size=(count, 6))
    x[random.random(x.shape) < 0.02] = np.nan
    x[random.random(x.shape) < 0.01] = np.inf
    x[random.random(x.shape) < 0.01] = -np.inf
    return x


def labels(x: np.ndarray, kind: str) -> np.ndarray:
    score = np.nan_to_num(x[:, 0], nan=0, posinf=2, neginf=-2) + np.nan_to_num(x[:, 7], nan=0, posinf=2, neginf=-2)
    return {"regression": np.exp(score), "binary": score > 0.5, "multiclass": np.digitize(score, [0, 1])}[kind] * 1.0


@pytest.fixture(scope="module", params=[(fit, kind) for fit in FITS for kind in CLASSES], ids="-".join)
def fitted(request) -> Trees:
    fit, kind = request.param
    x = rows(70)
    return FITS[fit](x, labels(x, kind), kind, CLASSES[kind], 0)


def slow_sums(trees: Trees, x: np.ndarray) -> np.ndarray:
    """Sum the leaves in Python, and check that every index is in bounds."""
    out = np.zeros((len(x), trees.width))
    for row, sums in zip(x, out, strict=True):
        for begin, end, column in zip(trees.roots[:-1], trees.roots[1:], trees.columns, strict=True):
            node = int(begin)
            while True:
                assert begin <= node < end
                feature, child = int(trees.feature[node]), int(trees.child[node])
                if feature < 0:
                    break
                assert feature < len(row) and child > node
                node = child if row[feature] > trees.threshold[node] else node + 1
            assert 0 <= child < len(trees.values) and 0 <= column <= trees.width - trees.values.shape[1]
            sums[column : column + trees.values.shape[1]] += trees.values[child]
    return trees.base + trees.scale * out


def slow_link(trees: Trees, sums: np.ndarray) -> np.ndarray:
    link = trees.settings[1]
    if link == 0:
        return np.interp(sums, *trees.knots) if trees.knots.size else sums
    if link == 2:
        return 1 / (1 + np.exp(-sums.clip(-700, 700)))
    weights = np.exp(sums - sums.max(axis=1, keepdims=True)) if link == 3 else sums
    return weights / weights.sum(axis=1, keepdims=True) if trees.width > 1 else weights.clip(0, 1)


def test_matches_python_traversal(fitted):
    x = rows(9, seed=1)
    assert np.allclose(fitted.predict(x), slow_link(fitted, slow_sums(fitted, x)), rtol=1e-12, atol=1e-12)


def test_prediction_does_not_depend_on_the_batch(fitted, monkeypatch):
    x = rows(333, seed=2)
    batch = fitted.predict(x)
    assert np.array_equal(np.concatenate([fitted.predict(x[k : k + 1]) for k in range(len(x))]), batch)
    assert np.array_equal(fitted.predict(x[::-3]), batch[::-3])
    monkeypatch.setattr(threads, "_MIN_VALUES", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert np.array_equal(fitted.predict(np.asfortranarray(x)), batch)


def test_empty_input_and_wrong_number_of_columns(fitted):
    assert fitted.predict(np.empty((0, 12), np.float32)).shape == (0, fitted.width)
    for shape in [(3, 11), (3, 13), (12,), (2, 3, 12)]:
        with pytest.raises(InputError, match="12 features"):
            fitted.predict(np.zeros(shape, np.float32))


def changed(fitted: Trees, name: str, place: object, value: object) -> dict[str, np.ndarray]:
    arrays = {key: array.copy() for key, array in fitted.to_arrays().items()}
    arrays[name][place] = value
    return arrays


def test_indices_out_of_bounds_are_rejected(fitted):
    inner, leaf = np.flatnonzero(fitted.feature >= 0)[0], np.flatnonzero(fitted.feature < 0)[0]
    wrong = [("feature", inner, 12), ("child", inner, inner), ("child", inner, fitted.roots[1])]
    wrong += [("child", leaf, len(fitted.values)), ("roots", -1, len(fitted.feature) + 1)]
    for change in (*wrong, ("columns", 0, fitted.width), ("settings", 0, 0)):
        with pytest.raises(InputError, match="arrays of a model do not fit"):
            Trees(**changed(fitted, *change))


def test_wrong_dtype_or_layout_is_rejected(fitted):
    arrays = fitted.to_arrays()
    for name, array in arrays.items():
        other = np.int8 if array.dtype.kind == "i" else np.float16
        for wrong in (array.astype(other), array[None], array.astype(object), array.astype(array.dtype.newbyteorder())):
            with pytest.raises(InputError, match=name):
                Trees(**{**arrays, name: wrong})
    with pytest.raises(InputError, match=r"threshold is not an array \[N\]"):
        Trees(**{**arrays, "threshold": arrays["threshold"][1:]})


NUMBERS = st.one_of(
    st.integers(-3, 300), st.sampled_from([2**31 - 1, -(2**31), 1e38, -1e38, 1e300, 0.5, 1e-320, np.nan, np.inf])
)


@settings(max_examples=400)
@given(st.data())
def test_damaged_arrays_are_rejected_or_in_bounds(small_trees, data):
    arrays = {name: array.copy() for name, array in data.draw(st.sampled_from(small_trees)).to_arrays().items()}
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(arrays)))
        array = arrays[name]
        if array.size and data.draw(st.booleans()):
            with np.errstate(all="ignore"):
                array.flat[data.draw(st.integers(0, array.size - 1))] = np.array(data.draw(NUMBERS)).astype(array.dtype)
        elif array.ndim and len(array):
            begin = data.draw(st.integers(0, 2))
            arrays[name] = np.concatenate([array[begin:], array[: data.draw(st.integers(0, 2))]])
    try:
        trees = Trees(**arrays)
    except (InputError, IndexError):
        return
    x = np.resize(rows(8), (8, max(1, min(trees.features, 400))))
    if x.shape[1] == trees.features:
        with np.errstate(all="ignore"):
            assert np.allclose(trees.sums(x), slow_sums(trees, x), rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.fixture(scope="module")
def small_trees() -> list[Trees]:
    """Small ensembles of each kind, so that random damage is likely to matter."""
    ensembles = []
    for fit in FITS.values():
        for kind, classes in CLASSES.items():
            x = rows(25)
            arrays = fit(x, labels(x, kind), kind, classes, 0).to_arrays()
            trees = 6
            nodes = arrays["roots"][trees]
            leaves = arrays["child"][:nodes][arrays["feature"][:nodes] < 0].max() + 1
            arrays |= {name: arrays[name][:nodes] for name in ("feature", "threshold", "child")}
            arrays |= {"roots": arrays["roots"][: trees + 1], "columns": arrays["columns"][:trees]}
            ensembles.append(Trees(**{**arrays, "values": arrays["values"][:leaves]}))
    ensembles.append(fit_forest(rows(4), np.full(4, 2.5), "regression", 0, 0))
    return ensembles
