"""How much of a matrix is one row repeated: singular values and the rank-1 residual."""

from __future__ import annotations

import numpy as np


def singular_spectrum(x: np.ndarray) -> np.ndarray:
    """``float64 [min(N, C)]``: the singular values of ``x`` ``[N, C]``, the largest first (Sliceformer, Fig. 4)."""
    return np.linalg.svd(np.asarray(x, np.float64), compute_uv=False)


def one_inf_norm(x: np.ndarray) -> float:
    """``sqrt(|x|_1 |x|_inf)``: of the largest column sum and the largest row sum of absolute values."""
    size = np.abs(np.asarray(x, np.float64))
    return float(np.sqrt(size.sum(0).max(initial=0) * size.sum(1).max(initial=0)))


def rows_residual(x: np.ndarray) -> float:
    """How far the rows of ``x`` ``[N, C]`` are from being alike: ``|x - 1 y^T|`` in the (1, inf)-norm, y their median.

    The residual of Dong et al. 2021 and of CSP, eq. 6, which take the nearest y. The median is that in the 1-norm,
    and at most twice as far in the inf-norm: what is given is at most sqrt(2) times the smallest.
    """
    x = np.asarray(x, np.float64)
    return one_inf_norm(x - np.median(x, axis=0)) if len(x) else 0.0


def rank_one_residual(x: np.ndarray) -> float:
    """:func:`rows_residual` of ``x`` ``[N, C]`` over the norm of ``x``: 0 where all rows are alike, about 1 where they
    share nothing."""
    whole = one_inf_norm(x)
    return rows_residual(x) / whole if whole else 0.0
