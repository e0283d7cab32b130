"""Attention without a softmax: products in the order that is linear in the rows."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.simd.lanes import address_of, hold
from graphslice.ops.simd.small_product import small_product
from graphslice.ops.threads import over_parts

# Beyond so many rows torch's products are as fast.
_MOST_ROWS = 256


def linear_attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, heads: int) -> Tensor:
    """``Q (K^T V) / n`` head by head (Cao 2021, eqs. 5 and 6, without their layer norms).

    ``(Q K^T) V`` is the same by associativity; in this order it takes ``n d`` products a channel instead of ``n^2``.

    Args:
        q, k, v: ``[B, N, C]``; head h owns channels ``h d`` to ``(h + 1) d``, d = C / H.
        lengths: int64 ``[B]``, n, the number of valid rows; the others are not read.
        heads: H.

    Returns:
        ``[B, N, C]``, 0 in the padding.
    """
    batch, width, channels = v.shape
    ours = v.device.type == "cpu" and {t.dtype for t in (q, k, v)} == {torch.float32}
    ours = ours and width <= _MOST_ROWS and channels // heads >= 8
    if ours and v.numel() and not torch.compiler.is_compiling():
        if torch.is_grad_enabled():
            return _LinearAttention.apply(q, k, v, lengths, heads)
        return _attended(q, k, v, lengths, heads)
    valid = (torch.arange(width, device=v.device) < lengths[:, None])[:, None, :, None]
    q, k, v = (t.view(batch, width, heads, -1).transpose(1, 2).masked_fill(~valid, 0) for t in (q, k, v))
    out = q @ (k.transpose(2, 3) @ v)
    out = out / lengths.clamp_min(1)[:, None, None, None].to(out.dtype)
    return out.transpose(1, 2).reshape(batch, width, channels)


def _attended(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, heads: int) -> Tensor:
    tensors = [t.contiguous() for t in (q, k, v)]
    out, sizes = torch.empty(v.shape), lengths.numpy()
    pointers = tuple(t.data_ptr() for t in (*tensors, out))
    _, width, channels = v.shape
    over_parts(
        lambda begin, end: _forward(pointers, sizes, out.numpy(), heads, width, channels, begin, end),
        len(v),
        2 * v.numel(),
    )
    return out


class _LinearAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, heads: int) -> Tensor:
        ctx.heads = heads
        ctx.save_for_backward(q, k, v, lengths)
        return _attended(q, k, v, lengths, heads)

    @staticmethod
    def backward(ctx, grad: Tensor):
        *saved, lengths = ctx.saved_tensors
        tensors = [t.contiguous() for t in (*saved, grad)]
        grads = [torch.empty_like(t) for t in tensors[:3]]
        pointers = tuple(t.data_ptr() for t in (*tensors, *grads))
        arrays, sizes = tuple(t.numpy() for t in grads), lengths.numpy()
        _, width, channels = grad.shape
        over_parts(
            lambda begin, end: _backward(pointers, sizes, arrays, ctx.heads, width, channels, begin, end),
            len(grad),
            6 * grad.numel(),
        )
        return *grads, None, None


@njit(cache=True, nogil=True)
def _squared(a, b, channels, own, rows, out):
    """``A^T B / rows`` of one head, ``[own, own]``, by the addresses of A and B."""
    small_product(a, 1, channels, b, channels, address_of(out), own, own, rows, own)
    out /= np.float32(max(1, rows))


@njit(cache=True, nogil=True)
def _forward(pointers, sizes, result, heads, width, channels, begin, end):
    q, k, v, out = pointers
    own = channels // heads
    square = np.empty(own * own, np.float32)
    for b in range(begin, end):
        rows = sizes[b]
        result[b, rows:] = 0
        for h in range(heads if rows else 0):
            its = 4 * (b * width * channels + h * own)
            _squared(k + its, v + its, channels, own, rows, square)
            small_product(q + its, channels, 1, address_of(square), own, out + its, channels, rows, own, own)
    hold(square)


@njit(cache=True, nogil=True)
def _backward(pointers, sizes, grads, heads, width, channels, begin, end):
    q, k, v, grad, grad_q, grad_k, grad_v = pointers
    own = channels // heads
    square = np.empty(own * own, np.float32)
    of_square = address_of(square)
    for b in range(begin, end):
        rows = sizes[b]
        for array in grads:
            array[b, rows:] = 0
        for h in range(heads if rows else 0):
            its = 4 * (b * width * channels + h * own)
            # Of out = Q S, S = K^T V / n: grad Q = grad S^T; with D = Q^T grad / n, grad K = V D^T, grad V = K D.
            _squared(v + its, k + its, channels, own, rows, square)
            small_product(grad + its, channels, 1, of_square, own, grad_q + its, channels, rows, own, own)
            _squared(grad + its, q + its, channels, own, rows, square)
            small_product(v + its, channels, 1, of_square, own, grad_k + its, channels, rows, own, own)
            _squared(q + its, grad + its, channels, own, rows, square)
            small_product(k + its, channels, 1, of_square, own, grad_v + its, channels, rows, own, own)
    hold(square)
