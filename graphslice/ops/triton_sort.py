"""Sorting on a GPU, in Triton: a whole column in the registers of one program.

A value becomes an integer that is ordered as it is, its row is put behind it, and the integers are
sorted: no two are equal, so the sort is stable, and the rows come out with the values. Importing
this file needs ``triton``; with ``TRITON_INTERPRET=1`` in the environment before that, the kernels run on
the CPU, slowly.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphslice.ops.dispatch import TRITON_INTERPRETED
from graphslice.ops.triton_tiles import AggregateTile, aggregate_tile, capability, sort_tile

# The bits of infinity: whatever is beyond them is nan.
_INFINITY = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F80, torch.float16: 0x7C00}


@triton.jit
def _packed(values, rows, valid, flip, INFINITY: tl.constexpr):
    """Integers ordered as the values, the row behind each; nan, then the padding, behind all values.

    ``flip`` is -1 for a column that is to descend, else 0; of the padding it is not asked.
    """
    if values.dtype == tl.float32:
        bits = values.to(tl.int32, bitcast=True)
        bits = tl.where((bits & 0x7FFFFFFF) > INFINITY, 0x7FFFFFFF, bits)
        bits = tl.where((bits & 0x7FFFFFFF) == 0, 0, bits)
        keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)) ^ flip
        keys = tl.where(valid, keys, 0x7FFFFFFF)
        return (keys.to(tl.int64) << 32) | rows
    else:
        bits = values.to(tl.int16, bitcast=True).to(tl.int32)
        bits = tl.where((bits & 0x7FFF) > INFINITY, 0x7FFF, bits)
        bits = tl.where((bits & 0x7FFF) == 0, 0, bits)
        keys = (bits ^ ((bits >> 15) & 0x7FFF)) ^ flip
        keys = tl.where(valid, keys, 0x7FFF)
        return (keys << 16) | rows


@triton.jit
def _unpacked(packed, flip, DTYPE: tl.constexpr):
    """The values and the rows of :func:`_packed`."""
    if packed.dtype == tl.int64:  # and not by DTYPE, which Triton before 3.4 does not compare
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


def sort(x: Tensor, lengths: Tensor, descending: Tensor, rows: Tensor) -> Tensor:
    """The sorted values of ``x [B, N, C]``, N at most ``MAX_SORT_ROWS``; ``rows`` says where they came from."""
    x, lengths = x.contiguous(), lengths.contiguous()
    out = torch.empty_like(x)
    batch, width, channels = x.shape
    tile = sort_tile(width, channels, x.dtype)
    if x.numel():
        with torch.cuda.device_of(x):  # Triton starts kernels on the current device, wherever the tensors are
            _sort_kernel[batch, triton.cdiv(channels, tile.columns)](
                x,
                lengths,
                descending.to(torch.int8).contiguous(),
                out,
                rows,
                width,
                channels,
                INFINITY=_INFINITY[x.dtype],
                ROWS=tile.rows,
                COLUMNS=tile.columns,
            )
    return out


# --- Sort_col(P V) ----------------------------------------------------------------------------------


@triton.jit
def _kept(seed, first, N, i, j, P_DROP: tl.constexpr):
    """The factor of dropout for entries (i, j) of the matrix that begins at ``first``: 0 or ``1 / (1 - p)``."""
    draws = tl.rand(tl.load(seed), (first + i * N + j).to(tl.uint32))
    return tl.where(draws >= P_DROP, 1 / (1 - P_DROP), 0.0)


@triton.jit
def _dot(a, b, IN_FLOAT32: tl.constexpr):
    if IN_FLOAT32:  # neither the interpreter nor cards before Ampere can multiply bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _aggregate_sort_kernel(
    attn_weights,
    v,
    lengths,
    descending,
    seed,
    out,
    ranks,
    H,
    N,
    D,
    P_DROP: tl.constexpr,
    INFINITY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
):
    """One sample and head: ``[COLUMNS, ROWS]`` of ``(P V)`` transposed, sorted along its rows."""
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
            weights_t = (weights_t * _kept(seed, pair * N * N, N, i, j, P_DROP)).to(v.dtype.element_ty)
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
    # Where each row went: backward then reads its gradient from there.
    tl.store(ranks + sample + origin * H * D + columns[:, None], i.to(tl.uint8), mask=inside & (origin < N))


@triton.jit
def _unsorted(grad, ranks, sample, rows, columns, stride, N, D, length):
    """The gradient of ``P V`` before the sort, for rows and columns that broadcast; 0 in the padding."""
    inside = (rows < N) & (columns < D)
    rank = tl.load(ranks + sample + rows * stride + columns, mask=inside, other=0).to(tl.int32)
    return tl.load(grad + sample + rank * stride + columns, mask=inside & (rows < length), other=0.0)


@triton.jit
def _aggregate_sort_backward_kernel(
    attn_weights,
    v,
    lengths,
    seed,
    ranks,
    grad,
    grad_weights,
    grad_v,
    H,
    N,
    D,
    P_DROP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
):
    """One sample and head: ``INNER`` rows of the gradient of P, and as many of that of V."""
    pair = tl.program_id(0).to(tl.int64)
    b, h = pair // H, pair % H
    mine = tl.program_id(1) * INNER + tl.arange(0, INNER)[:, None]
    every, every_t = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    sample = b * N * H * D + h * D
    length = tl.load(lengths + b)
    # My rows of P transposed, for the gradient of V.
    mask = (mine < N) & (every_t < N)
    weights_t = tl.load(attn_weights + pair * N * N + every_t * N + mine, mask=mask, other=0.0)
    if P_DROP > 0:
        weights_t = (weights_t * _kept(seed, pair * N * N, N, every_t, mine, P_DROP)).to(v.dtype.element_ty)
    grad_of_weights = tl.zeros((INNER, ROWS), tl.float32)
    for first in range(0, D, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)[None, :]
        columns_t = first + tl.arange(0, COLUMNS)[:, None]
        unsorted = _unsorted(grad, ranks, sample, every, columns, H * D, N, D, length)
        grad_of_v = _dot(weights_t, unsorted, IN_FLOAT32).to(grad_v.dtype.element_ty)
        tl.store(grad_v + sample + mine * H * D + columns, grad_of_v, mask=(mine < N) & (columns < D))
        if INNER < ROWS:
            unsorted = _unsorted(grad, ranks, sample, mine, columns, H * D, N, D, length)
        v_t = tl.load(v + sample + every_t * H * D + columns_t, mask=(columns_t < D) & (every_t < N), other=0.0)
        grad_of_weights += _dot(unsorted, v_t, IN_FLOAT32)
    if P_DROP > 0:
        grad_of_weights = grad_of_weights * _kept(seed, pair * N * N, N, mine, every_t, P_DROP)
    at = pair * N * N + mine * N + every_t
    tl.store(grad_weights + at, grad_of_weights.to(grad_weights.dtype.element_ty), mask=mask)


def _constants(tile: AggregateTile) -> dict[str, int]:
    """What the two kernels are compiled for; one stage, as more of them hold as many copies of what is multiplied."""
    return {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "INNER": tile.inner,
        "IN_FLOAT32": tile.in_float32 or TRITON_INTERPRETED,
        "num_warps": tile.warps,
        "num_stages": 1,
    }


def aggregate_sort(
    attn_weights: Tensor, v: Tensor, lengths: Tensor, descending: Tensor, seed: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """``Sort_col(dropout(P) V)`` and ``uint8 [B, N, C]`` the row that each row went to.

    ``attn_weights [B, H, N, N]`` and ``v [B, N, C]`` of one dtype, N at most ``MAX_AGGREGATE_ROWS``; 0 in the padding.
    """
    attn_weights, v, lengths = attn_weights.contiguous(), v.contiguous(), lengths.contiguous()
    out, ranks = torch.empty_like(v), torch.empty(v.shape, dtype=torch.uint8, device=v.device)
    batch, width, channels = v.shape
    heads = attn_weights.shape[1]
    tile = aggregate_tile(width, channels // heads, v.dtype, capability(v.device))
    if v.numel():
        with torch.cuda.device_of(v):
            _aggregate_sort_kernel[batch * heads, triton.cdiv(channels // heads, tile.columns)](
                attn_weights,
                v,
                lengths,
                descending.to(torch.int8).contiguous(),
                seed,
                out,
                ranks,
                heads,
                width,
                channels // heads,
                P_DROP=p,
                INFINITY=_INFINITY[v.dtype],
                **_constants(tile),
            )
    return out, ranks


def aggregate_sort_backward(
    grad: Tensor, attn_weights: Tensor, v: Tensor, lengths: Tensor, seed: Tensor, ranks: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """The gradients of the attn_weights and of V."""
    attn_weights, v, lengths, grad = (each.contiguous() for each in (attn_weights, v, lengths, grad))
    grad_weights, grad_v = torch.empty_like(attn_weights), torch.empty_like(v)
    batch, width, channels = v.shape
    heads = attn_weights.shape[1]
    tile = aggregate_tile(width, channels // heads, v.dtype, capability(v.device))
    if v.numel():
        with torch.cuda.device_of(v):
            _aggregate_sort_backward_kernel[batch * heads, triton.cdiv(width, tile.inner)](
                attn_weights,
                v,
                lengths,
                seed,
                ranks,
                grad,
                grad_weights,
                grad_v,
                heads,
                width,
                channels // heads,
                P_DROP=p,
                **_constants(tile),
            )
    return grad_weights, grad_v
