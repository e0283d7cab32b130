"""``P V`` head by head: one attention map per head, applied to the head's own channels."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.dropout import draw_keys, dropout, keep, scale_of
from graphslice.ops.lanes import floats8, floats16, load, spread, store, value_at
from graphslice.ops.parallel import over_parts


def map_values(maps: Tensor, v: Tensor, p: float = 0.0) -> Tensor:
    """``dropout(P) V`` for every sample and head.

    Args:
        maps: ``[B, H, N, N]``, P.
        v: ``[B, N, C]``; head h owns channels ``h C / H`` to ``(h + 1) C / H``.
        p: probability of the dropout on P.

    Returns:
        ``[B, N, C]``, the dtype of ``v``.
    """
    batch, width, channels = v.shape
    heads = maps.shape[1]
    ours = v.device.type == "cpu" and v.dtype == maps.dtype == torch.float32 and channels // heads >= 8
    if ours and v.numel() and not torch.compiler.is_compiling():
        return _MapValues.apply(maps, v, draw_keys(p) if p else None)
    by_head = v.view(batch, width, heads, -1).transpose(1, 2)
    mixed = dropout(maps.to(v.dtype), p) @ by_head
    return mixed.transpose(1, 2).reshape(batch, width, channels)


class _MapValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx, maps: Tensor, v: Tensor, keys: np.ndarray | None) -> Tensor:
        maps, v = maps.contiguous(), v.contiguous()
        out = torch.empty(v.shape)
        ctx.dropped, ctx.keys = keys is not None, np.zeros(4, np.int32) if keys is None else keys
        ctx.save_for_backward(maps, v)
        flat = [t.detach().view(-1).numpy() for t in (maps, v, out)]
        heads, width, channels = maps.shape[1], v.shape[1], v.shape[2]

        def kernel(begin: int, end: int) -> None:
            _forward(*flat, ctx.keys, ctx.dropped, heads, width, channels, begin, end)

        over_parts(kernel, len(v), v.numel() * 4)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        maps, v = ctx.saved_tensors
        grad_maps = torch.empty_like(maps) if ctx.needs_input_grad[0] else None
        grad_v = torch.empty_like(v)
        flat = [t.detach().view(-1).numpy() for t in (maps, v, grad.contiguous(), grad_v)]
        into = np.empty(0, np.float32) if grad_maps is None else grad_maps.view(-1).numpy()
        heads, width, channels = maps.shape[1], v.shape[1], v.shape[2]

        def kernel(begin: int, end: int) -> None:
            _backward(*flat, into, ctx.keys, ctx.dropped, heads, width, channels, begin, end)

        over_parts(kernel, len(v), v.numel() * 4)
        return grad_maps, grad_v, None


@njit(inline="always")
def _product(like, a, a_first, a_row, a_column, b, b_first, b_row, out, out_first, out_row, rows, inner, columns):
    """``out = A B``: matrices in flat arrays, by their first elements and strides.

    Four rows of A at a time share a read of B. Rows and columns beyond the last whole block are
    covered by a block that overlaps the one before; there are at least as many columns as lanes.
    """
    last = rows - 1
    for block in range(0, columns, len(like)):
        c = min(block, columns - len(like))
        for i in range(0, rows, 4):
            r0, r1, r2, r3 = i, min(i + 1, last), min(i + 2, last), min(i + 3, last)
            a0, a1, a2, a3 = (
                a_first + r0 * a_row,
                a_first + r1 * a_row,
                a_first + r2 * a_row,
                a_first + r3 * a_row,
            )
            s0 = s1 = s2 = s3 = spread(like, np.float32(0))
            for k in range(inner):
                value = load(like, b, b_first + k * b_row + c)
                at = k * a_column
                s0 = s0 + spread(like, value_at(a, a0 + at)) * value
                s1 = s1 + spread(like, value_at(a, a1 + at)) * value
                s2 = s2 + spread(like, value_at(a, a2 + at)) * value
                s3 = s3 + spread(like, value_at(a, a3 + at)) * value
            store(out, out_first + r0 * out_row + c, s0)
            store(out, out_first + r1 * out_row + c, s1)
            store(out, out_first + r2 * out_row + c, s2)
            store(out, out_first + r3 * out_row + c, s3)


@njit(cache=True)
def _multiply(a, a_first, a_row, a_column, b, b_first, b_row, out, out_first, out_row, rows, inner, columns):
    if columns >= 16:
        _product(
            floats16(), a, a_first, a_row, a_column, b, b_first, b_row, out, out_first, out_row, rows, inner, columns
        )
    else:
        _product(
            floats8(), a, a_first, a_row, a_column, b, b_first, b_row, out, out_first, out_row, rows, inner, columns
        )


@njit(inline="always")
def _keep_or_drop(source, first, size, keys, place, out, out_first):
    """``out = dropout(source)`` for ``size`` values, the ``place``-th of the batch and those after it."""
    stays = scale_of(keys)
    if size < 16:
        few = np.empty(16, np.float32)
        store(few, 0, keep(keys, place, stays))
        for i in range(size):
            out[out_first + i] = source[first + i] * few[i]
        return
    for block in range(0, size, 16):
        i = min(block, size - 16)
        store(out, out_first + i, load(floats16(), source, first + i) * keep(keys, place + i, stays))


@njit(cache=True, nogil=True)
def _forward(maps, v, out, keys, dropped, heads, width, channels, begin, end):
    own, pairs = channels // heads, width * width
    kept = np.empty(pairs, np.float32)
    for b in range(begin, end):
        for h in range(heads):
            at, its = (b * heads + h) * pairs, b * width * channels + h * own
            if dropped:
                _keep_or_drop(maps, at, pairs, keys, at, kept, 0)
                _multiply(kept, 0, width, 1, v, its, channels, out, its, channels, width, width, own)
            else:
                _multiply(maps, at, width, 1, v, its, channels, out, its, channels, width, width, own)


@njit(cache=True, nogil=True)
def _backward(maps, v, grad, grad_v, grad_maps, keys, dropped, heads, width, channels, begin, end):
    own, pairs = channels // heads, width * width
    padded = max(8, width)  # as many columns as lanes
    kept = np.empty(pairs, np.float32)
    turned = np.zeros((channels, padded), np.float32)
    by_channel = turned.reshape(-1)
    square = np.empty(width * padded, np.float32)
    for b in range(begin, end):
        if len(grad_maps):
            for j in range(width):
                for c in range(channels):
                    by_channel[c * padded + j] = v[(b * width + j) * channels + c]
        for h in range(heads):
            at, its = (b * heads + h) * pairs, b * width * channels + h * own
            if dropped:
                _keep_or_drop(maps, at, pairs, keys, at, kept, 0)
                _multiply(kept, 0, 1, width, grad, its, channels, grad_v, its, channels, width, width, own)
            else:
                _multiply(maps, at, 1, width, grad, its, channels, grad_v, its, channels, width, width, own)
            if not len(grad_maps):
                continue
            turned_at = h * own * padded
            if padded == width and not dropped:
                _multiply(
                    grad, its, channels, 1, by_channel, turned_at, padded, grad_maps, at, width, width, own, width
                )
                continue
            _multiply(grad, its, channels, 1, by_channel, turned_at, padded, square, 0, padded, width, own, padded)
            for i in range(width if padded > width else 0):
                for j in range(width):
                    square[i * width + j] = square[i * padded + j]
            if dropped:
                _keep_or_drop(square, 0, pairs, keys, at, grad_maps, at)
            else:
                grad_maps[at : at + pairs] = square[:pairs]
