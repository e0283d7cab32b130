"""Trees as arrays: checked once, stored without pickle, walked by a compiled loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graphslice.errors import InputError
from graphslice.ops.threads import parallel_for
from graphslice.trees.traversal import add_leaves

#: What is made of the sum of the leaves: a number, shares of trees, or probabilities by logistic function or softmax.
NUMBER, TREE_FRACTIONS, LOGISTIC, SOFTMAX = range(4)

#: Larger numbers are no labels: differences of such ones would be infinite.
MAX_LABEL = 1e300

#: The dtypes and dimensions of the arrays.
_FORMS: dict[str, tuple[tuple[str, ...], int]] = {
    "feature": (("int16", "int32"), 1),
    "threshold": (("float32",), 1),
    "child": (("int32",), 1),
    "roots": (("int32",), 1),
    "columns": (("int16",), 1),
    "values": (("float32",), 2),
    "base": (("float64",), 1),
    "scale": (("float64",), 1),
    "knots": (("float64",), 2),
    "settings": (("int64",), 1),
}
_NODES_A_PATH = 16  # about as many as a row passes in a tree: says what is worth a thread


@dataclass(frozen=True, eq=False)
class Trees:
    """Decision trees whose leaves are added up, of a forest or of boosting. Everything is checked when it is made.

    The nodes of a tree lie together, a node before its children, its left child directly behind it. A row goes right
    where its feature is greater than the threshold, else left, so with nan too.

    Attributes:
        feature: int16 or int32 ``[N]``, the feature that a node looks at; -1 for a leaf.
        threshold: float32 ``[N]``.
        child: int32 ``[N]``, the right child; of a leaf its row of ``values``.
        roots: int32 ``[K + 1]``, where the trees begin, and where the last one ends; K may be 0.
        columns: int16 ``[K]``, the first column of the answer to which a tree adds.
        values: float32 ``[L, V]``, what the leaves add to V columns.
        base: float64 ``[W]``, where the sum begins.
        scale: float64 ``[1]``, by which the sum of the leaves is multiplied: 1 / K for a forest.
        knots: float64 ``[2, P]``: sums, rising, and the numbers that they stand for, linear in between and constant
            outside; P is 0 where a sum is the number itself.
        settings: int64 ``[2]``: F, the number of features, and what is made of the sum.

    Raises:
        InputError: if the arrays do not make whole trees.
    """

    feature: np.ndarray
    threshold: np.ndarray
    child: np.ndarray
    roots: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    base: np.ndarray
    scale: np.ndarray
    knots: np.ndarray
    settings: np.ndarray

    def __post_init__(self) -> None:
        fault = _array_error(self.to_arrays()) or _tree_error(self) or _prediction_error(self)
        if fault:
            raise InputError(f"these are no whole trees: {fault}; fit them again")

    @property
    def width(self) -> int:
        """W, the columns of an answer."""
        return len(self.base)

    @property
    def features(self) -> int:
        """F, the columns of an input."""
        return int(self.settings[0])

    @property
    def of_numbers(self) -> bool:
        """Whether they predict a number, and no probabilities."""
        return int(self.settings[1]) == NUMBER

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The answer for each row, which depends on that row alone, bit for bit.

        Args:
            x: float32 ``[R, F]``; nan and infinities are allowed.

        Returns:
            float64 ``[R, W]``: a number, the probability of class 1 (W = 1), or those of all classes, their sum 1.

        Raises:
            InputError: if ``x`` has other columns.
        """
        if x.ndim != 2 or x.shape[1] != self.features:
            raise InputError(f"rows of shape {list(x.shape)} do not fit trees of {self.features} features")
        x = np.ascontiguousarray(x, np.float32)
        leaves = np.zeros((len(x), self.width))
        arrays = self.feature, self.threshold, self.child, self.roots, self.columns, self.values

        def walk(begin: int, end: int) -> None:
            add_leaves(x, *arrays, leaves, begin, end)

        parallel_for(walk, len(x), len(x) * len(self.columns) * _NODES_A_PATH)
        return self._inverse_link(self.base + self.scale * leaves)

    def _inverse_link(self, sums: np.ndarray) -> np.ndarray:
        """float64 ``[R, W]`` of such sums. Exponentials one by one: numpy's would depend on the place in the array."""
        link = int(self.settings[1])
        if link == NUMBER:
            return interpolate(sums, self.knots) if self.knots.size else sums
        if link == LOGISTIC:
            return np.array([_logistic(value) for value in sums[:, 0]]).reshape(-1, 1)
        if link == SOFTMAX:
            sums = sums - sums.max(axis=1, keepdims=True)
            sums = np.array([math.exp(value) for value in sums.ravel()]).reshape(sums.shape)
        if self.width == 1:
            return np.clip(sums, 0, 1)
        totals = sums[:, 0].copy()
        for column in range(1, self.width):  # in one order, however many rows there are
            totals += sums[:, column]
        return sums / totals[:, None]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The attributes by their names: what :meth:`from_arrays` takes, and a checkpoint may hold as tensors."""
        return {name: getattr(self, name) for name in _FORMS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Trees:
        """Trees of such arrays.

        Raises:
            InputError: if one is missing or too many, or they do not make whole trees.
        """
        if set(arrays) != set(_FORMS):
            different = ", ".join(sorted(map(str, set(arrays) ^ set(_FORMS))))
            raise InputError(f"these are no whole trees: missing or not known: {different}; fit them again")
        return cls(**{name: np.ascontiguousarray(arrays[name]) for name in _FORMS})


def interpolate(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """``numpy.interp``, whose slopes are computed in another way for many values, and overflow for large ones."""
    points, numbers = knots
    right = np.searchsorted(points, x).clip(1, len(points) - 1) if len(points) > 1 else np.zeros(x.shape, np.int64)
    left = np.maximum(right - 1, 0)
    span = np.where(right > left, points[right] - points[left], 1.0)
    share = ((x - points[left]) / span).clip(0, 1)
    low, high = numbers[left], numbers[right]
    return (low * (1 - share) + high * share).clip(low, high)


def _logistic(value: float) -> float:
    if value < 0:
        return 1 - _logistic(-value)
    return 1 / (1 + math.exp(-value))


def _array_error(arrays: dict[str, np.ndarray]) -> str:
    for name, (dtypes, dimensions) in _FORMS.items():
        array = arrays[name]
        if not isinstance(array, np.ndarray) or array.dtype.name not in dtypes or array.ndim != dimensions:
            return f"{name} is no array of {dimensions} dimensions and type {' or '.join(dtypes)}"
        if not array.flags.c_contiguous or not array.dtype.isnative:
            return f"{name} does not lie in one piece"
        if not np.isfinite(array).all():
            return f"{name} holds nan or infinities"
    return ""


def _tree_error(trees: Trees) -> str:
    """What the compiled loop believes: every index, and that children have larger ones."""
    feature, child, roots, nodes = trees.feature, trees.child.astype(np.int64), trees.roots, len(trees.feature)
    if len(trees.threshold) != nodes or len(child) != nodes or len(trees.settings) != 2 or len(trees.scale) != 1:
        return "arrays of different lengths"
    if len(roots) != len(trees.columns) + 1 or roots[0] != 0 or roots[-1] != nodes or (roots[1:] <= roots[:-1]).any():
        return "roots are not where trees begin"
    if trees.features < 1 or ((feature < -1) | (feature >= trees.features)).any():
        return "a node looks at no feature"
    leaf = feature < 0
    if (leaf & ((child < 0) | (child >= len(trees.values)))).any():
        return "a leaf has no value"
    node = np.arange(nodes)
    end = np.repeat(roots[1:], np.diff(roots))
    if (~leaf & ((child <= node + 1) | (child >= end))).any():  # so the left child, node + 1, lies in the tree too
        return "a node has no two children behind it"
    width, columns = trees.width, trees.columns
    if width < 1 or ((columns < 0) | (columns.astype(np.int64) + trees.values.shape[1] > width)).any():
        return "a tree adds to no column of the answer"
    return ""


def _prediction_error(trees: Trees) -> str:
    """What keeps answers finite, and probabilities probabilities."""
    link, width, values, (points, numbers) = int(trees.settings[1]), trees.width, trees.values, _rows(trees.knots)
    if link not in range(4) or (link in (NUMBER, LOGISTIC) and width != 1) or (link == SOFTMAX and width < 2):
        return "a kind of answer that is not known"
    if (
        not 1e-9 < trees.scale[0] <= 1
        or (np.abs(trees.base) > MAX_LABEL).any()
        or (np.abs(trees.knots) > MAX_LABEL).any()
    ):
        return "numbers beyond what can be added"
    if points is None or (points.size and link != NUMBER):
        return "knots of another shape"
    if (np.diff(points) <= 0).any() or (np.diff(numbers) < 0).any():
        return "knots that do not rise"
    if link == TREE_FRACTIONS:
        whole = values.sum(axis=1, dtype=np.float64) if len(trees.columns) else trees.base.sum(keepdims=True)
        if (values < 0).any() or (trees.base < 0).any() or values.shape[1] != width:
            return "shares below 0"
        if (whole > 1.001).any() or (width > 1 and (whole < 0.999).any()):
            return "shares that do not sum to 1"
    return ""


def _rows(knots: np.ndarray) -> tuple:
    return tuple(knots) if len(knots) == 2 else (None, None)
