"""Weighted aggregation ``P V``, head by head."""

from __future__ import annotations

from torch import Tensor

from graphslice.ops.dispatch import operator
from graphslice.ops.dropout import dropout
from graphslice.program.kernels import attention as kernels
from graphslice.program.layout import N
from graphslice.program.trace import Gradient, Trace, Traced, Upstream


@operator
def aggregate(attn_weights: Tensor, v: Tensor, p: float = 0.0) -> Tensor:
    """Compute ``dropout(P) V`` for every sample and head (Vaswani et al. 2017, eq. 1).

    The numba backend needs at least 8 channels per head.

    Args:
        attn_weights: P, ``[B, H, N, N]``, floating point.
        v: V, ``[B, N, C]``, floating point; head h has channels ``h C / H`` to ``(h + 1) C / H``.
        p: dropout probability of P, in [0, 1).

    Returns:
        ``[B, N, C]``, dtype of ``v``.
    """
    batch, width, channels = v.shape
    heads = attn_weights.shape[1]
    by_head = v.view(batch, width, heads, channels // heads).transpose(1, 2)
    mixed = dropout(attn_weights.to(v.dtype), p) @ by_head
    return mixed.transpose(1, 2).reshape(batch, width, channels)


def heads_fit(channels: int, heads: int) -> bool:
    """True if the kernels support this number of heads: it divides the channels, and a head has at least 8."""
    return channels % 16 == 0 and heads > 0 and channels % heads == 0 and channels // heads >= 8


@aggregate.kernels(attn_weights="B H N N", v="B N C")
def _rule(trace: Trace, attn_weights, v, p: float = 0.0) -> Traced:
    heads, channels = attn_weights.shape[1], v.shape[2]
    trace.require(heads_fit(channels, heads), f"{heads} heads of {channels} channels")
    out, grads = trace.new(v.shape), (Gradient(v), Gradient(attn_weights))
    sizes = heads, N, channels, *trace.dropout_operands(p, attn_weights.value.size)
    trace.forward(kernels.aggregate, attn_weights, v, out, *sizes)
    trace.backward(kernels.aggregate_gradients, attn_weights, v, Upstream(out), *grads, *sizes)
    return out
