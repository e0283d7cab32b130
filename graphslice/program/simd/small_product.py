"""Products and transposition of matrices that are too small for BLAS calls; for compiled kernels."""

from __future__ import annotations

from typing import NamedTuple

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from graphslice.program.simd.lanes import (
    address_of,
    float32x8,
    float32x16,
    keep_alive,
    load,
    load_float,
    store,
    store_scalar,
    transpose_block,
)

# Rows and vectors of 16 columns of the tile of a product that stays in registers: AVX-512 has 32 registers of 16
# numbers, other machines have at most 32 of 4 or 16 of 8. More sums than a processor adds at once hide the latency of
# additions.
_ROWS, _VECTORS = (8, 2) if llvmlite.binding.get_host_cpu_features().get("avx512f") else (6, 1)
# Number of rows of a product from which on strips of the second matrix are copied.
_MIN_PACKED_ROWS = 64


class Matrix(NamedTuple):
    """Float32 matrix with contiguous rows, given by the address of its first element and its row stride in elements."""

    address: int
    stride: int


def _tile(rows: int, vectors: int):
    """Return an intrinsic that computes a tile of ``rows`` rows and ``vectors`` vectors of columns of a product.

    Its arguments: lanes; (first row, last row of the matrix, first column); (address, row stride, column stride) of A;
    :class:`Matrix` B, start and out; the inner size. Rows beyond the last repeat it; the address of start may be 0.
    """

    @intrinsic
    def tile(typing, lane_type, corner, a, b, start, out, inner):
        vector, count = lane_type.llvm, lane_type.count
        word, flags = ir.IntType(64), ("contract",)

        def generate(context, builder, signature, args):
            _, corner, a, b, start, out, inner = args
            first, last, column = (builder.extract_value(corner, i) for i in range(3))
            a, row_stride, column_stride = (builder.extract_value(a, i) for i in range(3))
            (b, b_stride), (start, start_stride), (out, out_stride) = (
                [builder.extract_value(matrix, i) for i in range(2)] for matrix in (b, start, out)
            )

            def number(value):
                return ir.Constant(word, value)

            def pointer(base, offset, kind):
                return builder.bitcast(builder.gep(builder.inttoptr(base, ir.FloatType().as_pointer()), [offset]), kind)

            def row(i):
                wanted = builder.add(first, number(i))
                return builder.select(builder.icmp_signed("<", wanted, last), wanted, last)

            columns = [builder.add(column, number(count * v)) for v in range(vectors)]
            rows_of_tile = [row(i) for i in range(rows)]
            sums = [[cgutils.alloca_once(builder, vector) for _ in columns] for _ in rows_of_tile]
            for of_row in sums:
                for total in of_row:
                    builder.store(ir.Constant(vector, None), total)
            with builder.if_then(builder.icmp_signed("!=", start, number(0))):
                for i, of_row in zip(rows_of_tile, sums, strict=True):
                    for c, total in zip(columns, of_row, strict=True):
                        at = builder.add(builder.mul(i, start_stride), c)
                        builder.store(builder.load(pointer(start, at, vector.as_pointer()), align=4), total)
            a_rows = [builder.mul(i, row_stride) for i in rows_of_tile]
            with cgutils.for_range(builder, inner) as loop:
                b_row, a_column = builder.mul(loop.index, b_stride), builder.mul(loop.index, column_stride)
                values = [
                    builder.load(pointer(b, builder.add(b_row, c), vector.as_pointer()), align=4) for c in columns
                ]
                for a_row, of_row in zip(a_rows, sums, strict=True):
                    scalar = builder.load(pointer(a, builder.add(a_row, a_column), ir.FloatType().as_pointer()))
                    one = builder.insert_element(
                        ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0)
                    )
                    zeros = ir.Constant(ir.VectorType(ir.IntType(32), count), None)
                    factor = builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)
                    for value, total in zip(values, of_row, strict=True):
                        product = builder.fmul(factor, value, flags=flags)
                        builder.store(builder.fadd(builder.load(total), product, flags=flags), total)
            for i, of_row in zip(rows_of_tile, sums, strict=True):
                for c, total in zip(columns, of_row, strict=True):
                    at = builder.add(builder.mul(i, out_stride), c)
                    builder.store(builder.load(total), pointer(out, at, vector.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(lane_type, corner, a, b, start, out, inner), generate

    return tile


_wide_tile, _narrow_tile = _tile(_ROWS, _VECTORS), _tile(_ROWS, 1)


@njit(inline="always")
def _pack(b, column, columns, inner, scratch):
    """Copy a strip of the columns of B to contiguous memory, and return it as the matrix whose columns they are."""
    lanes = float32x16()
    for k in range(inner):
        for c in range(0, columns, 16):
            store(scratch, k * columns + c, load(lanes, b.address, k * b.stride + column + c))
    return Matrix(scratch - 4 * column, columns)


@njit(inline="always")
def _product(a, b, start, out, rows, inner, columns):
    """Compute ``out = start + A B`` for at least 8 columns; A is given by its address and strides.

    If 16 does not divide the number of columns, the last tile overlaps the one before. For many rows, strips of B are
    copied: rows that lie a power of 2 apart would displace each other from the L1 cache.
    """
    last, strip = rows - 1, 16 * _VECTORS
    wide = columns // strip * strip
    packed = np.empty(strip * inner if rows >= _MIN_PACKED_ROWS else 0, np.float32)
    for c in range(0, wide, strip):
        columns_of_b = _pack(b, c, strip, inner, address_of(packed)) if len(packed) else b
        for first in range(0, rows, _ROWS):
            _wide_tile(float32x16(), (first, last, c), a, columns_of_b, start, out, inner)
    for block in range(wide, columns if columns >= 16 else 0, 16):
        for first in range(0, rows, _ROWS):
            _narrow_tile(float32x16(), (first, last, min(block, columns - 16)), a, b, start, out, inner)
    for block in range(0, columns if columns < 16 else 0, 8):
        for first in range(0, rows, _ROWS):
            _narrow_tile(float32x8(), (first, last, min(block, columns - 8)), a, b, start, out, inner)
    keep_alive(packed)


# Two functions instead of one for two strides, since each is compiled for one stride being 1.


@njit(cache=True)
def small_product(a, b, start, out, rows, inner, columns):
    """Compute ``out = start + A B`` for matrices of at least 8 columns.

    Args:
        a: :class:`Matrix` ``[rows, inner]``.
        b: :class:`Matrix` ``[inner, columns]``.
        start: :class:`Matrix` ``[rows, columns]``, :data:`NO_START` for 0. It may be ``out`` itself if 16 divides
            ``columns``; a stride of 0 adds one row to all.
        out: :class:`Matrix` ``[rows, columns]``; must not overlap ``a`` or ``b``.
        rows, inner, columns: sizes of the matrices.
    """
    _product((a.address, a.stride, 1), b, start, out, rows, inner, columns)


@njit(cache=True)
def small_product_transposed(a, b, start, out, rows, inner, columns):
    """Compute ``out = start + A^T B``, as :func:`small_product`; ``a`` is ``[inner, rows]``."""
    _product((a.address, 1, a.stride), b, start, out, rows, inner, columns)


@njit(cache=True)
def small_product_of_rows(a, b, start, out, rows, inner, columns):
    """Compute ``out = start + A B^T``, as :func:`small_product`; ``b`` is ``[columns, inner]``, multiples of 16."""
    last, lanes = rows - 1, float32x16()
    scratch = np.empty(16 * _VECTORS * inner, np.float32)
    packed, factor = address_of(scratch), (a.address, a.stride, 1)
    for c in range(0, columns, 16 * _VECTORS):
        strip = min(columns - c, 16 * _VECTORS)
        for block in range(0, strip, 16):
            for k in range(0, inner, 16):
                source = b.address + 4 * ((c + block) * b.stride + k)
                transpose_block(lanes, source, b.stride, packed + 4 * (k * strip + block), strip)
        columns_of_b = Matrix(packed - 4 * c, strip)
        for first in range(0, rows, _ROWS):
            if strip > 16:
                _wide_tile(lanes, (first, last, c), factor, columns_of_b, start, out, inner)
            else:
                _narrow_tile(lanes, (first, last, c), factor, columns_of_b, start, out, inner)
    keep_alive(scratch)


#: Start of a product that adds nothing.
NO_START = Matrix(0, 0)


@njit(cache=True)
def transpose(source, rows, columns, out):
    """Write the transpose of ``source``, ``[rows, columns]``, to ``out``; both are :class:`Matrix`."""
    # In this order the cache lines that are read stay in the L1 cache; those written would not in the other.
    for c in range(columns):
        for j in range(rows):
            store_scalar(out.address, c * out.stride + j, load_float(source.address, j * source.stride + c))
