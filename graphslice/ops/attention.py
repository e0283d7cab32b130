"""Softmax attention with a bias, for many small samples."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dropout import NO_KEYS, draw_keys, keep_or_drop, used_map
from graphslice.ops.simd.lanes import (
    address_of,
    exponential,
    floats16,
    higher,
    hold,
    largest,
    load,
    put,
    spread,
    store,
    total,
    value_at,
)
from graphslice.ops.simd.small_product import small_product, turn
from graphslice.ops.threads import over_parts


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, heads: int, p: float = 0.0) -> Tensor:
    """``dropout(Softmax(Q K^T / sqrt(d) + bias)) V`` head by head (Ying et al. 2021, eq. 7).

    On the CPU a kernel of our own: torch's ``scaled_dot_product_attention`` takes several times as
    long for samples of some tens of rows.

    Args:
        q, k, v: ``[B, N, C]``; head h owns channels ``h d`` to ``(h + 1) d``, d = C / H.
        bias: ``[B, H, N, N]``, or with ones for all heads or rows; -inf where a column is padding.
        heads: H.
        p: probability of the dropout on the map.

    Returns:
        ``[B, N, C]``, the dtype of ``v``.
    """
    batch, width, channels = v.shape
    ours = v.device.type == "cpu" and {t.dtype for t in (q, k, v, bias)} == {torch.float32}
    ours = ours and bias.shape == (batch, heads, width, width) and channels // heads >= 8
    if ours and v.numel() and not torch.compiler.is_compiling():
        keys = draw_keys(p) if p else None
        if torch.is_grad_enabled():
            return _Attention.apply(q, k, v, bias, keys)
        return _attended(q, k, v, bias, keys)[0]
    q, k, v = (t.view(batch, width, heads, -1).transpose(1, 2) for t in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), dropout_p=p)
    return mixed.transpose(1, 2).reshape(batch, width, channels)


def _attended(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, keys: tuple | None) -> tuple[Tensor, Tensor]:
    """What comes out, and the maps before dropout."""
    tensors = [t.contiguous() for t in (q, k, v, bias)]
    maps, out = torch.empty(bias.shape), torch.empty(v.shape)
    pointers = tuple(t.data_ptr() for t in (*tensors, maps, out))
    heads, width, channels = bias.shape[1], v.shape[1], v.shape[2]

    def kernel(begin: int, end: int) -> None:
        _forward(pointers, heads, width, channels, keys is not None, keys or NO_KEYS, begin, end)

    over_parts(kernel, len(v), 8 * v.numel())
    return out, maps


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, keys: tuple | None) -> Tensor:
        out, maps = _attended(q, k, v, bias, keys)
        ctx.keys = keys
        ctx.save_for_backward(q, k, v, maps)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        tensors = [t.contiguous() for t in (*ctx.saved_tensors, grad)]
        grads = [torch.empty_like(t) for t in tensors[:4]]
        pointers = tuple(t.data_ptr() for t in (*tensors, *grads))
        heads, width, channels = tensors[3].shape[1], grad.shape[1], grad.shape[2]

        def kernel(begin: int, end: int) -> None:
            _backward(pointers, heads, width, channels, ctx.keys is not None, ctx.keys or NO_KEYS, begin, end)

        over_parts(kernel, len(grad), 16 * grad.numel())
        return *grads, None


@njit(inline="always")
def _value(address, offset):
    return value_at(floats16(), address, offset)


@njit(cache=True, nogil=True, error_model="numpy")
def _forward(pointers, heads, width, channels, dropped, keys, begin, end):
    q, k, v, bias, maps, out = pointers
    like = floats16()
    own, pairs = channels // heads, width * width
    padded = -(-width // 16) * 16
    scale = spread(like, np.float32(1 / np.sqrt(own)))
    turned, scores = np.zeros(channels * padded, np.float32), np.zeros(width * padded, np.float32)
    whole = width // 16 * 16
    tails, peaks = np.full(16 * width, -np.inf, np.float32), np.empty(width, np.float32)
    kept = np.empty(pairs, np.float32)
    by_channel, square, ends = address_of(turned), address_of(scores), address_of(tails)
    for b in range(begin, end):
        turn(k + 4 * b * width * channels, width, channels, channels, by_channel, padded)
        for h in range(heads):
            first, its = (b * heads + h) * pairs, 4 * (b * width * channels + h * own)
            of_head = by_channel + 4 * h * own * padded
            small_product(q + its, channels, 1, of_head, padded, square, padded, width, own, padded)
            # In passes over all rows: those of one pass do not wait for each other, and fill the pipeline.
            for i in range(width):
                for j in range(whole, width):
                    tails[16 * i + j - whole] = _value(bias, first + i * width + j)
            for i in range(width):
                row = square + 4 * i * padded
                most = spread(like, np.float32(-np.inf))
                for block in range(0, padded, 16):
                    added = load(like, bias, first + i * width + block) if block < whole else load(like, ends, 16 * i)
                    score = load(like, row, block) * scale + added
                    store(row, block, score)
                    most = higher(most, score)
                peaks[i] = largest(most)
            for i in range(width):
                row, highest, sums = square + 4 * i * padded, spread(like, peaks[i]), floats16()
                for block in range(0, padded, 16):
                    part = exponential(load(like, row, block) - highest)
                    store(row, block, part)
                    sums = sums + part
                peaks[i] = np.float32(1) / total(sums)
            for i in range(width):
                row, at = square + 4 * i * padded, first + i * width
                for block in range(0, whole, 16):
                    store(maps, at + block, load(like, row, block) * spread(like, peaks[i]))
                for j in range(whole, width):
                    put(maps, at + j, _value(row, j) * peaks[i])
            used = used_map(maps, first, pairs, dropped, keys, address_of(kept))
            small_product(used, width, 1, v + its, channels, out + its, channels, width, width, own)
    hold(turned)
    hold(scores)
    hold(tails)
    hold(kept)


@njit(cache=True, nogil=True, error_model="numpy")
def _backward(pointers, heads, width, channels, dropped, keys, begin, end):
    q, k, v, maps, grad, grad_q, grad_k, grad_v, grad_bias = pointers
    own, pairs = channels // heads, width * width
    padded = -(-width // 16) * 16
    scale = np.float32(1 / np.sqrt(own))
    turned, square = np.zeros(channels * padded, np.float32), np.empty(width * padded, np.float32)
    kept, flat, scaled = np.empty(pairs, np.float32), np.empty(pairs, np.float32), np.empty(pairs, np.float32)
    by_channel, of_scores = address_of(turned), address_of(scaled)
    like, whole = floats16(), width // 16 * 16
    for b in range(begin, end):
        turn(v + 4 * b * width * channels, width, channels, channels, by_channel, padded)
        for h in range(heads):
            first, its = (b * heads + h) * pairs, 4 * (b * width * channels + h * own)
            used = used_map(maps, first, pairs, dropped, keys, address_of(kept))
            small_product(used, 1, width, grad + its, channels, grad_v + its, channels, width, width, own)
            of_head = by_channel + 4 * h * own * padded
            small_product(grad + its, channels, 1, of_head, padded, address_of(square), padded, width, own, padded)
            slopes, apart = address_of(square), padded
            if dropped:
                for i in range(width):
                    for j in range(width):
                        flat[i * width + j] = square[i * padded + j]
                keep_or_drop(address_of(flat), 0, pairs, keys, first, address_of(kept))
                slopes, apart = address_of(kept), width
            for i in range(width):
                row, at, sums = slopes + 4 * i * apart, first + i * width, floats16()
                for block in range(0, whole, 16):
                    sums = sums + load(like, row, block) * load(like, maps, at + block)
                dot = total(sums)
                for j in range(whole, width):
                    dot += _value(row, j) * _value(maps, at + j)
                for block in range(0, whole, 16):
                    slope = load(like, maps, at + block) * (load(like, row, block) - spread(like, dot))
                    store(grad_bias, at + block, slope)
                    store(of_scores, i * width + block, slope * spread(like, scale))
                for j in range(whole, width):
                    slope = _value(maps, at + j) * (_value(row, j) - dot)
                    put(grad_bias, at + j, slope)
                    scaled[i * width + j] = slope * scale
            small_product(of_scores, width, 1, k + its, channels, grad_q + its, channels, width, width, own)
            small_product(of_scores, 1, width, q + its, channels, grad_k + its, channels, width, width, own)
    hold(turned)
    hold(square)
    hold(kept)
    hold(flat)
    hold(scaled)
