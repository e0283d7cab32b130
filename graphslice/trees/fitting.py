"""Trees fitted by scikit-learn, with settings chosen by cross-validation on small sets of ADMET properties."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from graphslice._version import __version__
from graphslice.errors import InputError
from graphslice.trees.model import LOGISTIC, MAX_LABEL, NUMBER, SOFTMAX, TREE_FRACTIONS, Trees, interpolate

_MAX_KNOTS = 1000
# What a class that no row has adds to its softmax: its probability is 0.
_ABSENT_CLASS_LOGIT = -1e9
# So many rows are compared with scikit-learn's own predictions.
_CHECKED_ROWS = 1000
# A column that tells fewer rows from the others is left out, so that columns that say more are tried more often.
_MIN_SHARE, _MAX_NEEDED = 0.03, 20

#: A tree: feature, threshold, child and values of :class:`Trees`, counted from 0.
_Tree = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def fit_forest(x: np.ndarray, y: np.ndarray, kind: str, classes: int, seed: int, threads: int) -> Trees:
    """Extremely randomised trees (Geurts et al. 2006, doi:10.1007/s10994-006-6226-1), fitted by scikit-learn.

    Numbers are learned as normal scores of their ranks and mapped back, so that no few large values decide all splits:
    an answer lies within the labels, nearer to a median than to a mean.

    Args:
        x: float32 ``[R, F]``; nan and infinities are allowed, and nan counts as the smallest value of its column.
        y: float64 ``[R]``, numbers or indices of classes; rows with nan are left out.
        kind: "regression", "binary" or "multiclass".
        classes: how many classes there are; not read for a regression.
        seed: the same seed gives the same trees, on however many threads.
        threads: how many to use.

    Returns:
        Trees of bounded size: 300 for up to 3,333 rows, then fewer, 100 from 10,000 on, with larger leaves. Where the
        labels do not differ, one constant answer.

    Raises:
        InputError: if ``x`` and ``y`` do not fit, or no row has a label.
    """
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    x, y = _labelled_rows(x, y, kind, classes)
    if (y == y[0]).all():
        return _constant_trees(y[0], kind, classes, x.shape[1])
    rows, used = len(y), _informative_columns(x)
    inputs = x[:, used]
    settings: dict[str, Any] = {"n_estimators": int(np.clip(1_000_000 // rows, 100, 300))}
    settings |= {"max_features": _max_features(used), "min_samples_leaf": 2 + rows // 5000}
    settings |= {"random_state": seed, "n_jobs": threads}
    knots, labels = _normal_scores(y, kind)
    if kind == "regression":
        model = ExtraTreesRegressor(**settings).fit(inputs, labels)
    else:
        model = ExtraTreesClassifier(**settings).fit(inputs, labels)
    theirs = _sklearn_predictions(model, inputs[:_CHECKED_ROWS], kind, classes)
    parts = [_forest_tree(estimator.tree_, used) for estimator in model.estimators_]
    if kind != "regression":
        parts = [(*part[:3], _all_class_columns(part[3], model.classes_, kind, classes)) for part in parts]
    link = NUMBER if kind == "regression" else TREE_FRACTIONS
    base, columns = np.zeros(classes if kind == "multiclass" else 1), np.zeros(len(parts), np.int16)
    return _check_against_sklearn(
        _assemble_trees(parts, columns, base, 1 / len(parts), knots, (x.shape[1], link)), x, theirs
    )


def fit_boosting(x: np.ndarray, y: np.ndarray, kind: str, classes: int, seed: int, threads: int) -> Trees:
    """Gradient boosting on histograms, by scikit-learn; squared error of normal scores, or log loss.

    Args, returns and errors: as :func:`fit_forest`; 200 trees, and as many for each class of more than two, of at
    most 16 leaves, from 1,500 rows on 31. Sums of numbers depend on ``threads`` by rounding.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    x, y = _labelled_rows(x, y, kind, classes)
    if (y == y[0]).all():
        return _constant_trees(y[0], kind, classes, x.shape[1])
    used = _informative_columns(x)
    inputs = x[:, used]
    settings: dict[str, Any] = {
        "max_iter": 200,
        "learning_rate": 0.05,
        "max_bins": 63,
        "max_features": _max_features(used),
    }
    settings |= {"early_stopping": False, "random_state": seed, **_leaf_settings(len(y), kind)}
    knots, labels = _normal_scores(y, kind)
    number = kind == "regression"
    model = (HistGradientBoostingRegressor if number else HistGradientBoostingClassifier)(**settings)
    with threadpool_limits(threads, user_api="openmp"):
        model.fit(inputs, labels)
        theirs = _sklearn_predictions(model, inputs[:_CHECKED_ROWS], kind, classes)
    # scikit-learn has no public way to its trees: what is read here is compared with its predictions below.
    rounds, begin = model._predictors, np.ravel(model._baseline_prediction)
    parts = [_boosting_tree(predictor.nodes, used) for trees in rounds for predictor in trees]
    base, columns, link = begin, np.zeros(len(rounds[0]), np.int64), NUMBER if number else LOGISTIC
    if kind == "multiclass":
        base, columns, link = np.full(classes, _ABSENT_CLASS_LOGIT), np.asarray(model.classes_, np.int64), SOFTMAX
        base[columns] = 0
        columns = columns[-len(begin) :]  # of two classes, only the second has trees
        base[columns] = begin
    columns = np.tile(columns, len(rounds)).astype(np.int16)
    return _check_against_sklearn(_assemble_trees(parts, columns, base, 1.0, knots, (x.shape[1], link)), x, theirs)


# --- labels and inputs -----------------------------------------------------------------------------


def _labelled_rows(x: np.ndarray, y: np.ndarray, kind: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows that have a label, without nan and infinities."""
    if kind not in ("regression", "binary", "multiclass"):
        raise InputError(f"trees know no kind {kind!r}: choose regression, binary or multiclass")
    if x.ndim != 2 or x.shape[1] == 0 or np.shape(y) != x.shape[:1]:
        raise InputError(f"inputs of shape {list(x.shape)} do not go with labels of shape {list(np.shape(y))}")
    y = np.asarray(y, np.float64)
    known = ~np.isnan(y)
    x, y = np.asarray(x[known], np.float32), y[known]
    if len(y) == 0:
        raise InputError("no row has a label: trees need at least one")
    if kind == "regression" and (np.abs(y) > MAX_LABEL).any():
        raise InputError(f"a label is infinite or beyond {MAX_LABEL:g}: leave its row out")
    if kind != "regression" and not np.isin(y, np.arange(2 if kind == "binary" else classes)).all():
        raise InputError(f"labels of {kind} trees are indices of classes, from 0 to {classes - 1}")
    finite = np.isfinite(x)
    low = np.where(finite, x, np.float32(np.inf)).min(axis=0)
    high = np.where(finite, x, np.float32(-np.inf)).max(axis=0)
    low, high = np.where(low > high, np.float32(0), low), np.where(low > high, np.float32(0), high)
    # Thresholds lie between a column's values, so nan and infinities of any row go the way of these.
    return np.clip(np.where(np.isnan(x), low, x), low, high), y


def _informative_columns(x: np.ndarray) -> np.ndarray:
    """The indices of the columns that tell enough rows from the others; the first column if there are none."""
    needed = max(2, min(_MIN_SHARE * len(x), _MAX_NEEDED))
    columns = np.flatnonzero((x != np.median(x, axis=0)).sum(axis=0) >= needed)
    return columns if len(columns) else np.zeros(1, np.int64)


def _max_features(used: np.ndarray) -> float:
    """The share of the columns among which a node looks for its best: a tenth, more of few."""
    return max(0.1, len(used) ** -0.5)


def _leaf_settings(rows: int, kind: str) -> dict[str, Any]:
    """Settings of boosting that depend on how much there is to learn from: few labels of classes want small steps."""
    if rows >= 1500:
        return {"max_leaf_nodes": 31, "min_samples_leaf": 20}
    smallest = max(2, rows // 25)
    if kind == "regression":
        return {"max_leaf_nodes": 16, "min_samples_leaf": min(smallest, 20)}
    return {"max_leaf_nodes": 16, "min_samples_leaf": min(smallest, 10), "l2_regularization": 10}


def _constant_trees(label: float, kind: str, classes: int, features: int) -> Trees:
    """The answer of rows that have all one label: no tree."""
    base = np.array([label])
    if kind == "multiclass":
        base = (np.arange(classes) == label).astype(np.float64)
    settings = (features, NUMBER if kind == "regression" else TREE_FRACTIONS)
    return _assemble_trees([], np.zeros(0), base, 1.0, np.empty((2, 0)), settings)


def _normal_scores(y: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Knots, and what is learned: the normal scores of numbers, the indices of classes."""
    if kind != "regression":
        return np.empty((2, 0)), y.astype(np.int64)
    numbers, counts = np.unique(y, return_counts=True)
    middle = (counts.cumsum() - counts / 2) / len(y)
    chosen = np.unique(np.linspace(0, len(numbers) - 1, _MAX_KNOTS).round().astype(np.int64))
    numbers, middle = numbers[chosen], middle[chosen]
    scores = np.array([NormalDist().inv_cdf(share) for share in middle])
    return np.stack([scores, numbers]), interpolate(y, np.stack([numbers, scores]))


# --- scikit-learn's trees as arrays ------------------------------------------------------------------


def _forest_tree(tree: Any, used: np.ndarray) -> _Tree:
    leaf = tree.children_left < 0
    child = np.where(leaf, leaf.cumsum() - 1, tree.children_right)
    if not (leaf | (tree.children_left == np.arange(len(leaf)) + 1)).all():
        raise _unknown_layout()
    feature = np.where(leaf, -1, used[np.where(leaf, 0, tree.feature)])
    return feature, np.where(leaf, 0, tree.threshold), child, tree.value[leaf][:, 0]


def _boosting_tree(nodes: np.ndarray, used: np.ndarray) -> _Tree:
    leaf = nodes["is_leaf"].astype(bool)
    child = np.where(leaf, leaf.cumsum() - 1, nodes["right"])
    if nodes["is_categorical"].any() or not (leaf | (nodes["left"] == np.arange(len(leaf)) + 1)).all():
        raise _unknown_layout()
    feature = np.where(leaf, -1, used[np.where(leaf, 0, nodes["feature_idx"])])
    return feature, np.where(leaf, 0, nodes["num_threshold"]), child, nodes["value"][leaf][:, None]


def _assemble_trees(
    parts: list[_Tree], columns: np.ndarray, base: np.ndarray, scale: float, knots: np.ndarray, settings: tuple
) -> Trees:
    """The trees behind each other."""
    values = [part[3] for part in parts] or [np.empty((0, len(base)))]
    roots = np.cumsum([0, *(len(part[0]) for part in parts)])
    leaves = np.cumsum([0, *(len(part[3]) for part in parts)])
    dtype = np.int16 if settings[0] < 1 << 15 else np.int32
    child = [np.where(part[0] < 0, part[2] + leaves[k], part[2] + roots[k]) for k, part in enumerate(parts)]
    return Trees(
        feature=_concatenate([part[0] for part in parts], dtype),
        threshold=_round_down(_concatenate([part[1] for part in parts], np.float64)),
        child=_concatenate(child, np.int32),
        roots=roots.astype(np.int32),
        columns=columns.astype(np.int16),
        values=np.concatenate(values).astype(np.float32),
        base=np.asarray(base, np.float64),
        scale=np.array([scale]),
        knots=np.ascontiguousarray(knots),
        settings=np.array(settings, np.int64),
    )


def _concatenate(arrays: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([np.empty(0), *arrays]).astype(dtype)


def _round_down(threshold: np.ndarray) -> np.ndarray:
    """float32 that divides float32 numbers as the float64 threshold does."""
    near = threshold.astype(np.float32)
    return np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)


def _all_class_columns(values: np.ndarray, present: np.ndarray, kind: str, classes: int) -> np.ndarray:
    """The columns of all classes, or of class 1 alone, given those of the classes that are present."""
    if kind == "binary":
        return values[:, 1:]
    spread = np.zeros((len(values), classes))
    spread[:, present] = values
    return spread


def _sklearn_predictions(model: Any, x: np.ndarray, kind: str, classes: int) -> np.ndarray:
    """What :meth:`Trees.predict` should say, by scikit-learn's own predictions; of numbers the scores."""
    if kind == "regression":
        return model.predict(x)[:, None]
    return _all_class_columns(model.predict_proba(x), model.classes_, kind, classes)


def _check_against_sklearn(trees: Trees, x: np.ndarray, theirs: np.ndarray) -> Trees:
    """The trees, if they say what scikit-learn says."""
    # Of numbers their scores: between two clusters of labels the knots are steep, and blow up what rounding leaves.
    ours = replace(trees, knots=np.empty((2, 0))).predict(x[: len(theirs)])
    if not np.allclose(ours, theirs, rtol=1e-6, atol=1e-6 * max(1e-300, np.abs(theirs).max())):
        raise _unknown_layout()
    return trees


def _unknown_layout() -> InputError:
    import sklearn

    return InputError(
        f"scikit-learn {sklearn.__version__} keeps its trees in another way than GraphSlice {__version__} reads them: "
        "install 1.9.1 and resume, or train with --baselines off"
    )
