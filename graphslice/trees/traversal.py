"""Rows down the trees, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit

# So many rows go down a tree while it lies in the second cache.
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
    """Add to rows ``begin`` to ``end`` of ``out`` the leaf of every tree, in the order of the trees.

    The arrays are those of :class:`~graphslice.trees.model.Trees`. nan goes left, as it is greater than nothing.

    Args:
        x: float32 ``[R, F]``.
        out: float64 ``[R, W]``, added to.
    """
    for first in range(begin, end, _BLOCK):
        for tree in range(columns.shape[0]):
            for row in range(first, min(first + _BLOCK, end)):
                node = np.int64(roots[tree])
                while feature[node] >= 0:
                    node = np.int64(child[node]) if x[row, feature[node]] > threshold[node] else node + 1
                for k in range(values.shape[1]):
                    out[row, columns[tree] + k] += values[child[node], k]
