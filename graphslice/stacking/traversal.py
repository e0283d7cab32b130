"""Traversal of decision trees: the sum of the leaves that each row reaches, compiled with numba."""

from __future__ import annotations

import numpy as np
from numba import njit

# Rows per block: a tree is read from the level-2 cache for all rows of a block.
_BLOCK = 64


@njit(cache=True, nogil=True)
def add_leaves(
    x: np.ndarray,
    feature: np.ndarray,
    threshold: np.ndarray,
    child: np.ndarray,
    roots: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    out: np.ndarray,
    begin: int,
    end: int,
) -> None:
    """Add the leaf values of all trees, in their order, to rows ``begin`` to ``end`` of ``out``.

    nan goes left, since no comparison with it is true.

    Args:
        x: float32 ``[R, F]``.
        feature, threshold, child, roots, columns, values: see :class:`~graphslice.stacking.trees.Trees`.
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
