"""Weighted aggregation ``P V``, head by head."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.dispatch import operator
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.dropout import DropoutKeys, apply_dropout, draw_dropout_keys, dropout, dropped_weights
from graphslice.ops.simd.lanes import address_of, keep_alive, store_scalar
from graphslice.ops.simd.small_product import AttnShape, Matrix, small_product, small_product_transposed, transpose
from graphslice.ops.threads import parallel_for


@operator
def aggregate(attn_weights: Tensor, v: Tensor, p: float = 0.0) -> Tensor:
    """Compute ``dropout(P) V`` for every sample and head (Vaswani et al. 2017, eq. 1).

    The numba backend supports float32 with at least 8 channels per head.

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


def shapes_agree(attn_weights: Tensor, v: Tensor) -> bool:
    """True if P is ``[B, H, N, N]``, V is ``[B, N, C]`` and H divides C; the kernels do not check shapes."""
    if attn_weights.dim() != 4 or v.dim() != 3:
        return False
    (batch, width, channels), heads = v.shape, attn_weights.shape[1]
    return attn_weights.shape == (batch, heads, width, width) and channels % heads == 0


@aggregate.backend(
    "numba",
    dtypes=(torch.float32,),
    fits=lambda attn_weights, v, *_, **__: shapes_agree(attn_weights, v) and v.shape[2] // attn_weights.shape[1] >= 8,
)
def _numba(attn_weights: Tensor, v: Tensor, p: float = 0.0) -> Tensor:
    keys = draw_dropout_keys(p)
    if torch.is_grad_enabled():
        return _Aggregate.apply(attn_weights, v, keys)
    return _aggregate(attn_weights, v, keys)


def _aggregate(attn_weights: Tensor, v: Tensor, keys: DropoutKeys) -> Tensor:
    attn_weights, v = attn_weights.contiguous(), v.contiguous()
    out = torch.empty(v.shape)
    addresses = (attn_weights.data_ptr(), v.data_ptr(), out.data_ptr())
    shape = AttnShape(attn_weights.shape[1], *v.shape[1:])
    parallel_for(lambda begin, end: aggregate_samples(addresses, shape, keys, begin, end), len(v), values=4 * v.numel())
    return out


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, attn_weights: Tensor, v: Tensor, keys: DropoutKeys) -> Tensor:
        ctx.keys = keys
        ctx.save_for_backward(attn_weights, v)
        return _aggregate(attn_weights, v, keys)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        attn_weights, v = (t.contiguous() for t in ctx.saved_tensors)
        keys, grad = ctx.keys, grad.contiguous()
        need_weights_grad = ctx.needs_input_grad[0]
        grad_weights = torch.empty_like(attn_weights if need_weights_grad else attn_weights[:0])
        grad_v = torch.empty_like(v)
        addresses = tuple(t.data_ptr() for t in (attn_weights, v, grad, grad_v, grad_weights))
        shape = AttnShape(attn_weights.shape[1], *v.shape[1:])
        parallel_for(
            lambda begin, end: aggregate_gradients(addresses, shape, keys, need_weights_grad, begin, end),
            len(v),
            values=4 * v.numel(),
        )
        return grad_weights if need_weights_grad else None, grad_v, None


@njit(cache=True, nogil=True)
def aggregate_samples(addresses, shape, keys, begin, end):
    """Compute ``dropout(P) V`` for samples ``begin`` to ``end``; ``addresses`` are those of P, V and the result."""
    attn_weights, v, out = addresses
    width, channels = shape.width, shape.channels
    head_dim, pairs = channels // shape.heads, width * width
    scratch = np.empty(pairs, np.float32)
    for b in range(begin, end):
        for h in range(shape.heads):
            first, offset = (b * shape.heads + h) * pairs, 4 * (b * width * channels + h * head_dim)
            weights = dropped_weights(attn_weights, first, pairs, keys, address_of(scratch))
            v_of_head, target = Matrix(v + offset, channels), Matrix(out + offset, channels)
            small_product(Matrix(weights, width), v_of_head, target, width, width, head_dim)
    keep_alive(scratch)


@njit(cache=True, nogil=True)
def aggregate_gradients(addresses, shape, keys, need_weights_grad, begin, end):
    """Compute the gradients of V and optionally P; ``addresses``: P, V, upstream gradient, gradients of V and P."""
    attn_weights, v, grad, grad_v, grad_weights = addresses
    width, channels = shape.width, shape.channels
    head_dim, pairs = channels // shape.heads, width * width
    padded = max(8, width)  # at least the number of lanes
    weights_scratch, v_scratch = np.empty(pairs, np.float32), np.zeros(channels * padded, np.float32)
    square_scratch = np.empty(width * padded, np.float32)
    v_transposed, square = address_of(v_scratch), address_of(square_scratch)
    for b in range(begin, end):
        if need_weights_grad:
            transpose(Matrix(v + 4 * b * width * channels, channels), width, channels, Matrix(v_transposed, padded))
        for h in range(shape.heads):
            first, offset = (b * shape.heads + h) * pairs, 4 * (b * width * channels + h * head_dim)
            weights = dropped_weights(attn_weights, first, pairs, keys, address_of(weights_scratch))
            grad_of_head = Matrix(grad + offset, channels)
            small_product_transposed(
                Matrix(weights, width), grad_of_head, Matrix(grad_v + offset, channels), width, width, head_dim
            )
            if need_weights_grad:
                # Gradient of P: upstream gradient times V transposed, then the dropout mask of the forward pass.
                v_of_head = Matrix(v_transposed + 4 * h * head_dim * padded, padded)
                target = grad_weights + 4 * first
                if padded == width and not keys.active:
                    small_product(grad_of_head, v_of_head, Matrix(target, width), width, head_dim, width)
                    continue
                small_product(grad_of_head, v_of_head, Matrix(square, padded), width, head_dim, padded)
                if padded > width:
                    for i in range(width):
                        for j in range(width):
                            square_scratch[i * width + j] = square_scratch[i * padded + j]
                if keys.active:
                    apply_dropout(square, 0, pairs, keys, first, target)
                else:
                    for i in range(pairs):
                        store_scalar(target, i, square_scratch[i])
    keep_alive(weights_scratch)
    keep_alive(v_scratch)
    keep_alive(square_scratch)
