"""Fused ``Sort_col(P V)``: dropout, product and sort of a sample while it is in the L1 cache."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.aggregate import aggregate, aggregate_gradients, aggregate_samples, shapes_agree
from graphslice.ops.column_sort import column_sort, descending_channels, sort_arguments, sort_arguments_valid
from graphslice.ops.dispatch import operator, triton_runs
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.dropout import DropoutKeys, draw_dropout_keys
from graphslice.ops.simd.lanes import address_of, keep_alive
from graphslice.ops.simd.small_product import AttnShape
from graphslice.ops.simd.sorting_network import parts_of, sort_values, sort_with_rows, unsort
from graphslice.ops.threads import parallel_for
from graphslice.ops.triton_tiles import DTYPES, aggregate_fits, capability

if triton_runs():
    from graphslice.ops import triton_sort


@operator
def aggregate_sort(
    attn_weights: Tensor, v: Tensor, lengths: Tensor, order: str | Tensor = "ascending", p: float = 0.0
) -> Tensor:
    """Compute ``Sort_col(dropout(P) V)`` for every sample and head (Yuan and Xu, Sliceformer, eq. 4, for graphs).

    The numba backend supports float32 with at most 256 rows and at least 8 channels per head; the Triton backend
    supports at most 128 rows, and float32 or 16-bit dtypes that the GPU can multiply.

    Args:
        attn_weights: P, ``[B, H, N, N]``, floating point.
        v: V, ``[B, N, C]``, floating point; head h has channels ``h C / H`` to ``(h + 1) C / H``.
        lengths: integer ``[B]``, number of valid rows of each sample.
        order: as for :func:`~graphslice.ops.column_sort`.
        p: dropout probability of P, in [0, 1).

    Returns:
        ``[B, N, C]``, dtype of ``v``; rows beyond ``lengths`` are undefined.

    Raises:
        ValueError: for an unknown order.
    """
    return column_sort(aggregate(attn_weights, v, p), lengths, order)


def _fits(attn_weights: Tensor, v: Tensor, lengths: Tensor, order: str | Tensor = "ascending", p: float = 0.0) -> bool:
    return shapes_agree(attn_weights, v) and sort_arguments_valid(v, lengths, order)


# --- triton ---------------------------------------------------------------------------------------

if triton_runs():

    @aggregate_sort.backend(
        "triton",
        dtypes=DTYPES,
        fits=lambda attn_weights, v, *args, **kwargs: (
            _fits(attn_weights, v, *args, **kwargs) and aggregate_fits(v.shape[1], v.dtype, capability(v.device))
        ),
        compiles=True,
    )
    def _triton(
        attn_weights: Tensor, v: Tensor, lengths: Tensor, order: str | Tensor = "ascending", p: float = 0.0
    ) -> Tensor:
        zero = torch.zeros(1, dtype=torch.int64, device=v.device)
        seed = torch.randint(2**31, (1,), device=v.device) if p else zero
        return _triton_aggregate_sort(attn_weights, v, lengths, descending_channels(v, order), seed, p)[0]


@torch.library.custom_op("graphslice::aggregate_sort", mutates_args=())
def _triton_aggregate_sort(
    attn_weights: Tensor, v: Tensor, lengths: Tensor, descending: Tensor, seed: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """Return the sorted values and, uint8 ``[B, N, C]``, the rank of each row."""
    return triton_sort.aggregate_sort(attn_weights, v, lengths, descending, seed, p)


@_triton_aggregate_sort.register_fake
def _(attn_weights, v, lengths, descending, seed, p):
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    return out, torch.empty_like(out, dtype=torch.uint8)


@torch.library.custom_op("graphslice::aggregate_sort_backward", mutates_args=())
def _triton_backward(
    grad: Tensor, attn_weights: Tensor, v: Tensor, lengths: Tensor, seed: Tensor, ranks: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    return triton_sort.aggregate_sort_backward(grad, attn_weights, v, lengths, seed, ranks, p)


@_triton_backward.register_fake
def _(grad, attn_weights, v, lengths, seed, ranks, p):
    contiguous = torch.contiguous_format
    return torch.empty_like(attn_weights, memory_format=contiguous), torch.empty_like(v, memory_format=contiguous)


def _save(ctx, inputs, output):
    attn_weights, v, lengths, _, seed, ctx.p = inputs
    ctx.save_for_backward(attn_weights, v, lengths, seed, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gradient(ctx, grad, _):
    if grad is None:
        return (None,) * 6
    attn_weights, v, lengths, seed, ranks = ctx.saved_tensors
    return *_triton_backward(grad, attn_weights, v, lengths, seed, ranks, ctx.p), None, None, None, None


_triton_aggregate_sort.register_autograd(_gradient, setup_context=_save)


# --- numba ----------------------------------------------------------------------------------------

# A larger sample does not stay in the L1 or L2 cache, and its row numbers do not fit in a byte.
_MAX_ROWS = 256
# Channels that are sorted at once.
_BLOCK = 256


@aggregate_sort.backend(
    "numba",
    dtypes=(torch.float32,),
    fits=lambda attn_weights, v, *args, **kwargs: (
        _fits(attn_weights, v, *args, **kwargs) and v.shape[1] <= _MAX_ROWS and v.shape[2] // attn_weights.shape[1] >= 8
    ),
)
def _numba(
    attn_weights: Tensor, v: Tensor, lengths: Tensor, order: str | Tensor = "ascending", p: float = 0.0
) -> Tensor:
    descending, keys = descending_channels(v, order), draw_dropout_keys(p)
    if torch.is_grad_enabled():
        return _AggregateSort.apply(attn_weights, v, lengths, descending, keys)
    return _aggregate_sort(attn_weights, v, lengths, descending, keys, None)


def _aggregate_sort(
    attn_weights: Tensor, v: Tensor, lengths: Tensor, descending: Tensor, keys: DropoutKeys, rows: Tensor | None
) -> Tensor:
    """Return the sorted values; write the source row of each to ``rows`` unless it is None."""
    attn_weights, v = attn_weights.contiguous(), v.contiguous()
    out = torch.empty(v.shape)
    bits, flip, sizes = sort_arguments(out, lengths, descending)
    origins = np.empty((0, 0, 0), np.uint8) if rows is None else rows.numpy()
    addresses, heads = (attn_weights.data_ptr(), v.data_ptr()), attn_weights.shape[1]
    parallel_for(
        lambda begin, end: _forward(addresses, heads, keys, sizes, flip, bits, origins, begin, end),
        len(v),
        values=8 * v.numel(),
    )
    return out


class _AggregateSort(torch.autograd.Function):
    @staticmethod
    def forward(ctx, attn_weights: Tensor, v: Tensor, lengths: Tensor, descending: Tensor, keys: DropoutKeys) -> Tensor:
        rows = torch.empty(v.shape, dtype=torch.uint8)
        ctx.keys = keys
        ctx.save_for_backward(attn_weights, v, rows)
        return _aggregate_sort(attn_weights, v, lengths, descending, keys, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        attn_weights, v, rows = ctx.saved_tensors
        attn_weights, v, upstream = attn_weights.contiguous(), v.contiguous(), grad.contiguous().numpy()
        keys, heads, origins = ctx.keys, attn_weights.shape[1], rows.numpy()
        need_weights_grad = ctx.needs_input_grad[0]
        grad_weights = torch.empty_like(attn_weights if need_weights_grad else attn_weights[:0])
        grad_v = torch.empty_like(v)
        addresses = tuple(t.data_ptr() for t in (attn_weights, v, grad_v, grad_weights))
        parallel_for(
            lambda begin, end: _backward(addresses, heads, keys, upstream, origins, need_weights_grad, begin, end),
            len(v),
            values=16 * v.numel(),
        )
        return grad_weights if need_weights_grad else None, grad_v, None, None, None


@njit(cache=True, nogil=True)
def _forward(addresses, heads, keys, sizes, flip, out, origins, begin, end):
    attn_weights, v = addresses
    width, channels = out.shape[1:]
    mixed = np.empty((1, width, channels), np.float32)
    bits, parts = mixed.view(np.int32), parts_of(channels, _BLOCK)
    for b in range(begin, end):
        # The kernel writes sample b at offset b, so the address is shifted for it to land in the scratch memory.
        scratch = address_of(mixed) - 4 * b * width * channels
        aggregate_samples((attn_weights, v, scratch), AttnShape(heads, width, channels), keys, b, b + 1)
        sample = slice(b, b + 1)
        if len(origins):
            sort_with_rows(bits, sizes[sample], flip, out[sample], origins[sample], _BLOCK, 0, parts)
        else:
            sort_values(bits, sizes[sample], flip, out[sample], _BLOCK, 0, parts)
    keep_alive(mixed)


@njit(cache=True, nogil=True)
def _backward(addresses, heads, keys, grad, origins, need_weights_grad, begin, end):
    attn_weights, v, grad_v, grad_weights = addresses
    width, channels = grad.shape[1:]
    unsorted = np.empty((1, width, channels), np.float32)
    shape = AttnShape(heads, width, channels)
    for b in range(begin, end):
        sample = b * width * channels
        addresses_of_sample = (address_of(grad) + 4 * sample, address_of(origins) + sample, address_of(unsorted))
        unsort(addresses_of_sample, False, width, channels, _BLOCK, 0, parts_of(channels, _BLOCK))
        scratch = address_of(unsorted) - 4 * b * width * channels
        aggregate_gradients((attn_weights, v, scratch, grad_v, grad_weights), shape, keys, need_weights_grad, b, b + 1)
    keep_alive(unsorted)
