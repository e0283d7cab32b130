"""``Sort_col(P V)``, fused on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from graphslice.ops.aggregate import aggregate
from graphslice.ops.column_sort import column_sort, descending_channels, sort_arguments_valid
from graphslice.ops.dispatch import operator
from graphslice.ops.triton import DTYPES, MAX_AGGREGATE_ROWS, capability, supports_dtype, triton_runs
from graphslice.program.function import once_differentiable

if triton_runs():
    from graphslice.ops import triton_sort


@operator
def aggregate_sort(
    attn_weights: Tensor, v: Tensor, lengths: Tensor, order: str | Tensor = "ascending", p: float = 0.0
) -> Tensor:
    """Compute ``Sort_col(dropout(P) V)`` for every sample and head (Yuan and Xu, Sliceformer, eq. 4, for graphs).

    The Triton backend supports at most 128 rows, and float32 or 16-bit dtypes that the GPU can multiply.

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
    """True if P is ``[B, H, N, N]``, V is ``[B, N, C]`` of its dtype and H divides C; the kernels do not check."""
    if attn_weights.dim() != 4 or v.dim() != 3 or attn_weights.dtype != v.dtype:
        return False
    (batch, width, channels), heads = v.shape, attn_weights.shape[1]
    if attn_weights.shape != (batch, heads, width, width) or channels % heads or width > MAX_AGGREGATE_ROWS:
        return False
    return sort_arguments_valid(v, lengths, order) and supports_dtype(v.dtype, capability(v.device))


# --- triton ---------------------------------------------------------------------------------------

if triton_runs():

    @aggregate_sort.backend("triton", dtypes=DTYPES, fits=_fits, traceable=True)
    def _triton(
        attn_weights: Tensor, v: Tensor, lengths: Tensor, order: str | Tensor = "ascending", p: float = 0.0
    ) -> Tensor:
        zero = torch.zeros(1, dtype=torch.int64, device=v.device)
        seed = torch.randint(2**31, (1,), device=v.device) if p else zero
        return _TritonAggregateSort.apply(attn_weights, v, lengths, descending_channels(v, order), seed, p)


class _TritonAggregateSort(torch.autograd.Function):
    """``Sort_col(dropout(P) V)``; the backward pass gathers at the rank of each row."""

    @staticmethod
    def forward(ctx, attn_weights, v, lengths, descending, seed, p):
        out, ranks = triton_sort.aggregate_sort(attn_weights, v, lengths, descending, seed, p)
        ctx.save_for_backward(attn_weights, v, lengths, seed, ranks)
        ctx.p = p
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        gradients = triton_sort.aggregate_sort_backward(grad, *ctx.saved_tensors, ctx.p)
        return *gradients, None, None, None, None
