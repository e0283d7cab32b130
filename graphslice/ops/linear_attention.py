"""Linear attention, without softmax and at a cost linear in the number of rows, and the layer norm of its heads."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.aggregate import heads_fit
from graphslice.ops.dispatch import operator
from graphslice.program.kernels import attention as kernels
from graphslice.program.kernels import layers
from graphslice.program.layout import N
from graphslice.program.trace import Gradient, Trace, Traced, Upstream


@operator
def linear_attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, heads: int) -> Tensor:
    """Compute ``Q (K^T V) / n``, head by head (Cao 2021, eqs. 5 and 6, without their layer norms).

    This equals ``(Q K^T) V / n`` by associativity, but takes ``n d`` multiplications per channel instead of ``n^2``.

    The numba backend supports float32 with C a multiple of 16 and at least 8 channels per head.

    Args:
        q, k, v: ``[B, N, C]``, floating point; head h has channels ``h d`` to ``(h + 1) d``, d = C / H.
        lengths: int64 ``[B]``, number n of valid rows; later rows are not read.
        heads: H.

    Returns:
        ``[B, N, C]``, dtype of ``v``; 0 in the padding.
    """
    batch, width, channels = v.shape
    valid = (torch.arange(width, device=v.device) < lengths[:, None])[:, None, :, None]
    q, k, v = (t.view(batch, width, heads, channels // heads).transpose(1, 2).masked_fill(~valid, 0) for t in (q, k, v))
    # Divide before the second product, since float16 overflows above 65,504.
    means = k.transpose(2, 3) @ v / lengths.clamp(1, max(1, width))[:, None, None, None].to(v.dtype)
    out = q @ means
    return out.transpose(1, 2).reshape(batch, width, channels)


@linear_attention.kernels(q="B N C", k="B N C", v="B N C", lengths="B int64")
def _rule(trace: Trace, q, k, v, lengths, heads: int) -> Traced:
    channels = v.shape[2]
    trace.require(heads_fit(channels, heads), f"{heads} heads of {channels} channels")
    out, sizes = trace.new(v.shape), (heads, N, channels)
    trace.forward(kernels.linear_attention, q, k, v, lengths, out, *sizes)
    grads = Gradient(q), Gradient(k), Gradient(v)
    trace.backward(kernels.linear_attention_gradients, q, k, v, lengths, Upstream(out), *grads, *sizes)
    return out


@operator
def head_norm(x: Tensor, scales: Tensor, shifts: Tensor, index: int) -> Tensor:
    """Compute the layer norm of each head, with entry ``index`` of the scales and shifts of K norms.

    The numba backend supports float32 with C a multiple of 16 and at least 8 channels per head, a multiple of 8.

    Args:
        x: ``[B, N, C]``, floating point.
        scales, shifts: ``[K, H, C / H]``, dtype of ``x``.
        index: from 0 to K - 1.

    Returns:
        ``[B, N, C]``, dtype of ``x``.
    """
    by_head = x.view(*x.shape[:2], *scales.shape[1:])
    return (F.layer_norm(by_head, by_head.shape[-1:]) * scales[index] + shifts[index]).flatten(2)


@head_norm.kernels(x="B N C", scales="K H D", shifts="K H D")
def _head_norm_rule(trace: Trace, x, scales, shifts, index: int) -> Traced:
    (count, heads, size), channels = scales.shape, x.shape[2]
    fit = heads * size == channels and size % 8 == 0 and index in range(count)
    trace.require(fit, f"{heads} norms of {size} channels")
    out, sizes = trace.new(x.shape), (index, heads, N, channels)
    trace.forward(layers.head_norm, x, scales, shifts, out, *sizes)
    grads = Gradient(x), Gradient(scales), Gradient(shifts)
    trace.backward(layers.head_norm_gradients, x, scales, Upstream(out), *grads, *sizes)
    return out
