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


def rank_one_residual(x: np.ndarray) -> float:
    """How far the rows of ``x`` ``[N, C]`` are from being alike: ``|x - 1 y^T| / |x|`` in the (1, inf)-norm.

    The residual of Dong et al. 2021 and of the bound in CSP's Theorem 1, with y the median of the
    rows, which is the nearest in the 1-norm. 0 where all rows are alike, about 1 where they share nothing.
    """
    x = np.asarray(x, np.float64)
    whole = one_inf_norm(x)
    return one_inf_norm(x - np.median(x, axis=0)) / whole if whole else 0.0
