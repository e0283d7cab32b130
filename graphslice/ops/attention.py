"""Softmax attention with an additive bias, for batches of small samples."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dispatch import operator
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.dropout import DropoutKeys, apply_dropout, draw_dropout_keys, dropped_weights
from graphslice.ops.simd.lanes import (
    address_of,
    exp,
    float32x16,
    keep_alive,
    load,
    load_scalar,
    maximum,
    reduce_max,
    reduce_sum,
    splat,
    store,
    store_scalar,
)
from graphslice.ops.simd.small_product import AttnShape, Matrix, small_product, small_product_transposed, transpose
from graphslice.ops.threads import parallel_for


@operator
def attention(q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor, heads: int, p: float = 0.0) -> Tensor:
    """Compute ``dropout(Softmax(Q K^T / sqrt(d) + attn_bias)) V``, head by head (Ying et al. 2021, eq. 7).

    The numba backend supports float32 with a full ``[B, H, N, N]`` bias and at least 8 channels per head.

    Args:
        q, k, v: ``[B, N, C]``, floating point; head h has channels ``h d`` to ``(h + 1) d``, d = C / H.
        attn_bias: ``[B, H, N, N]``, or broadcastable to it; -inf in padding columns.
        heads: H.
        p: dropout probability of the attention weights, in [0, 1).

    Returns:
        ``[B, N, C]``, dtype of ``v``.
    """
    batch, width, channels = v.shape
    q, k, v = (t.view(batch, width, heads, channels // heads).transpose(1, 2) for t in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_bias.to(q.dtype), dropout_p=p)
    return mixed.transpose(1, 2).reshape(batch, width, channels)


def _fits(q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor, heads: int, p: float = 0.0) -> bool:
    if not (v.dim() == 3 and q.shape == k.shape == v.shape and heads > 0):
        return False
    batch, width, channels = v.shape
    shape = (batch, heads, width, width)
    return attn_bias.shape == shape and channels % heads == 0 and channels // heads >= 8


# torch's scaled_dot_product_attention is several times slower for samples of a few tens of rows.
@attention.backend("numba", dtypes=(torch.float32,), fits=_fits)
def _numba(q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor, heads: int, p: float = 0.0) -> Tensor:
    keys = draw_dropout_keys(p)
    if torch.is_grad_enabled():
        return _Attention.apply(q, k, v, attn_bias, keys)
    return _attention(q, k, v, attn_bias, keys)[0]


def _attention(q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor, keys: DropoutKeys) -> tuple[Tensor, Tensor]:
    """Return the result and the attention weights before dropout."""
    tensors = [t.contiguous() for t in (q, k, v, attn_bias)]
    attn_weights, out = torch.empty(attn_bias.shape), torch.empty(v.shape)
    addresses = tuple(t.data_ptr() for t in (*tensors, attn_weights, out))
    shape = AttnShape(attn_bias.shape[1], *v.shape[1:])
    parallel_for(lambda begin, end: attention_samples(addresses, shape, keys, begin, end), len(v), values=8 * v.numel())
    return out, attn_weights


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor, keys: DropoutKeys) -> Tensor:
        out, attn_weights = _attention(q, k, v, attn_bias, keys)
        ctx.keys = keys
        ctx.save_for_backward(q, k, v, attn_weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        tensors = [t.contiguous() for t in (*ctx.saved_tensors, grad)]
        grads = [torch.empty_like(t) for t in tensors[:4]]
        addresses = tuple(t.data_ptr() for t in (*tensors, *grads))
        keys, shape = ctx.keys, AttnShape(tensors[3].shape[1], *grad.shape[1:])
        parallel_for(
            lambda begin, end: attention_gradients(addresses, shape, keys, begin, end),
            len(grad),
            values=16 * grad.numel(),
        )
        return *grads, None


@njit(inline="always")
def _scalar(address, offset):
    return load_scalar(float32x16(), address, offset)


@njit(inline="always", error_model="numpy")
def _softmax_rows(scores, stride, attn_bias, first, width, scale, tail_scratch, row_scratch):
    """Compute the unnormalised softmax of ``scale S + bias`` in place, and the normalising factor of each row.

    Each step is a separate pass over all rows: the rows of one pass are independent, which fills the pipeline.

    Args:
        scores: address of S; its row stride ``stride`` is a multiple of 16.
        attn_bias, first: address of the bias, and offset of the head in it.
        scale: lanes.
        tail_scratch: ``[16 * width]``, -inf beyond the last column.
        row_scratch: ``[width]``, the normalising factors.
    """
    lane_type, aligned = float32x16(), width // 16 * 16
    tails = address_of(tail_scratch)
    for i in range(width):
        for j in range(aligned, width):
            tail_scratch[16 * i + j - aligned] = _scalar(attn_bias, first + i * width + j)
    for i in range(width):
        row = scores + 4 * i * stride
        maxima = splat(lane_type, np.float32(-np.inf))
        for block in range(0, stride, 16):
            if block < aligned:
                bias = load(lane_type, attn_bias, first + i * width + block)
            else:
                bias = load(lane_type, tails, 16 * i)
            score = load(lane_type, row, block) * scale + bias
            store(row, block, score)
            maxima = maximum(maxima, score)
        row_scratch[i] = reduce_max(maxima)
    for i in range(width):
        row, row_max, sums = scores + 4 * i * stride, splat(lane_type, row_scratch[i]), float32x16()
        for block in range(0, stride, 16):
            value = exp(load(lane_type, row, block) - row_max)
            store(row, block, value)
            sums = sums + value
        row_scratch[i] = np.float32(1) / reduce_sum(sums)


@njit(cache=True, nogil=True, error_model="numpy")
def attention_samples(addresses, shape, keys, begin, end):
    """Process samples ``begin`` to ``end``; ``addresses``: q, k, v, bias, attention weights and result."""
    q, k, v, attn_bias, attn_weights, out = addresses
    width, channels = shape.width, shape.channels
    head_dim, pairs = channels // shape.heads, width * width
    padded, aligned = -(-width // 16) * 16, width // 16 * 16
    lane_type = float32x16()
    scale = splat(lane_type, np.float32(1 / np.sqrt(head_dim)))
    k_scratch, scores_scratch = np.zeros(channels * padded, np.float32), np.zeros(width * padded, np.float32)
    tail_scratch, row_scratch = np.full(16 * width, -np.inf, np.float32), np.empty(width, np.float32)
    weights_scratch = np.empty(pairs, np.float32)
    k_transposed, scores = address_of(k_scratch), address_of(scores_scratch)
    for b in range(begin, end):
        transpose(Matrix(k + 4 * b * width * channels, channels), width, channels, Matrix(k_transposed, padded))
        for h in range(shape.heads):
            first, offset = (b * shape.heads + h) * pairs, 4 * (b * width * channels + h * head_dim)
            k_of_head = Matrix(k_transposed + 4 * h * head_dim * padded, padded)
            small_product(Matrix(q + offset, channels), k_of_head, Matrix(scores, padded), width, head_dim, padded)
            _softmax_rows(scores, padded, attn_bias, first, width, scale, tail_scratch, row_scratch)
            for i in range(width):
                row, at = scores + 4 * i * padded, first + i * width
                for block in range(0, aligned, 16):
                    value = load(lane_type, row, block) * splat(lane_type, row_scratch[i])
                    store(attn_weights, at + block, value)
                for j in range(aligned, width):
                    store_scalar(attn_weights, at + j, _scalar(row, j) * row_scratch[i])
            weights = dropped_weights(attn_weights, first, pairs, keys, address_of(weights_scratch))
            v_of_head, target = Matrix(v + offset, channels), Matrix(out + offset, channels)
            small_product(Matrix(weights, width), v_of_head, target, width, width, head_dim)
    keep_alive(k_scratch)
    keep_alive(scores_scratch)
    keep_alive(tail_scratch)
    keep_alive(weights_scratch)


@njit(inline="always")
def _softmax_gradient(grad, stride, attn_weights, first, width, scale, grad_bias, grad_scores):
    """Compute the gradients of the bias and of the unscaled scores from that of the attention weights.

    ``grad`` is an address with row stride ``stride``; ``first`` is the offset of the head in the weights and in
    ``grad_bias``; ``grad_scores`` is the address of ``[width, width]``.
    """
    lane_type, aligned = float32x16(), width // 16 * 16
    for i in range(width):
        row, at, sums = grad + 4 * i * stride, first + i * width, float32x16()
        for block in range(0, aligned, 16):
            sums = sums + load(lane_type, row, block) * load(lane_type, attn_weights, at + block)
        dot = reduce_sum(sums)
        for j in range(aligned, width):
            dot += _scalar(row, j) * _scalar(attn_weights, at + j)
        for block in range(0, aligned, 16):
            centered = load(lane_type, row, block) - splat(lane_type, dot)
            value = load(lane_type, attn_weights, at + block) * centered
            store(grad_bias, at + block, value)
            store(grad_scores, i * width + block, value * splat(lane_type, scale))
        for j in range(aligned, width):
            value = _scalar(attn_weights, at + j) * (_scalar(row, j) - dot)
            store_scalar(grad_bias, at + j, value)
            store_scalar(grad_scores, i * width + j, value * scale)


@njit(cache=True, nogil=True, error_model="numpy")
def attention_gradients(addresses, shape, keys, begin, end):
    """Compute gradients; ``addresses``: q, k, v, weights, upstream gradient, gradients of q, k, v and bias."""
    q, k, v, attn_weights, grad, grad_q, grad_k, grad_v, grad_bias = addresses
    width, channels = shape.width, shape.channels
    head_dim, pairs = channels // shape.heads, width * width
    padded = -(-width // 16) * 16
    scale = np.float32(1 / np.sqrt(head_dim))
    v_scratch, padded_scratch = np.zeros(channels * padded, np.float32), np.empty(width * padded, np.float32)
    weights_scratch, flat_scratch = np.empty(pairs, np.float32), np.empty(pairs, np.float32)
    scores_scratch = np.empty(pairs, np.float32)
    v_transposed, scratch, grad_scores = address_of(v_scratch), address_of(weights_scratch), address_of(scores_scratch)
    for b in range(begin, end):
        transpose(Matrix(v + 4 * b * width * channels, channels), width, channels, Matrix(v_transposed, padded))
        for h in range(shape.heads):
            first, offset = (b * shape.heads + h) * pairs, 4 * (b * width * channels + h * head_dim)
            weights = dropped_weights(attn_weights, first, pairs, keys, scratch)
            target = Matrix(grad_v + offset, channels)
            small_product_transposed(
                Matrix(weights, width), Matrix(grad + offset, channels), target, width, width, head_dim
            )
            # Gradient of the attention weights: upstream gradient times V transposed, then the dropout mask.
            v_of_head = Matrix(v_transposed + 4 * h * head_dim * padded, padded)
            target = Matrix(address_of(padded_scratch), padded)
            small_product(Matrix(grad + offset, channels), v_of_head, target, width, head_dim, padded)
            grad_weights, stride = address_of(padded_scratch), padded
            if keys.active:
                for i in range(width):
                    for j in range(width):
                        flat_scratch[i * width + j] = padded_scratch[i * padded + j]
                apply_dropout(address_of(flat_scratch), 0, pairs, keys, first, scratch)
                grad_weights, stride = scratch, width
            _softmax_gradient(grad_weights, stride, attn_weights, first, width, scale, grad_bias, grad_scores)
            target = Matrix(grad_q + offset, channels)
            small_product(Matrix(grad_scores, width), Matrix(k + offset, channels), target, width, width, head_dim)
            target = Matrix(grad_k + offset, channels)
            small_product_transposed(
                Matrix(grad_scores, width), Matrix(q + offset, channels), target, width, width, head_dim
            )
    keep_alive(v_scratch)
    keep_alive(padded_scratch)
    keep_alive(weights_scratch)
    keep_alive(flat_scratch)
    keep_alive(scores_scratch)
