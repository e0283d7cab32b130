"""Products of matrices too small for a library call, and their transposition; for compiled kernels."""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.ops.simd.lanes import floats8, floats16, load, put, spread, store, value_at


@njit(inline="always")
def _product(like, a, a_row, a_column, b, b_row, out, out_row, rows, inner, columns):
    """``out = A B``: matrices by the addresses of their first elements, and strides in elements.

    Four rows of A at a time share a read of B. Rows and columns beyond the last whole block are
    covered by a block that overlaps the one before; there are at least as many columns as lanes.
    """
    last = rows - 1
    for block in range(0, columns, len(like)):
        c = min(block, columns - len(like))
        for r0 in range(0, rows, 4):
            r1, r2, r3 = min(r0 + 1, last), min(r0 + 2, last), min(r0 + 3, last)
            a0, a1, a2, a3 = r0 * a_row, r1 * a_row, r2 * a_row, r3 * a_row
            s0 = s1 = s2 = s3 = spread(like, np.float32(0))
            for k in range(inner):
                value = load(like, b, k * b_row + c)
                at = k * a_column
                s0 = s0 + spread(like, value_at(like, a, a0 + at)) * value
                s1 = s1 + spread(like, value_at(like, a, a1 + at)) * value
                s2 = s2 + spread(like, value_at(like, a, a2 + at)) * value
                s3 = s3 + spread(like, value_at(like, a, a3 + at)) * value
            store(out, r0 * out_row + c, s0)
            store(out, r1 * out_row + c, s1)
            store(out, r2 * out_row + c, s2)
            store(out, r3 * out_row + c, s3)


@njit(cache=True)
def small_product(a, a_row, a_column, b, b_row, out, out_row, rows, inner, columns):
    """``out = A B`` for matrices of some tens of rows and at least 8 columns; see :func:`_product`."""
    if columns >= 16:
        _product(floats16(), a, a_row, a_column, b, b_row, out, out_row, rows, inner, columns)
    else:
        _product(floats8(), a, a_row, a_column, b, b_row, out, out_row, rows, inner, columns)


@njit(cache=True)
def turn(source, rows, row, columns, out, padded):
    """``out = source`` transposed, its rows ``padded`` apart; by addresses."""
    like = floats16()
    # In this order, since the lines that are read stay in the nearest cache; those written would not.
    for c in range(columns):
        for j in range(rows):
            put(out, c * padded + j, value_at(like, source, j * row + c))
