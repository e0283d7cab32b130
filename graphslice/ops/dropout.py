"""Dropout that costs little beside the arithmetic it goes with.

On the CPU, torch draws one number of its generator for each value, one core doing so. Here a call
draws two keys, and whether a value stays is a hash of the keys and of the value's place: made in
registers, by any number of threads, and made again for the gradient instead of being kept.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.ops.simd.lanes import (
    address_of,
    floats16,
    hold,
    ints16,
    load,
    numbered,
    put,
    spread,
    store,
    value_at,
    where_at_least,
)
from graphslice.ops.threads import over_parts


def dropout(x: Tensor, p: float) -> Tensor:
    """Set each value to zero with probability ``p`` and scale the others by ``1 / (1 - p)``."""
    if p == 0:
        return x
    if x.device.type != "cpu" or x.dtype != torch.float32 or torch.compiler.is_compiling():
        return F.dropout(x, p)
    return _Dropout.apply(x, draw_keys(p))


class Dropout(nn.Module):
    """:func:`dropout` while training, nothing otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


def draw_keys(p: float) -> tuple[int, int, int, float]:
    """What :func:`keep` needs: two numbers from torch's generator, the threshold of ``p``, and ``1 / (1 - p)``."""
    keys = torch.empty(2, dtype=torch.int64).random_(-(2**31), 2**31, generator=_thread.generator).tolist()
    return *keys, min(max(round(p * 2**32) - 2**31, -(2**31)), 2**31 - 1), 1 / (1 - p)


#: In the place of keys where nothing is dropped.
NO_KEYS = (0, 0, 0, 1.0)


class _Thread(threading.local):
    generator: torch.Generator | None = None


_thread = _Thread()


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Let this thread draw the keys of its dropouts from a generator of its own."""
    before, _thread.generator = _thread.generator, torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _thread.generator = before


@njit(inline="always")
def keep(keys, offset):
    """Lanes of ``1 / (1 - p)`` where the 16 values from ``offset`` on stay, of 0 where they are dropped.

    The hash is three rounds of multiply and shift (constants of C. Wellons' triple32), the second
    key between them.
    """
    like = ints16()
    x = numbered(like) + spread(like, np.int32(offset)) + spread(like, np.int32(keys[0]))
    x = (x ^ (x >> spread(like, np.int32(17)))) * spread(like, np.int32(-312814405))
    x = (x ^ (x >> spread(like, np.int32(11)))) * spread(like, np.int32(-1404298415))
    x = x ^ spread(like, np.int32(keys[1]))
    x = (x ^ (x >> spread(like, np.int32(15)))) * spread(like, np.int32(830770091))
    x = x ^ (x >> spread(like, np.int32(14)))
    return where_at_least(x, spread(like, np.int32(keys[2])), spread(floats16(), np.float32(keys[3])), floats16())


@njit(inline="always")
def keep_or_drop(source, first, size, keys, place, out):
    """``out = dropout(source[first : first + size])``, the ``place``-th values and those after it; by addresses."""
    like = floats16()
    if size < 16:
        few = np.empty(16, np.float32)
        store(address_of(few), 0, keep(keys, place))
        for i in range(size):
            put(out, i, value_at(like, source, first + i) * few[i])
        hold(few)
        return
    for block in range(0, size, 16):
        i = min(block, size - 16)
        store(out, i, load(like, source, first + i) * keep(keys, place + i))


@njit(inline="always")
def used_map(maps, first, size, dropped, keys, room):
    """The address of ``maps[first : first + size]``, or of ``room`` with the dropout of that."""
    if dropped:
        keep_or_drop(maps, first, size, keys, first, room)
        return room
    return maps + 4 * first


@njit(cache=True, nogil=True)
def _drop(x, keys, out, begin, end):
    keep_or_drop(x, begin, end - begin, keys, begin, out + 4 * begin)


def _dropped(x: Tensor, keys: tuple) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    values, result = x.data_ptr(), out.data_ptr()
    over_parts(lambda begin, end: _drop(values, keys, result, begin, end), x.numel(), x.numel())
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, keys: tuple) -> Tensor:
        ctx.keys = keys
        return _dropped(x, keys)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _dropped(grad, ctx.keys), None
