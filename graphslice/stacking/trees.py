"""Tree ensembles as arrays: checked on construction, stored without pickle, evaluated by compiled code.

They are a random forest by scikit-learn and gradient boosting by LightGBM, both read through public interfaces
(``tree_`` of scikit-learn's trees, and LightGBM's ``dump_model``). The hyperparameters were chosen by cross-validation
on small datasets of ADMET properties.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numba import njit

from graphslice._version import __version__
from graphslice.errors import InputError
from graphslice.system.threads import cores, parallel_for
from graphslice.tasks import fit_knots, interpolate, to_scores

#: Link from the sum of the leaves to a prediction: number, fractions of trees per class, logistic function, softmax.
NUMBER, TREE_FRACTIONS, LOGISTIC, SOFTMAX = range(4)

# Rows per block: a tree is read from the level-2 cache for all rows of a block.
_BLOCK = 64
_NODES_A_PATH = 16  # typical depth of a leaf: estimates the work, from which the number of threads is chosen


def form(shape: str, *dtypes: str) -> dict[str, Any]:
    """Return what :func:`check_arrays` checks of an array: its sizes, such as ``"2 N K+1"``, and possible dtypes."""
    return {"shape": shape.split(), "dtypes": dtypes}


def check_arrays(owner: Any, index_error: Callable[[], str] | None = None) -> None:
    """Raise :class:`InputError` unless the arrays of a dataclass are as declared (a letter is one size in all arrays)
    and their values have no ``index_error()``, so that compiled code may use them."""
    sizes: dict[str, int] = {}
    for each in fields(owner):
        if each.metadata:
            found, shape, dtypes = getattr(owner, each.name), each.metadata["shape"], each.metadata["dtypes"]
            valid = isinstance(found, np.ndarray) and found.dtype in dtypes and found.ndim == len(shape)
            for size, length in zip(shape, found.shape if valid else (), strict=False):
                name, _, more = size.partition("+")
                known = int(name) if name.isdigit() else sizes.setdefault(name, length - int(more or 0))
                valid = valid and length == known + int(more or 0)
            if not valid or not found.flags.c_contiguous:
                raise InputError(f"{each.name} is not an array [{', '.join(shape)}] of {' or '.join(dtypes)}")
    if index_error is not None and (error := index_error()):
        raise InputError(f"the arrays of a model do not fit: {error}")


def as_inputs(x: np.ndarray, features: int) -> np.ndarray:
    """Return inputs ``[R, F]`` for compiled code; raises :class:`InputError` for another number of columns."""
    if x.ndim != 2 or x.shape[1] != features:
        raise InputError(f"inputs of shape {list(x.shape)} do not match a model of {features} features")
    return np.ascontiguousarray(x, np.float32)


@dataclass(frozen=True, eq=False)
class Trees:
    """Random forest or gradient boosting with K decision trees, whose nodes are in pre-order: the left child of a node
    directly follows it. A row goes right if its feature is greater than the threshold, else left (also with nan)."""

    feature: np.ndarray = field(metadata=form("N", "int16", "int32"))  # that a node compares; -1 for a leaf
    threshold: np.ndarray = field(metadata=form("N", "float32"))
    child: np.ndarray = field(metadata=form("N", "int32"))  # index of the right child; for a leaf its row in values
    roots: np.ndarray = field(metadata=form("K+1", "int32"))  # index of the root of each tree, then N; K may be 0
    columns: np.ndarray = field(metadata=form("K", "int16"))  # first column to which a tree adds
    values: np.ndarray = field(metadata=form("L V", "float32"))  # of leaves, added to V columns
    base: np.ndarray = field(metadata=form("W", "float64"))  # initial value of the sum
    scale: np.ndarray = field(metadata=form("1", "float64"))  # factor of the sum of the leaves: 1 / K for a forest
    knots: np.ndarray = field(metadata=form("2 P", "float64"))
    """Map from sums (first row, ascending) to numbers (second row): piecewise linear, constant outside; P is 0 if the
    sum is the prediction."""
    settings: np.ndarray = field(metadata=form("2", "int64"))  # number of features F, and the link (NUMBER, ...)

    def __post_init__(self) -> None:
        check_arrays(self, self._index_error)

    def _index_error(self) -> str:
        """Check what the compiled loop assumes: valid indices, and children with larger indices than their node."""
        feature, child, roots, nodes = self.feature, self.child.astype(np.int64), self.roots, len(self.feature)
        if roots[0] != 0 or roots[-1] != nodes or (roots[1:] <= roots[:-1]).any():
            return "roots are not ascending indices of nodes"
        if ((feature < -1) | (feature >= self.features)).any():
            return "a node compares no feature"
        leaf = feature < 0
        if (leaf & ((child < 0) | (child >= len(self.values)))).any():
            return "a leaf has no value"
        node = np.arange(nodes)
        end = np.repeat(roots[1:], np.diff(roots))
        if (~leaf & ((child <= node + 1) | (child >= end))).any():  # then the left child, node + 1, is in the tree too
            return "a node does not have two children after it"
        columns = self.columns.astype(np.int64)
        if ((columns < 0) | (columns + self.values.shape[1] > self.width)).any():
            return "a tree adds to no column of the prediction"
        return ""

    @property
    def width(self) -> int:
        """W, number of columns of a prediction."""
        return len(self.base)

    @property
    def features(self) -> int:
        """F, number of input features."""
        return int(self.settings[0])

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Predict each row ``float32 [R, F]`` independently, bitwise the same in any batch: a number, the probability
        of class 1 (W = 1), or those of all classes, ``float64 [R, W]``. Features may be nan and infinite."""
        return self._inverse_link(self.sums(x))

    def sums(self, x: np.ndarray) -> np.ndarray:
        """Return the sums of the leaves of each row, before the link: float64 ``[R, W]``; see :meth:`predict`."""
        x = as_inputs(x, self.features)
        leaves = np.zeros((len(x), self.width))
        arrays = self.feature, self.threshold, self.child, self.roots, self.columns, self.values

        def traverse(begin: int, end: int) -> None:
            add_leaves(x, *arrays, leaves, begin, end)

        parallel_for(traverse, len(x), len(x) * len(self.columns) * _NODES_A_PATH)
        return self.base + self.scale * leaves

    def _inverse_link(self, sums: np.ndarray) -> np.ndarray:
        """Convert sums to predictions ``[R, W]``, one exponential at a time: numpy's depend on the array position."""
        link = int(self.settings[1])
        if link == NUMBER:
            return interpolate(sums, self.knots) if self.knots.size else sums
        if link == LOGISTIC:
            return np.array([logistic(value) for value in sums[:, 0]]).reshape(-1, 1)
        if link == SOFTMAX:
            sums = sums - sums.max(axis=1, keepdims=True)
            sums = np.array([math.exp(value) for value in sums.ravel()]).reshape(sums.shape)
        return np.clip(sums, 0, 1) if self.width == 1 else shares(sums)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the attributes by name."""
        return dict(vars(self))


@njit(cache=True, nogil=True)
def add_leaves(x, feature, threshold, child, roots, columns, values, out, begin, end):
    """Add the leaf values of all trees for ``x``, float32 ``[R, F]``, to rows ``begin`` to ``end`` of ``out``, float64
    ``[R, W]``; other arrays as in :class:`Trees`. nan goes left, since no comparison with it is true."""
    for first in range(begin, end, _BLOCK):
        for tree in range(columns.shape[0]):
            for row in range(first, min(first + _BLOCK, end)):
                node = np.int64(roots[tree])
                while feature[node] >= 0:
                    node = np.int64(child[node]) if x[row, feature[node]] > threshold[node] else node + 1
                for k in range(values.shape[1]):
                    out[row, columns[tree] + k] += values[child[node], k]


def logistic(value: float) -> float:
    """Compute the logistic function without overflow."""
    return 1 - logistic(-value) if value < 0 else 1 / (1 + math.exp(-value))


def shares(values: np.ndarray) -> np.ndarray:
    """Divide the values of each row, ``float64 [R, W]``, by their sum."""
    totals = values[:, 0].copy()
    for column in range(1, values.shape[1]):  # fixed order of summation for any number of rows
        totals += values[:, column]
    return values / totals[:, None]


# Logit of a class without training rows: its probability becomes 0.
_ABSENT_CLASS_LOGIT = -1e9
# LightGBM treats numbers up to this size as zero.
_LARGEST_ZERO = float(np.float32(1e-35))
# Number of rows on which the converted trees are compared with the predictions of the library.
_CHECKED_ROWS = 1000
# Number of trees of a forest, which is smaller for more rows, and of boosting (of each of several classes).
_FEWEST_TREES, _MOST_TREES, _BOOSTING_TREES = 75, 150, 200
# A column is dropped if fewer rows than this differ from its median, so that splits try informative columns more often.
_MIN_SHARE, _MAX_NEEDED = 0.03, 20

#: One tree: feature, threshold, child and values of :class:`Trees`, with indices from 0.
_Tree = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def fit_forest(
    x: np.ndarray,  # float32 [R, F]; nan and infinities allowed, nan counts as the smallest value of its column
    y: np.ndarray,  # float64 [R], numbers or class indices; rows with nan are ignored
    kind: str,  # "regression", "binary" or "multiclass"
    classes: int,  # number of classes; ignored for regression
    seed: int,
    weights: np.ndarray | None = None,  # float64 [R], above 0
) -> Trees:
    """Fit a random forest: extremely randomised trees (Geurts et al. 2006, doi:10.1007/s10994-006-6226-1), to normal
    scores of the ranks of regression labels, so that a few large values do not dominate the splits. The trees do not
    depend on the number of threads."""
    import sklearn
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    x, y, weights = labelled_rows(x, y, weights)
    if (y == y[0]).all():
        return _constant_trees(y[0], kind, classes, x.shape[1])
    rows, used = len(y), _informative_columns(x)
    inputs = x[:, used]
    settings: dict[str, Any] = {"n_estimators": int(np.clip(1_000_000 // rows, _FEWEST_TREES, _MOST_TREES))}
    settings |= {"max_features": _share(used), "min_samples_leaf": 2 + rows // 5000}
    settings |= {"random_state": seed, "n_jobs": cores()}
    knots, labels = label_scores(y, kind)
    model = (ExtraTreesRegressor if kind == "regression" else ExtraTreesClassifier)(**settings)
    model.fit(inputs, labels, weights)
    tree_arrays, checked = [_forest_tree(each.tree_, used) for each in model.estimators_], inputs[:_CHECKED_ROWS]
    if kind == "regression":
        link, expected = NUMBER, model.predict(checked)[:, None]
    else:
        link, present = TREE_FRACTIONS, model.classes_
        expected = _all_class_columns(model.predict_proba(checked), present, kind, classes)
        tree_arrays = [(*each[:3], _all_class_columns(each[3], present, kind, classes)) for each in tree_arrays]
    base, columns = np.zeros(classes if kind == "multiclass" else 1), np.zeros(len(tree_arrays), np.int16)
    trees = _assemble_trees(tree_arrays, columns, base, 1 / len(tree_arrays), knots, (x.shape[1], link))
    return _check_conversion(trees, x, expected, f"scikit-learn {sklearn.__version__}")


def fit_boosting(
    x: np.ndarray, y: np.ndarray, kind: str, classes: int, seed: int, weights: np.ndarray | None = None
) -> Trees:
    """Fit gradient boosting by LightGBM, with the squared error of normal scores, or log loss; arguments as of
    :func:`fit_forest`. Several threads of OpenMP would wait for each other where other programs use the cores."""
    lightgbm = _import_lightgbm()
    x, y, weights = labelled_rows(x, y, weights)
    if (y == y[0]).all():
        return _constant_trees(y[0], kind, classes, x.shape[1])
    used = _informative_columns(x)
    inputs = x[:, used].astype(np.float64)
    knots, labels = label_scores(y, kind)
    present = np.unique(labels) if kind == "multiclass" else np.array([0])
    several = len(present) > 2
    link = {"regression": NUMBER, "binary": LOGISTIC}.get(kind, SOFTMAX)
    objective = {"regression": "regression", "binary": "binary"}.get(kind, "multiclass" if several else "binary")
    settings: dict[str, Any] = {"objective": objective, "learning_rate": 0.05, "feature_fraction_bynode": _share(used)}
    settings |= {"max_bin": 63, "min_data_in_bin": 1, "min_sum_hessian_in_leaf": 1e-3, "feature_pre_filter": False}
    settings |= {"deterministic": True, "force_row_wise": True, "num_threads": 1, "seed": seed, "verbosity": -1}
    settings |= {"num_class": len(present)} if several else {}
    settings |= _leaf_settings(len(y), kind)
    classes_or_scores = np.searchsorted(present, labels) if kind == "multiclass" else labels
    training = lightgbm.Dataset(inputs, classes_or_scores, weight=weights)
    model = lightgbm.train(settings, training, num_boost_round=_BOOSTING_TREES)
    expected = np.asarray(model.predict(inputs[:_CHECKED_ROWS], raw_score=True, num_threads=1)).reshape(
        -1, len(present) if several else 1
    )
    trees = [_boosting_tree(tree["tree_structure"], used) for tree in model.dump_model()["tree_info"]]
    base, columns = np.zeros(1), np.zeros(len(trees), np.int64)
    if kind == "multiclass":
        base = np.full(classes, _ABSENT_CLASS_LOGIT)
        base[present] = 0
        columns = np.resize(present if several else present[1:], len(trees))  # of two classes, the second has the trees
        # Sums of classes without trees are not compared.
        expected = _all_class_columns(expected, present if several else present[1:], kind, classes, np.nan)
    result = _assemble_trees(trees, columns, base, 1.0, knots, (x.shape[1], link))
    return _check_conversion(result, x, expected, f"LightGBM {lightgbm.__version__}")


# --- labels and inputs -----------------------------------------------------------------------------


def labelled_rows(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Select the rows with a label, replace nan and infinities in ``x``, and scale ``weights`` to a mean of 1."""
    y = np.asarray(y, np.float64)
    known = ~np.isnan(y)
    x, y = np.asarray(x[known], np.float32), y[known]
    finite = np.isfinite(x)
    low = np.where(finite, x, np.float32(np.inf)).min(axis=0)
    high = np.where(finite, x, np.float32(-np.inf)).max(axis=0)
    low, high = np.where(low > high, np.float32(0), low), np.where(low > high, np.float32(0), high)
    # Thresholds are between the finite values of a column, so nan and infinities take the branch of these values.
    weights = None if weights is None else weights[known] / weights[known].mean()
    return np.clip(np.where(np.isnan(x), low, x), low, high), y, weights


def _informative_columns(x: np.ndarray) -> np.ndarray:
    """Indices of the columns in which enough rows differ from the median; column 0 if there are none."""
    needed = max(2, min(_MIN_SHARE * len(x), _MAX_NEEDED))
    columns = np.flatnonzero((x != np.median(x, axis=0)).sum(axis=0) >= needed)
    return columns if len(columns) else np.zeros(1, np.int64)


def _share(used: np.ndarray) -> float:
    """Fraction of the columns that a split tries: a tenth, more of few columns."""
    return max(0.1, len(used) ** -0.5)


def _leaf_settings(rows: int, kind: str) -> dict[str, Any]:
    """Hyperparameters of boosting that depend on the number of rows; few class labels need regularisation."""
    if rows >= 1500:
        return {"num_leaves": 31, "min_data_in_leaf": 20}
    leaf_size = max(2, rows // 25)
    if kind == "regression":
        return {"num_leaves": 16, "min_data_in_leaf": min(leaf_size, 20)}
    return {"num_leaves": 16, "min_data_in_leaf": min(leaf_size, 10), "lambda_l2": 10}


def _constant_trees(label: float, kind: str, classes: int, features: int) -> Trees:
    base = (np.arange(classes) == label) * 1.0 if kind == "multiclass" else np.array([label])
    settings = (features, NUMBER if kind == "regression" else TREE_FRACTIONS)
    return _assemble_trees([], np.zeros(0), base, 1.0, np.empty((2, 0)), settings)


def label_scores(y: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Knots, and the labels to fit: normal scores for regression, class indices otherwise."""
    if kind != "regression":
        return np.empty((2, 0)), y.astype(np.int64)
    knots = fit_knots(y)
    return knots, to_scores(y, knots)


def _import_lightgbm() -> Any:
    """Import LightGBM, whose wheels do not contain the OpenMP library; raises InputError if that is missing."""
    try:
        import lightgbm
    except OSError as error:
        raise InputError(
            f"LightGBM cannot be loaded ({error}): install the OpenMP library (libgomp1 on Debian and Ubuntu, libomp "
            "on macOS) and resume, or train with trainer.baselines off"
        ) from error
    return lightgbm


# --- trees as arrays ---------------------------------------------------------------------------------


def _forest_tree(tree: Any, used: np.ndarray) -> _Tree:
    leaf = tree.children_left < 0
    child = np.where(leaf, leaf.cumsum() - 1, tree.children_right)
    feature = np.where(leaf, -1, used[np.where(leaf, 0, tree.feature)])
    return feature, np.where(leaf, 0, tree.threshold), child, tree.value[leaf][:, 0]


def _boosting_tree(root: dict[str, Any], used: np.ndarray) -> _Tree:
    nodes: list[list] = []  # in pre-order: feature, threshold, and right child or, of a leaf, index of the value
    values: list[float] = []

    def add(node: dict[str, Any]) -> None:
        if "leaf_value" in node:
            nodes.append([-1, 0.0, len(values)])
            values.append(node["leaf_value"])
            return
        threshold = node["threshold"]
        if threshold == -_LARGEST_ZERO:  # counts as zero, and goes right
            threshold = np.nextafter(threshold, -np.inf)
        split = [used[node["split_feature"]], threshold, -1]
        nodes.append(split)
        add(node["left_child"])
        split[2] = len(nodes)
        add(node["right_child"])

    add(root)
    feature, thresholds, child = map(np.array, zip(*nodes, strict=True))
    return feature, thresholds, child, np.array(values)[:, None]


def _assemble_trees(
    tree_arrays: list[_Tree], columns: np.ndarray, base: np.ndarray, scale: float, knots: np.ndarray, settings: tuple
) -> Trees:
    values = [arrays[3] for arrays in tree_arrays] or [np.empty((0, len(base)))]
    roots = np.cumsum([0, *(len(arrays[0]) for arrays in tree_arrays)])
    leaves = np.cumsum([0, *(len(arrays[3]) for arrays in tree_arrays)])
    feature, threshold, child = (np.concatenate([np.empty(0), *(each[k] for each in tree_arrays)]) for k in range(3))
    first = np.where(feature < 0, np.repeat(leaves[:-1], np.diff(roots)), np.repeat(roots[:-1], np.diff(roots)))
    return Trees(
        feature=feature.astype(np.int16 if settings[0] < 1 << 15 else np.int32),
        threshold=_round_down(threshold),
        child=(first + child).astype(np.int32),
        roots=roots.astype(np.int32),
        columns=columns.astype(np.int16),
        values=np.concatenate(values).astype(np.float32),
        base=np.asarray(base, np.float64),
        scale=np.array([scale]),
        knots=np.ascontiguousarray(knots),
        settings=np.array(settings, np.int64),
    )


def _round_down(threshold: np.ndarray) -> np.ndarray:
    """Round float64 thresholds to float32 so that float32 values compare to them in the same way."""
    rounded = threshold.astype(np.float32)
    return np.where(rounded > threshold, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def _all_class_columns(
    values: np.ndarray, present: np.ndarray, kind: str, classes: int, absent: float = 0.0
) -> np.ndarray:
    """Expand the columns of the present classes to all classes; for binary kinds keep class 1 only."""
    if kind == "binary":
        return values[:, 1:]
    all_columns = np.full((len(values), classes), absent)
    all_columns[:, present] = values
    return all_columns


def _check_conversion(trees: Trees, x: np.ndarray, expected: np.ndarray, library: str) -> Trees:
    """Return the trees if their predictions for the first rows equal those of the library (of boosting the sums; nan
    where not compared); else an :class:`InputError`, since its version stores trees in another layout."""
    x = x[: len(expected)]
    # Compare normal scores: between two clusters of labels the knots are steep and amplify rounding errors.
    is_forest = int(trees.settings[1]) == TREE_FRACTIONS or trees.scale[0] < 1
    actual = replace(trees, knots=np.empty((2, 0))).predict(x) if is_forest else trees.sums(x)
    known = ~np.isnan(expected)
    tolerance = 1e-6 * max(1e-300, np.abs(expected[known]).max())
    if not np.allclose(actual[known], expected[known], rtol=1e-6, atol=tolerance):
        raise InputError(
            f"{library} describes trees in a way that GraphSlice {__version__} cannot read: install the version in its "
            "constraints.txt and resume, or train with trainer.baselines off"
        )
    return trees
