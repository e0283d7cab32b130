"""Triton kernels for column sorts; one program holds entire columns in its registers.

Each value becomes an integer with the same order, with its row number in the low bits. These integers are distinct, so
sorting them is stable and also returns the row numbers. Importing this file needs ``triton``.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphslice.ops.triton import (
    TRITON_INTERPRETED,
    AggregateTile,
    aggregate_tile,
    capability,
    launch,
    opaque,
    sort_tile,
)

# Bit pattern of infinity; larger magnitudes are nan.
_INFINITY = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F80, torch.float16: 0x7C00}


@triton.jit
def _packed(values, rows, valid, flip, INFINITY: tl.constexpr):
    """Pack values and row numbers into integers ordered as the values, followed by nan and then by the padding.

    ``flip`` is -1 for descending columns, else 0; it does not apply to the padding.
    """
    if values.dtype == tl.float32:
        bits, magnitude, sign = values.to(tl.int32, bitcast=True), 0x7FFFFFFF, 31
    else:
        bits, magnitude, sign = values.to(tl.int16, bitcast=True).to(tl.int32), 0x7FFF, 15
    bits = tl.where((bits & magnitude) > INFINITY, magnitude, bits)
    bits = tl.where((bits & magnitude) == 0, 0, bits)
    keys = tl.where(valid, (bits ^ ((bits >> sign) & magnitude)) ^ flip, magnitude)
    if values.dtype == tl.float32:
        return (keys.to(tl.int64) << 32) | rows
    else:
        return (keys << 16) | rows


@triton.jit
def _unpacked(packed, flip, DTYPE: tl.constexpr):
    """Invert :func:`_packed`: return the values and the row numbers."""
    if packed.dtype == tl.int64:  # not a test of DTYPE, which Triton before 3.4 cannot compare
        keys = (packed >> 32).to(tl.int32) ^ flip
        bits = keys ^ ((keys >> 31) & 0x7FFFFFFF)
        return bits.to(tl.float32, bitcast=True), packed.to(tl.int32)
    else:
        keys = (packed >> 16) ^ flip
        bits = keys ^ ((keys >> 15) & 0x7FFF)
        return bits.to(tl.int16).to(DTYPE, bitcast=True), packed & 0xFFFF


@triton.jit
def _sort_kernel(
    x, lengths, descending, out, origins, N, C, INFINITY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    b = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.arange(0, ROWS)
    inside = (columns < C)[:, None] & (rows < N)[None, :]
    at = b * N * C + rows[None, :].to(tl.int64) * C + columns[:, None]
    values = tl.load(x + at, mask=inside, other=0.0)
    length = tl.load(lengths + b)
    flip = -tl.load(descending + columns, mask=columns < C, other=0).to(tl.int32)[:, None]
    valid = (rows < length)[None, :] & inside
    packed = tl.sort(_packed(values, rows[None, :], valid, flip, INFINITY), dim=1)
    sorted_values, origin = _unpacked(packed, flip, x.dtype.element_ty)
    tl.store(out + at, tl.where(valid, sorted_values, values), mask=inside)
    tl.store(origins + at, origin.to(origins.dtype.element_ty), mask=inside)


def sort(x: Tensor, lengths: Tensor, descending: Tensor) -> tuple[Tensor, Tensor]:
    """Sort ``x [B, N, C]``, N at most ``MAX_SORT_ROWS``; return the values and the source row of each."""
    x, lengths = x.contiguous(), lengths.contiguous()
    batch, width, channels = x.shape
    out, rows = torch.empty_like(x), x.new_empty(x.shape, dtype=torch.uint8 if width <= 256 else torch.int32)
    tile_rows, tile_columns = sort_tile(width, channels, x.dtype)
    grid, tensors = (batch, triton.cdiv(channels, tile_columns)), (x, lengths, _flags(descending), out, rows)
    constants = {"INFINITY": _INFINITY[x.dtype], "ROWS": tile_rows, "COLUMNS": tile_columns}
    launch(_sort_kernel, grid, *tensors, width, channels, **constants)
    return out, rows


def _flags(descending: Tensor) -> Tensor:
    return descending.to(torch.int8).contiguous()


# --- Sort_col(P V) ----------------------------------------------------------------------------------


@triton.jit
def _dropout_factors(seed, first, N, i, j, P_DROP: tl.constexpr):
    """Return the dropout factors, 0 or ``1 / (1 - p)``, of entries (i, j) of the matrix at offset ``first``."""
    draws = tl.rand(tl.load(seed), (first + i * N + j).to(tl.uint32))
    return tl.where(draws >= P_DROP, 1 / (1 - P_DROP), 0.0)


@triton.jit
def _dot(a, b, IN_FLOAT32: tl.constexpr):
    if IN_FLOAT32:  # neither the interpreter nor GPUs before Ampere can multiply bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _aggregate_sort_kernel(
    attn_weights, v, lengths, descending, seed, out, ranks, H, N, D,
    P_DROP: tl.constexpr, INFINITY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, IN_FLOAT32: tl.constexpr,
):  # fmt: skip
    """Compute and sort ``COLUMNS`` columns of ``P V`` of one sample and head, as a ``[COLUMNS, ROWS]`` tile."""
    pair = tl.program_id(0).to(tl.int64)
    b, h = pair // H, pair % H
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    i = tl.arange(0, ROWS)[None, :]
    sample = b * N * H * D + h * D
    of_head = (columns < D)[:, None]
    product = tl.zeros((COLUMNS, ROWS), tl.float32)
    for first in range(0, N, INNER):
        j = first + tl.arange(0, INNER)[:, None]
        j_t = first + tl.arange(0, INNER)[None, :]
        weights_t = tl.load(attn_weights + pair * N * N + i * N + j, mask=(i < N) & (j < N), other=0.0)
        if P_DROP > 0:
            weights_t = (weights_t * _dropout_factors(seed, pair * N * N, N, i, j, P_DROP)).to(v.dtype.element_ty)
        v_t = tl.load(v + sample + j_t * H * D + columns[:, None], mask=of_head & (j_t < N), other=0.0)
        product += _dot(v_t, weights_t, IN_FLOAT32)
    product = product.to(v.dtype.element_ty)

    inside = of_head & (i < N)
    valid = inside & (i < tl.load(lengths + b))
    flip = -tl.load(descending + h * D + columns, mask=columns < D, other=0).to(tl.int32)[:, None]
    packed = tl.sort(_packed(product, i, valid, flip, INFINITY), dim=1)
    values, origin = _unpacked(packed, flip, v.dtype.element_ty)
    at = sample + i * H * D + columns[:, None]
    tl.store(out + at, tl.where(valid, values, 0.0), mask=inside)
    # Rank of each row: the backward pass reads its gradient at the rank.
    tl.store(ranks + sample + origin * H * D + columns[:, None], i.to(tl.uint8), mask=inside & (origin < N))


@triton.jit
def _unsorted(grad, ranks, sample, rows, columns, stride, N, D, length):
    """Return the gradient of ``P V`` before the sort, for broadcasting rows and columns; 0 in the padding."""
    inside = (rows < N) & (columns < D)
    rank = tl.load(ranks + sample + rows * stride + columns, mask=inside, other=0).to(tl.int32)
    return tl.load(grad + sample + rank * stride + columns, mask=inside & (rows < length), other=0.0)


@triton.jit
def _aggregate_sort_backward_kernel(
    attn_weights, v, lengths, seed, ranks, grad, grad_weights, grad_v, H, N, D,
    P_DROP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, IN_FLOAT32: tl.constexpr,
):  # fmt: skip
    """Compute ``INNER`` rows of the gradients of P and V for one sample and head."""
    pair = tl.program_id(0).to(tl.int64)
    b, h = pair // H, pair % H
    own = tl.program_id(1) * INNER + tl.arange(0, INNER)[:, None]
    all_rows, all_rows_t = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    sample = b * N * H * D + h * D
    length = tl.load(lengths + b)
    # This program's rows of P transposed, for the gradient of V.
    mask = (own < N) & (all_rows_t < N)
    weights_t = tl.load(attn_weights + pair * N * N + all_rows_t * N + own, mask=mask, other=0.0)
    if P_DROP > 0:
        factors = _dropout_factors(seed, pair * N * N, N, all_rows_t, own, P_DROP)
        weights_t = (weights_t * factors).to(v.dtype.element_ty)
    weights_grad = tl.zeros((INNER, ROWS), tl.float32)
    for first in range(0, D, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)[None, :]
        columns_t = first + tl.arange(0, COLUMNS)[:, None]
        unsorted = _unsorted(grad, ranks, sample, all_rows, columns, H * D, N, D, length)
        v_grad = _dot(weights_t, unsorted, IN_FLOAT32).to(grad_v.dtype.element_ty)
        tl.store(grad_v + sample + own * H * D + columns, v_grad, mask=(own < N) & (columns < D))
        if INNER < ROWS:
            unsorted = _unsorted(grad, ranks, sample, own, columns, H * D, N, D, length)
        v_t = tl.load(v + sample + all_rows_t * H * D + columns_t, mask=(columns_t < D) & (all_rows_t < N), other=0.0)
        weights_grad += _dot(unsorted, v_t, IN_FLOAT32)
    if P_DROP > 0:
        weights_grad = weights_grad * _dropout_factors(seed, pair * N * N, N, own, all_rows_t, P_DROP)
    at = pair * N * N + own * N + all_rows_t
    tl.store(grad_weights + at, weights_grad.to(grad_weights.dtype.element_ty), mask=mask)


def _constants(tile: AggregateTile) -> dict[str, int]:
    """Return the constants of both kernels; one stage, since each further one holds another copy of the factors."""
    return {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "INNER": tile.inner,
        "IN_FLOAT32": tile.in_float32 or TRITON_INTERPRETED,
        "num_warps": tile.warps,
        "num_stages": 1,
    }


def _aggregate_sort_outputs(attn_weights: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), v.new_empty(v.shape, dtype=torch.uint8)


@opaque(_aggregate_sort_outputs)
def aggregate_sort(
    attn_weights: Tensor, v: Tensor, lengths: Tensor, descending: Tensor, seed: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """Return ``Sort_col(dropout(P) V)``, 0 in the padding, and the rank of each row, uint8 ``[B, N, C]``.

    ``attn_weights [B, H, N, N]`` and ``v [B, N, C]`` have the same dtype; N is at most ``MAX_AGGREGATE_ROWS``.
    """
    attn_weights, v, lengths = attn_weights.contiguous(), v.contiguous(), lengths.contiguous()
    out, ranks = _aggregate_sort_outputs(attn_weights, v)
    batch, heads, width, head_dim = _sizes(attn_weights, v)
    tile = aggregate_tile(width, head_dim, v.dtype, capability(v.device))
    grid, sizes = (batch * heads, triton.cdiv(head_dim, tile.columns)), (heads, width, head_dim)
    tensors, constants = (attn_weights, v, lengths, _flags(descending), seed, out, ranks), _constants(tile)
    launch(_aggregate_sort_kernel, grid, *tensors, *sizes, P_DROP=p, INFINITY=_INFINITY[v.dtype], **constants)
    return out, ranks


def _sizes(attn_weights: Tensor, v: Tensor) -> tuple[int, int, int, int]:
    batch, heads, width, _ = attn_weights.shape
    return batch, heads, width, v.shape[2] // heads


def _gradients(grad: Tensor, attn_weights: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return attn_weights.new_empty(attn_weights.shape), v.new_empty(v.shape)


@opaque(_gradients)
def aggregate_sort_backward(
    grad: Tensor, attn_weights: Tensor, v: Tensor, lengths: Tensor, seed: Tensor, ranks: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of P and V."""
    attn_weights, v, lengths, grad = (tensor.contiguous() for tensor in (attn_weights, v, lengths, grad))
    grad_weights, grad_v = _gradients(grad, attn_weights, v)
    batch, heads, width, head_dim = _sizes(attn_weights, v)
    tile = aggregate_tile(width, head_dim, v.dtype, capability(v.device), True)
    grid, sizes = (batch * heads, triton.cdiv(width, tile.inner)), (heads, width, head_dim)
    tensors = attn_weights, v, lengths, seed, ranks, grad, grad_weights, grad_v
    launch(_aggregate_sort_backward_kernel, grid, *tensors, *sizes, P_DROP=p, **_constants(tile))
    return grad_weights, grad_v
