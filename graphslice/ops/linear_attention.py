"""Linear attention: no softmax, at a cost linear in the number of rows."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.dispatch import operator
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.simd.lanes import address_of, keep_alive
from graphslice.ops.simd.small_product import AttnShape, Matrix, small_product, small_product_transposed
from graphslice.ops.threads import parallel_for

# With more rows, torch's matrix products are as fast.
_MAX_ROWS = 256


@operator
def linear_attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, heads: int) -> Tensor:
    """Compute ``Q (K^T V) / n``, head by head (Cao 2021, eqs. 5 and 6, without their layer norms).

    This equals ``(Q K^T) V / n`` by associativity, but takes ``n d`` multiplications per channel instead of ``n^2``.

    The numba backend supports float32 with at most 256 rows and at least 8 channels per head.

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


def _fits(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, heads: int) -> bool:
    if not (v.dim() == 3 and q.shape == k.shape == v.shape and lengths.shape == v.shape[:1] and heads > 0):
        return False
    return v.shape[1] <= _MAX_ROWS and v.shape[2] % heads == 0 and v.shape[2] // heads >= 8


@linear_attention.backend("numba", dtypes=(torch.float32,), fits=_fits)
def _numba(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, heads: int) -> Tensor:
    lengths = lengths.clamp(0, v.shape[1])  # compiled code does not check bounds
    if torch.is_grad_enabled():
        return _LinearAttention.apply(q, k, v, lengths, heads)
    return _linear_attention(q, k, v, lengths, heads)


def _linear_attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, heads: int) -> Tensor:
    tensors = [t.contiguous() for t in (q, k, v)]
    out = torch.empty(v.shape)
    addresses = tuple(t.data_ptr() for t in (*tensors, out))
    sizes, result, shape = lengths.numpy(), out.numpy(), AttnShape(heads, *v.shape[1:])
    parallel_for(
        lambda begin, end: linear_attention_samples(addresses, sizes, result, shape, begin, end),
        len(v),
        values=2 * v.numel(),
    )
    return out


class _LinearAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, heads: int) -> Tensor:
        ctx.heads = heads
        ctx.save_for_backward(q, k, v, lengths)
        return _linear_attention(q, k, v, lengths, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        *saved, lengths = ctx.saved_tensors
        tensors = [t.contiguous() for t in (*saved, grad)]
        grads = [torch.empty_like(t) for t in tensors[:3]]
        addresses = tuple(t.data_ptr() for t in (*tensors, *grads))
        sizes, results = lengths.numpy(), tuple(t.numpy() for t in grads)
        shape = AttnShape(ctx.heads, *grad.shape[1:])
        parallel_for(
            lambda begin, end: linear_attention_gradients(addresses, sizes, results, shape, begin, end),
            len(grad),
            values=6 * grad.numel(),
        )
        return *grads, None, None


@njit(cache=True, nogil=True)
def _mean_product(a, b, channels, head_dim, rows, out):
    """Compute ``A^T B / rows`` of one head, ``[head_dim, head_dim]``, from the addresses of A and B."""
    small_product_transposed(
        Matrix(a, channels), Matrix(b, channels), Matrix(address_of(out), head_dim), head_dim, rows, head_dim
    )
    out /= np.float32(max(1, rows))


@njit(cache=True, nogil=True)
def linear_attention_samples(addresses, sizes, result, shape, begin, end):
    """Process samples ``begin`` to ``end``; ``addresses``: q, k, v and ``result``."""
    q, k, v, out = addresses
    width, channels = shape.width, shape.channels
    head_dim = channels // shape.heads
    scratch = np.empty(head_dim * head_dim, np.float32)
    square = Matrix(address_of(scratch), head_dim)
    for b in range(begin, end):
        rows = sizes[b]
        result[b, rows:] = 0
        for h in range(shape.heads if rows else 0):
            offset = 4 * (b * width * channels + h * head_dim)
            _mean_product(k + offset, v + offset, channels, head_dim, rows, scratch)
            small_product(
                Matrix(q + offset, channels), square, Matrix(out + offset, channels), rows, head_dim, head_dim
            )
    keep_alive(scratch)


@njit(cache=True, nogil=True)
def linear_attention_gradients(addresses, sizes, results, shape, begin, end):
    """Compute gradients; ``addresses``: q, k, v, upstream gradient and ``results``, the gradients of q, k, v."""
    q, k, v, grad, grad_q, grad_k, grad_v = addresses
    width, channels = shape.width, shape.channels
    head_dim = channels // shape.heads
    scratch = np.empty(head_dim * head_dim, np.float32)
    square = Matrix(address_of(scratch), head_dim)
    for b in range(begin, end):
        rows = sizes[b]
        for result in results:
            result[b, rows:] = 0
        for h in range(shape.heads if rows else 0):
            offset = 4 * (b * width * channels + h * head_dim)
            # For out = Q S with S = K^T V / n: grad Q = grad S^T; with D = Q^T grad / n: grad K = V D^T, grad V = K D.
            for left, right, a, out in ((v, k, grad, grad_q), (grad, q, v, grad_k), (q, grad, k, grad_v)):
                _mean_product(left + offset, right + offset, channels, head_dim, rows, scratch)
                small_product(
                    Matrix(a + offset, channels), square, Matrix(out + offset, channels), rows, head_dim, head_dim
                )
    keep_alive(scratch)
