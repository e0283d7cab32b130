"""Products of matrices too small for a library call, and their transposition; for compiled kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from graphslice.ops.simd.lanes import float32x8, float32x16, load, load_scalar, splat, store, store_scalar


class AttnShape(NamedTuple):
    """The sizes of ``[B, N, C]`` beside ``[B, H, N, N]``, in the order H, N, C."""

    heads: int
    width: int
    channels: int


class Matrix(NamedTuple):
    """A float32 matrix: the address of its first element, and its strides in elements."""

    address: int
    row_stride: int
    column_stride: int


class Rows(NamedTuple):
    """A float32 matrix whose rows are contiguous: the address of its first element, and the stride of a row."""

    address: int
    stride: int


@njit(inline="always")
def _product(lane_type, a, b, out, rows, inner, columns):
    """``out = A B`` in blocks of four rows of A, which share a read of B.

    Rows and columns beyond the last whole block are covered by a block that overlaps the one before;
    there are at least as many columns as lanes.
    """
    last = rows - 1
    for block in range(0, columns, len(lane_type)):
        c = min(block, columns - len(lane_type))
        for r0 in range(0, rows, 4):
            r1, r2, r3 = min(r0 + 1, last), min(r0 + 2, last), min(r0 + 3, last)
            a0, a1, a2, a3 = r0 * a.row_stride, r1 * a.row_stride, r2 * a.row_stride, r3 * a.row_stride
            s0 = s1 = s2 = s3 = splat(lane_type, np.float32(0))
            for k in range(inner):
                value = load(lane_type, b.address, k * b.stride + c)
                at = k * a.column_stride
                s0 = s0 + splat(lane_type, load_scalar(lane_type, a.address, a0 + at)) * value
                s1 = s1 + splat(lane_type, load_scalar(lane_type, a.address, a1 + at)) * value
                s2 = s2 + splat(lane_type, load_scalar(lane_type, a.address, a2 + at)) * value
                s3 = s3 + splat(lane_type, load_scalar(lane_type, a.address, a3 + at)) * value
            store(out.address, r0 * out.stride + c, s0)
            store(out.address, r1 * out.stride + c, s1)
            store(out.address, r2 * out.stride + c, s2)
            store(out.address, r3 * out.stride + c, s3)


@njit(cache=True)
def small_product(a, b, out, rows, inner, columns):
    """``out = A B`` for float32 matrices of some tens of rows and at least 8 columns.

    Args:
        a: :class:`Matrix` ``[rows, inner]``.
        b: :class:`Rows` ``[inner, columns]``.
        out: :class:`Rows` ``[rows, columns]``; overlaps neither.
        rows, inner, columns: the sizes.
    """
    if columns >= 16:
        _product(float32x16(), a, b, out, rows, inner, columns)
    else:
        _product(float32x8(), a, b, out, rows, inner, columns)


@njit(cache=True)
def transpose(source, rows, columns, out):
    """Write ``[rows, columns]`` as ``[columns, rows]``; both are :class:`Rows`."""
    lane_type = float32x16()
    # In this order, since the lines that are read stay in the nearest cache; those written would not.
    for c in range(columns):
        for j in range(rows):
            store_scalar(out.address, c * out.stride + j, load_scalar(lane_type, source.address, j * source.stride + c))
