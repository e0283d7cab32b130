"""Singular values and rank-1 residual of matrices: how similar their rows are."""

from __future__ import annotations

import numpy as np


def singular_spectrum(x: np.ndarray) -> np.ndarray:
    """Compute the singular values of ``x`` ``[N, C]``, ``float64 [min(N, C)]``, descending (Sliceformer, Fig. 4)."""
    return np.linalg.svd(np.asarray(x, np.float64), compute_uv=False)


def one_inf_norm(x: np.ndarray) -> float:
    """Compute ``sqrt(|x|_1 |x|_inf)``, the geometric mean of the largest absolute column sum and row sum."""
    size = np.abs(np.asarray(x, np.float64))
    return float(np.sqrt(size.sum(0).max(initial=0) * size.sum(1).max(initial=0)))


def rows_residual(x: np.ndarray) -> float:
    """Compute the residual ``|x - 1 y^T|`` of ``x`` ``[N, C]`` in the (1, inf)-norm, with y the column-wise median.

    It is 0 if all rows are equal. Dong et al. 2021 and CSP, eq. 6, define the residual with the y that minimises the
    norm. The median minimises it in the 1-norm, and is within a factor of 2 of the minimum in the inf-norm, so the
    result is at most sqrt(2) times the minimal residual.
    """
    x = np.asarray(x, np.float64)
    return one_inf_norm(x - np.median(x, axis=0)) if len(x) else 0.0


def rank_one_residual(x: np.ndarray) -> float:
    """Compute :func:`rows_residual` of ``x`` ``[N, C]`` over the norm of ``x``: 0 if equal, near 1 if unrelated."""
    norm = one_inf_norm(x)
    return rows_residual(x) / norm if norm else 0.0
