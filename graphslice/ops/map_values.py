"""``P V`` head by head: one attention map per head, applied to the head's own channels."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.dropout import NO_KEYS, draw_keys, dropout, keep_or_drop, used_map
from graphslice.ops.simd.lanes import address_of, hold, put
from graphslice.ops.simd.small_product import small_product, turn
from graphslice.ops.threads import over_parts


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
        keys = draw_keys(p) if p else None
        return _MapValues.apply(maps, v, keys) if torch.is_grad_enabled() else _mapped(maps, v, keys)
    by_head = v.view(batch, width, heads, -1).transpose(1, 2)
    mixed = dropout(maps.to(v.dtype), p) @ by_head
    return mixed.transpose(1, 2).reshape(batch, width, channels)


def _mapped(maps: Tensor, v: Tensor, keys: tuple | None) -> Tensor:
    maps, v = maps.contiguous(), v.contiguous()
    out = torch.empty(v.shape)
    pointers = tuple(t.data_ptr() for t in (maps, v, out))
    heads, width, channels = maps.shape[1], v.shape[1], v.shape[2]

    def kernel(begin: int, end: int) -> None:
        product_of_samples(pointers, heads, width, channels, keys is not None, keys or NO_KEYS, begin, end)

    over_parts(kernel, len(v), 4 * v.numel())
    return out


class _MapValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx, maps: Tensor, v: Tensor, keys: tuple | None) -> Tensor:
        ctx.keys = keys
        ctx.save_for_backward(maps, v)
        return _mapped(maps, v, keys)

    @staticmethod
    def backward(ctx, grad: Tensor):
        maps, v = (t.contiguous() for t in ctx.saved_tensors)
        wanted = ctx.needs_input_grad[0]
        grad_maps, grad_v = torch.empty_like(maps if wanted else maps[:0]), torch.empty_like(v)
        grad = grad.contiguous()
        pointers = tuple(t.data_ptr() for t in (maps, v, grad, grad_v, grad_maps))
        heads, width, channels = maps.shape[1], v.shape[1], v.shape[2]

        def kernel(begin: int, end: int) -> None:
            gradients_of_samples(
                pointers, heads, width, channels, ctx.keys is not None, ctx.keys or NO_KEYS, wanted, begin, end
            )

        over_parts(kernel, len(v), 4 * v.numel())
        return grad_maps if wanted else None, grad_v, None


@njit(cache=True, nogil=True)
def product_of_samples(pointers, heads, width, channels, dropped, keys, begin, end):
    """``dropout(P) V`` of samples ``begin`` to ``end``; ``pointers`` are the addresses of P, V and the result."""
    maps, v, out = pointers
    own, pairs = channels // heads, width * width
    room = np.empty(pairs, np.float32)
    for b in range(begin, end):
        for h in range(heads):
            first = (b * heads + h) * pairs
            its = 4 * (b * width * channels + h * own)
            used = used_map(maps, first, pairs, dropped, keys, address_of(room))
            small_product(used, width, 1, v + its, channels, out + its, channels, width, width, own)
    hold(room)


@njit(cache=True, nogil=True)
def gradients_of_samples(pointers, heads, width, channels, dropped, keys, maps_too, begin, end):
    """The gradients of V and, if wanted, of P; the addresses are those of P, V, the upstream gradient and both."""
    maps, v, grad, grad_v, grad_maps = pointers
    own, pairs = channels // heads, width * width
    padded = max(8, width)  # as many columns as lanes
    room, turned_room = np.empty(pairs, np.float32), np.zeros(channels * padded, np.float32)
    square_room = np.empty(width * padded, np.float32)
    turned, square = address_of(turned_room), address_of(square_room)
    for b in range(begin, end):
        if maps_too:
            turn(v + 4 * b * width * channels, width, channels, channels, turned, padded)
        for h in range(heads):
            first = (b * heads + h) * pairs
            its = 4 * (b * width * channels + h * own)
            used = used_map(maps, first, pairs, dropped, keys, address_of(room))
            small_product(used, 1, width, grad + its, channels, grad_v + its, channels, width, width, own)
            if not maps_too:
                continue
            of_head, into = turned + 4 * h * own * padded, grad_maps + 4 * first
            if padded == width and not dropped:
                small_product(grad + its, channels, 1, of_head, padded, into, width, width, own, width)
                continue
            small_product(grad + its, channels, 1, of_head, padded, square, padded, width, own, padded)
            if padded > width:
                for i in range(width):
                    for j in range(width):
                        square_room[i * width + j] = square_room[i * padded + j]
            if dropped:
                keep_or_drop(square, 0, pairs, keys, first, into)
            else:
                for i in range(pairs):
                    put(into, i, square_room[i])
    hold(room)
    hold(turned_room)
    hold(square_room)
