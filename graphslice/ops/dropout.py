"""Dropout that costs little beside the arithmetic it goes with.

On the CPU, torch draws one number of its generator for each value, one core doing so. Here a call
draws two keys, and whether a value stays is a hash of the keys and of the value's place: made in
registers, by any number of threads, and made again for the gradient instead of being kept.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.ops.dispatch import operator
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.simd.lanes import (
    address_of,
    float32x16,
    int32x16,
    iota,
    keep_alive,
    load,
    load_scalar,
    select_ge,
    splat,
    store,
    store_scalar,
)
from graphslice.ops.threads import parallel_for


@operator
def dropout(x: Tensor, p: float) -> Tensor:
    """Set each value to zero with probability ``p`` and scale the others by ``1 / (1 - p)`` (Srivastava et al. 2014).

    Args:
        x: floating point, of any shape.
        p: from 0 to below 1.

    Returns:
        The shape and dtype of ``x``; ``x`` itself where ``p`` is 0.
    """
    return F.dropout(x, p) if p else x


@dropout.backend("numba", dtypes=(torch.float32,), fits=lambda x, p: 0 <= p < 1)
def _numba(x: Tensor, p: float) -> Tensor:
    return _Dropout.apply(x, draw_dropout_keys(p)) if p else x


class Dropout(nn.Module):
    """:func:`dropout` while training, nothing otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


class DropoutKeys(NamedTuple):
    """What decides for each value whether it stays; a kernel's argument."""

    active: bool
    first: int
    second: int
    threshold: int
    scale: float


#: Nothing is dropped.
_INACTIVE = DropoutKeys(False, 0, 0, 0, 1.0)


def draw_dropout_keys(p: float) -> DropoutKeys:
    """Two numbers from torch's generator, the threshold of ``p``, and ``1 / (1 - p)``; nothing is drawn for 0."""
    if not p:
        return _INACTIVE
    first, second = draw_random_integers(2)
    return DropoutKeys(True, first, second, dropout_threshold(p), 1 / (1 - p))


def draw_random_integers(count: int) -> list[int]:
    """Integers of 32 bits from torch's generator, or that of :func:`dropout_seed`."""
    return torch.empty(count, dtype=torch.int64).random_(-(2**31), 2**31, generator=_thread.generator).tolist()


def dropout_threshold(p: float) -> int:
    """What a hash of 32 bits reaches with probability ``1 - p``."""
    return min(max(round(p * 2**32) - 2**31, -(2**31)), 2**31 - 1)


class _Thread(threading.local):
    generator: torch.Generator | None = None


_thread = _Thread()


@contextmanager
def dropout_seed(seed: int) -> Iterator[None]:
    """Let this thread draw the keys of its dropouts from a generator of its own."""
    before, _thread.generator = _thread.generator, torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _thread.generator = before


@njit(inline="always")
def dropout_factors(keys, offset):
    """Lanes of ``1 / (1 - p)`` where the 16 values from ``offset`` on stay, of 0 where they are dropped.

    The hash is three rounds of multiply and shift (constants of C. Wellons' triple32), the second
    key between them.
    """
    lane_type = int32x16()
    x = iota(lane_type) + splat(lane_type, np.int32(offset)) + splat(lane_type, np.int32(keys.first))
    x = (x ^ (x >> splat(lane_type, np.int32(17)))) * splat(lane_type, np.int32(-312814405))
    x = (x ^ (x >> splat(lane_type, np.int32(11)))) * splat(lane_type, np.int32(-1404298415))
    x = x ^ splat(lane_type, np.int32(keys.second))
    x = (x ^ (x >> splat(lane_type, np.int32(15)))) * splat(lane_type, np.int32(830770091))
    x = x ^ (x >> splat(lane_type, np.int32(14)))
    scale = splat(float32x16(), np.float32(keys.scale))
    return select_ge(x, splat(lane_type, np.int32(keys.threshold)), scale, float32x16())


@njit(inline="always")
def apply_dropout(source, first, size, keys, offset, out):
    """``out = dropout(source[first : first + size])``, decided as for the values from ``offset`` on; by addresses."""
    lane_type = float32x16()
    if size < 16:
        factors = np.empty(16, np.float32)
        store(address_of(factors), 0, dropout_factors(keys, offset))
        for i in range(size):
            store_scalar(out, i, load_scalar(lane_type, source, first + i) * factors[i])
        keep_alive(factors)
        return
    for block in range(0, size, 16):
        i = min(block, size - 16)
        store(out, i, load(lane_type, source, first + i) * dropout_factors(keys, offset + i))


@njit(inline="always")
def dropped_weights(attn_weights, first, size, keys, scratch):
    """The address of ``dropout(attn_weights[first : first + size])``: in place, or ``scratch`` if any is dropped."""
    if keys.active:
        apply_dropout(attn_weights, first, size, keys, first, scratch)
        return scratch
    return attn_weights + 4 * first


@njit(cache=True, nogil=True)
def _drop(x, keys, out, begin, end):
    apply_dropout(x, begin, end - begin, keys, begin, out + 4 * begin)


def _dropped(x: Tensor, keys: DropoutKeys) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    source, result = x.data_ptr(), out.data_ptr()
    parallel_for(lambda begin, end: _drop(source, keys, result, begin, end), x.numel(), values=x.numel())
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, keys: DropoutKeys) -> Tensor:
        ctx.keys = keys
        return _dropped(x, keys)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        return _dropped(grad, ctx.keys), None
