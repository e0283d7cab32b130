"""Weighted sums of table rows, as for embeddings of several features."""

from __future__ import annotations

import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dispatch import operator
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.simd.lanes import float32x8, int64x8, load, load_scalar, splat, store
from graphslice.ops.threads import parallel_for


@operator
def sum_rows(table: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """Compute ``out[m] = sum_e weights[e] table[rows[e]]`` for e in ``range(offsets[m], offsets[m + 1])``.

    The numba backend supports float32 with C a multiple of 8, and offsets that start at 0 and do not decrease.

    Args:
        table: ``[R, C]``, floating point.
        rows: int64 ``[E]``, from 0 to R - 1.
        offsets: int64 ``[M]``, ascending from 0; the last sum extends to E.
        weights: ``[E]``, dtype of ``table``.

    Returns:
        ``[M, C]``, dtype of ``table``.
    """
    return F.embedding_bag(rows, table, offsets, mode="sum", per_sample_weights=weights)


def _fits(table: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor) -> bool:
    if (table.dim(), rows.dim(), offsets.dim(), weights.dim()) != (2, 1, 1, 1) or rows.shape != weights.shape:
        return False
    if not (rows.dtype == offsets.dtype == torch.int64 and len(rows) and len(offsets)) or table.shape[1] % 8:
        return False
    lowest, highest = rows.aminmax()
    first, last = int(offsets[0]), int(offsets[-1])
    return int(lowest) >= 0 and int(highest) < len(table) and first == 0 and last <= len(rows) and _ascending(offsets)


def _ascending(offsets: Tensor) -> bool:
    return bool((offsets[1:] >= offsets[:-1]).all())


@sum_rows.backend("numba", dtypes=(torch.float32,), fits=_fits)
def _numba(table: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    entries = rows.contiguous(), offsets.contiguous(), weights.contiguous()
    return _SumRows.apply(table, *entries) if torch.is_grad_enabled() else _sum_rows(table, *entries)


def _sum_rows(table: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    table = table.contiguous()
    out = torch.empty(len(offsets), table.shape[1])
    addresses = tuple(tensor.data_ptr() for tensor in (table, rows, offsets, weights, out))
    sizes = len(rows), len(offsets), table.shape[1]
    parallel_for(lambda begin, end: _forward(addresses, sizes, begin, end), len(offsets), values=out.numel())
    return out


class _SumRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(table, rows, offsets, weights)
        return _sum_rows(table, rows, offsets, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        table, rows, offsets, weights = ctx.saved_tensors
        grad, sums = grad.contiguous(), torch.zeros(table.shape)
        addresses = tuple(tensor.data_ptr() for tensor in (grad, rows, offsets, weights, sums))
        _backward(addresses, (len(rows), *grad.shape))
        if not ctx.needs_input_grad[3]:
            return sums, None, None, None
        sizes = torch.diff(offsets, append=offsets.new_tensor([len(rows)]))
        grad_weights = (table[rows] * grad.repeat_interleave(sizes, dim=0)).sum(dim=1)
        return sums, None, None, grad_weights


@njit(inline="always")
def _index(address, offset):
    return load_scalar(int64x8(), address, offset)


@njit(cache=True, nogil=True)
def _forward(addresses, sizes, begin, end):
    table, rows, offsets, weights, out = addresses
    entries, count, channels = sizes
    lanes = float32x8()
    for m in range(begin, end):
        first, last = _index(offsets, m), _index(offsets, m + 1) if m + 1 < count else entries
        for c in range(0, channels, 8):
            total = float32x8()
            for e in range(first, last):
                weight = splat(lanes, load_scalar(lanes, weights, e))
                total = total + load(lanes, table, _index(rows, e) * channels + c) * weight
            store(out, m * channels + c, total)


@njit(cache=True, nogil=True)
def _backward(addresses, sizes):
    grad, rows, offsets, weights, sums = addresses
    entries, count, channels = sizes
    lanes = float32x8()
    for m in range(count):
        first, last = _index(offsets, m), _index(offsets, m + 1) if m + 1 < count else entries
        for e in range(first, last):
            weight, at = splat(lanes, load_scalar(lanes, weights, e)), _index(rows, e) * channels
            for c in range(0, channels, 8):
                row_grad = load(lanes, grad, m * channels + c) * weight
                store(sums, at + c, load(lanes, sums, at + c) + row_grad)
