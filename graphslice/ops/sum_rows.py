"""Sums of some rows of a table: the embedding of what has several features, or of a path."""

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
def sum_rows(table: Tensor, rows: Tensor, begins: Tensor, weights: Tensor) -> Tensor:
    """``out[m] = sum_e weights[e] table[rows[e]]`` over e from ``begins[m]`` to that of the next.

    Args:
        table: ``[R, C]``, floating point.
        rows: int64 ``[E]``, from 0 to R - 1.
        begins: int64 ``[M]``, ascending from 0.
        weights: ``[E]``, the dtype of ``table``.

    Returns:
        ``[M, C]``, the dtype of ``table``.
    """
    return F.embedding_bag(rows, table, begins, mode="sum", per_sample_weights=weights)


def _fits(table: Tensor, rows: Tensor, begins: Tensor, weights: Tensor) -> bool:
    if (table.dim(), rows.dim(), begins.dim(), weights.dim()) != (2, 1, 1, 1) or rows.shape != weights.shape:
        return False
    if not (rows.dtype == begins.dtype == torch.int64 and len(rows) and len(begins)) or table.shape[1] % 8:
        return False
    lowest, highest = rows.aminmax()
    first, last = int(begins[0]), int(begins[-1])
    return int(lowest) >= 0 and int(highest) < len(table) and first == 0 and last <= len(rows) and _ascending(begins)


def _ascending(begins: Tensor) -> bool:
    return bool((begins[1:] >= begins[:-1]).all())


@sum_rows.backend("numba", dtypes=(torch.float32,), fits=_fits)
def _numba(table: Tensor, rows: Tensor, begins: Tensor, weights: Tensor) -> Tensor:
    given = rows.contiguous(), begins.contiguous(), weights.contiguous()
    return _SumRows.apply(table, *given) if torch.is_grad_enabled() else _sum_rows(table, *given)


def _sum_rows(table: Tensor, rows: Tensor, begins: Tensor, weights: Tensor) -> Tensor:
    table = table.contiguous()
    out = torch.empty(len(begins), table.shape[1])
    addresses = tuple(tensor.data_ptr() for tensor in (table, rows, begins, weights, out))
    sizes = len(rows), len(begins), table.shape[1]
    parallel_for(lambda begin, end: _forward(addresses, sizes, begin, end), len(begins), values=out.numel())
    return out


class _SumRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table: Tensor, rows: Tensor, begins: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(table, rows, begins, weights)
        return _sum_rows(table, rows, begins, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        table, rows, begins, weights = ctx.saved_tensors
        grad, sums = grad.contiguous(), torch.zeros(table.shape)
        addresses = tuple(tensor.data_ptr() for tensor in (grad, rows, begins, weights, sums))
        _backward(addresses, (len(rows), *grad.shape))
        if not ctx.needs_input_grad[3]:
            return sums, None, None, None
        sizes = torch.diff(begins, append=begins.new_tensor([len(rows)]))
        of_weights = (table[rows] * grad.repeat_interleave(sizes, dim=0)).sum(dim=1)
        return sums, None, None, of_weights


@njit(inline="always")
def _index(address, offset):
    return load_scalar(int64x8(), address, offset)


@njit(cache=True, nogil=True)
def _forward(addresses, sizes, begin, end):
    table, rows, begins, weights, out = addresses
    entries, count, channels = sizes
    lanes = float32x8()
    for m in range(begin, end):
        first, last = _index(begins, m), _index(begins, m + 1) if m + 1 < count else entries
        for c in range(0, channels, 8):
            total = float32x8()
            for e in range(first, last):
                weight = splat(lanes, load_scalar(lanes, weights, e))
                total = total + load(lanes, table, _index(rows, e) * channels + c) * weight
            store(out, m * channels + c, total)


@njit(cache=True, nogil=True)
def _backward(addresses, sizes):
    grad, rows, begins, weights, sums = addresses
    entries, count, channels = sizes
    lanes = float32x8()
    for m in range(count):
        first, last = _index(begins, m), _index(begins, m + 1) if m + 1 < count else entries
        for e in range(first, last):
            weight, at = splat(lanes, load_scalar(lanes, weights, e)), _index(rows, e) * channels
            for c in range(0, channels, 8):
                more = load(lanes, grad, m * channels + c) * weight
                store(sums, at + c, load(lanes, sums, at + c) + more)
