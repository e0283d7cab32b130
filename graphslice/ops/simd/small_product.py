"""Products and transposition of matrices that are too small for BLAS calls; for compiled kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from graphslice.ops.simd.lanes import float32x8, float32x16, load, load_scalar, splat, store, store_scalar


class AttnShape(NamedTuple):
    """Sizes H, N, C of a batch with values ``[B, N, C]`` and pairs ``[B, H, N, N]``."""

    heads: int
    width: int
    channels: int


class Matrix(NamedTuple):
    """Float32 matrix with contiguous rows, given by the address of its first element and its row stride in elements."""

    address: int
    stride: int


@njit(inline="always")
def _product(lane_type, a, row_stride, column_stride, b, start, out, rows, inner, columns):
    """Compute ``out = start + A B`` in blocks of four rows of A, which share the loads of B.

    A is given by its address and strides. There are at least as many columns as lanes. Columns beyond the last full
    block are covered by a block that overlaps the previous one; missing rows repeat the last row.
    """
    last = rows - 1
    for block in range(0, columns, len(lane_type)):
        c = min(block, columns - len(lane_type))
        for r0 in range(0, rows, 4):
            r1, r2, r3 = min(r0 + 1, last), min(r0 + 2, last), min(r0 + 3, last)
            a0, a1, a2, a3 = r0 * row_stride, r1 * row_stride, r2 * row_stride, r3 * row_stride
            s0 = s1 = s2 = s3 = splat(lane_type, np.float32(0))
            if start.address:
                s0 = load(lane_type, start.address, r0 * start.stride + c)
                s1 = load(lane_type, start.address, r1 * start.stride + c)
                s2 = load(lane_type, start.address, r2 * start.stride + c)
                s3 = load(lane_type, start.address, r3 * start.stride + c)
            for k in range(inner):
                value = load(lane_type, b.address, k * b.stride + c)
                at = k * column_stride
                s0 = s0 + splat(lane_type, load_scalar(lane_type, a, a0 + at)) * value
                s1 = s1 + splat(lane_type, load_scalar(lane_type, a, a1 + at)) * value
                s2 = s2 + splat(lane_type, load_scalar(lane_type, a, a2 + at)) * value
                s3 = s3 + splat(lane_type, load_scalar(lane_type, a, a3 + at)) * value
            store(out.address, r0 * out.stride + c, s0)
            store(out.address, r1 * out.stride + c, s1)
            store(out.address, r2 * out.stride + c, s2)
            store(out.address, r3 * out.stride + c, s3)


# Two functions instead of one for two strides, since each is compiled for one stride being 1.


@njit(cache=True)
def small_product(a, b, out, rows, inner, columns):
    """Compute ``out = A B`` for matrices of a few tens of rows and at least 8 columns.

    Args:
        a: :class:`Matrix` ``[rows, inner]``.
        b: :class:`Matrix` ``[inner, columns]``.
        out: :class:`Matrix` ``[rows, columns]``; must not overlap ``a`` or ``b``.
        rows, inner, columns: sizes of the matrices.
    """
    if columns >= 16:
        _product(float32x16(), a.address, a.stride, 1, b, Matrix(0, 0), out, rows, inner, columns)
    else:
        _product(float32x8(), a.address, a.stride, 1, b, Matrix(0, 0), out, rows, inner, columns)


@njit(cache=True)
def small_product_transposed(a, b, out, rows, inner, columns):
    """Compute ``out = A^T B``, as :func:`small_product`; ``a`` is ``[inner, rows]``."""
    if columns >= 16:
        _product(float32x16(), a.address, 1, a.stride, b, Matrix(0, 0), out, rows, inner, columns)
    else:
        _product(float32x8(), a.address, 1, a.stride, b, Matrix(0, 0), out, rows, inner, columns)


@njit(cache=True)
def product_onto(a, b, start, out, rows, inner, columns):
    """Compute ``out = start + A B``, as :func:`small_product`, for a multiple of 16 columns.

    Args:
        start: :class:`Matrix` ``[rows, columns]``. It may be ``out`` itself; a stride of 0 adds one row to all, and an
            address of 0 adds nothing.
    """
    _product(float32x16(), a.address, a.stride, 1, b, start, out, rows, inner, columns)


@njit(cache=True)
def product_onto_transposed(a, b, start, out, rows, inner, columns):
    """Compute ``out = start + A^T B``, as :func:`product_onto`; ``a`` is ``[inner, rows]``."""
    _product(float32x16(), a.address, 1, a.stride, b, start, out, rows, inner, columns)


@njit(cache=True)
def transpose(source, rows, columns, out):
    """Write the transpose of ``source``, ``[rows, columns]``, to ``out``; both are :class:`Matrix`."""
    lane_type = float32x16()
    # In this order the cache lines that are read stay in the L1 cache; those written would not in the other.
    for c in range(columns):
        for j in range(rows):
            store_scalar(out.address, c * out.stride + j, load_scalar(lane_type, source.address, j * source.stride + c))
