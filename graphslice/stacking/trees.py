"""Tree ensembles as arrays: checked on construction, stored without pickle, evaluated by compiled code."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numba import njit

from graphslice.errors import InputError
from graphslice.normal_scores import interpolate
from graphslice.threads import parallel_for

#: Link from the sum of the leaves to a prediction: number, fractions of trees per class, logistic function, softmax.
NUMBER, TREE_FRACTIONS, LOGISTIC, SOFTMAX = range(4)

#: Largest magnitude of a label: differences of larger numbers would overflow.
MAX_LABEL = 1e300

# Rows per block: a tree is read from the level-2 cache for all rows of a block.
_BLOCK = 64
_NODES_A_PATH = 16  # typical depth of a leaf: estimates the work, from which the number of threads is chosen


def form(shape: str, *dtypes: str) -> dict[str, Any]:
    """Return what :func:`check_arrays` checks of an array: its sizes, such as ``"2 N K+1"``, and possible dtypes."""
    return {"shape": shape.split(), "dtypes": dtypes}


def check_arrays(owner: Any) -> None:
    """Raise :class:`InputError` unless the arrays of a dataclass are as declared, so that compiled code may use them.

    A letter is one size in all arrays.
    """
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


@dataclass(frozen=True, eq=False)
class Trees:
    """Tree ensemble: a random forest or gradient boosting with K decision trees. Arrays are checked on construction.

    The nodes of a tree are contiguous and in pre-order: the left child of a node directly follows it. A row goes right
    if its feature is greater than the threshold, else left (also with nan).

    Attributes:
        feature: int16 or int32 ``[N]``, feature that a node compares; -1 for a leaf.
        threshold: float32 ``[N]``.
        child: int32 ``[N]``, index of the right child; for a leaf its row in ``values``.
        roots: int32 ``[K + 1]``, index of the root of each tree, then N; K may be 0.
        columns: int16 ``[K]``, first column of the prediction to which a tree adds.
        values: float32 ``[L, V]``, leaf values, added to V columns.
        base: float64 ``[W]``, initial value of the sum.
        scale: float64 ``[1]``, factor of the sum of the leaves: 1 / K for a forest.
        knots: float64 ``[2, P]``, map from sums (first row, ascending) to numbers (second row): piecewise linear,
            constant outside; P is 0 if the sum is the prediction.
        settings: int64 ``[2]``: number of features F, and the link (:data:`NUMBER`, ...).

    Raises:
        InputError: if the arrays are not valid trees.
    """

    feature: np.ndarray = field(metadata=form("N", "int16", "int32"))
    threshold: np.ndarray = field(metadata=form("N", "float32"))
    child: np.ndarray = field(metadata=form("N", "int32"))
    roots: np.ndarray = field(metadata=form("K+1", "int32"))
    columns: np.ndarray = field(metadata=form("K", "int16"))
    values: np.ndarray = field(metadata=form("L V", "float32"))
    base: np.ndarray = field(metadata=form("W", "float64"))
    scale: np.ndarray = field(metadata=form("1", "float64"))
    knots: np.ndarray = field(metadata=form("2 P", "float64"))
    settings: np.ndarray = field(metadata=form("2", "int64"))

    def __post_init__(self) -> None:
        check_arrays(self)
        if error := _index_error(self):
            raise InputError(f"the arrays are not trees: {error}")

    @property
    def width(self) -> int:
        """W, number of columns of a prediction."""
        return len(self.base)

    @property
    def features(self) -> int:
        """F, number of input features."""
        return int(self.settings[0])

    @property
    def of_numbers(self) -> bool:
        """True for regression: the prediction is a number, not probabilities."""
        return int(self.settings[1]) == NUMBER

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Predict each row independently: the result is bitwise the same in any batch.

        Args:
            x: float32 ``[R, F]``; nan and infinities are allowed.

        Returns:
            float64 ``[R, W]``: a number, the probability of class 1 (W = 1), or those of all classes, summing to 1.

        Raises:
            InputError: if ``x`` does not have F columns.
        """
        return self._inverse_link(self.sums(x))

    def sums(self, x: np.ndarray) -> np.ndarray:
        """Return the sums of the leaves of each row, before the link: float64 ``[R, W]``; see :meth:`predict`."""
        if x.ndim != 2 or x.shape[1] != self.features:
            raise InputError(f"inputs of shape {list(x.shape)} do not match trees of {self.features} features")
        x = np.ascontiguousarray(x, np.float32)
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
        if self.width == 1:
            return np.clip(sums, 0, 1)
        return shares(sums)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the attributes by name."""
        return dict(vars(self))


@njit(cache=True, nogil=True)
def add_leaves(x, feature, threshold, child, roots, columns, values, out, begin, end):
    """Add the leaf values of all trees, in their order, to rows ``begin`` to ``end`` of ``out``.

    nan goes left, since no comparison with it is true.

    Args:
        x: float32 ``[R, F]``.
        feature, threshold, child, roots, columns, values: see :class:`Trees`.
        out: float64 ``[R, W]``, changed in place.
        begin, end: range of rows.
    """
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
    if value < 0:
        return 1 - logistic(-value)
    return 1 / (1 + math.exp(-value))


def shares(values: np.ndarray) -> np.ndarray:
    """Divide the values of each row, ``float64 [R, W]``, by their sum."""
    totals = values[:, 0].copy()
    for column in range(1, values.shape[1]):  # fixed order of summation for any number of rows
        totals += values[:, column]
    return values / totals[:, None]


def _index_error(trees: Trees) -> str:
    """Check the assumptions of the compiled loop: valid indices, and children with larger indices than their node."""
    feature, child, roots, nodes = trees.feature, trees.child.astype(np.int64), trees.roots, len(trees.feature)
    if roots[0] != 0 or roots[-1] != nodes or (roots[1:] <= roots[:-1]).any():
        return "roots are not ascending indices of nodes"
    if ((feature < -1) | (feature >= trees.features)).any():
        return "a node compares no feature"
    leaf = feature < 0
    if (leaf & ((child < 0) | (child >= len(trees.values)))).any():
        return "a leaf has no value"
    node = np.arange(nodes)
    end = np.repeat(roots[1:], np.diff(roots))
    if (~leaf & ((child <= node + 1) | (child >= end))).any():  # then the left child, node + 1, is in the tree too
        return "a node does not have two children after it"
    columns = trees.columns.astype(np.int64)
    if ((columns < 0) | (columns + trees.values.shape[1] > trees.width)).any():
        return "a tree adds to no column of the prediction"
    return ""
