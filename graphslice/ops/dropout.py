"""Dropout with a counter-based random generator.

On the CPU, torch draws one random number per value, on a single core. This implementation draws two keys per call; the
mask is a hash of the keys and the index of each value. Any number of threads compute it in registers, and the backward
pass recomputes the mask instead of storing it.
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
        x: floating-point tensor of any shape.
        p: dropout probability, in [0, 1).

    Returns:
        Tensor of the shape and dtype of ``x``; ``x`` itself if ``p`` is 0.
    """
    return F.dropout(x, p) if p else x


@dropout.backend("numba", dtypes=(torch.float32,), fits=lambda x, p: 0 <= p < 1)
def _numba(x: Tensor, p: float) -> Tensor:
    return _Dropout.apply(x, draw_dropout_keys(p)) if p else x


class Dropout(nn.Module):
    """Dropout layer: :func:`dropout` in training mode, the identity in evaluation mode.

    Args:
        p: dropout probability, in [0, 1).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


class DropoutKeys(NamedTuple):
    """Parameters of one dropout mask, passed to kernels.

    Attributes:
        active: False if nothing is dropped.
        first, second: 32-bit keys of the hash.
        threshold: values whose hash is below it are dropped.
        scale: ``1 / (1 - p)``.
    """

    active: bool
    first: int
    second: int
    threshold: int
    scale: float


_INACTIVE = DropoutKeys(False, 0, 0, 0, 1.0)


def draw_dropout_keys(p: float) -> DropoutKeys:
    """Draw the keys of a dropout mask from torch's generator; for ``p = 0`` draw nothing.

    Args:
        p: dropout probability, in [0, 1).

    Returns:
        The parameters of the mask, inactive if ``p`` is 0.
    """
    if not p:
        return _INACTIVE
    first, second = draw_random_integers(2)
    return DropoutKeys(True, first, second, dropout_threshold(p), 1 / (1 - p))


def draw_random_integers(count: int) -> list[int]:
    """Draw signed 32-bit integers from torch's generator, or from the one set by :func:`dropout_seed`."""
    return torch.empty(count, dtype=torch.int64).random_(-(2**31), 2**31, generator=_thread.generator).tolist()


def dropout_threshold(p: float) -> int:
    """Return the value that a uniform signed 32-bit hash reaches or exceeds with probability ``1 - p``."""
    return min(max(round(p * 2**32) - 2**31, -(2**31)), 2**31 - 1)


class _Thread(threading.local):
    generator: torch.Generator | None = None


_thread = _Thread()


@contextmanager
def dropout_seed(seed: int) -> Iterator[None]:
    """Draw the dropout keys of this thread from a separate generator inside the context.

    Args:
        seed: of the generator.
    """
    before, _thread.generator = _thread.generator, torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _thread.generator = before


@njit(inline="always")
def dropout_factors(keys, offset):
    """Return 16 lanes of dropout factors, ``1 / (1 - p)`` or 0, for the values from index ``offset`` on.

    The hash has three rounds of multiplication and shift (constants of C. Wellons' triple32); the second key is mixed
    in before the third.
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
    """Write ``dropout(source[first : first + size])`` to ``out`` with the mask of the values from ``offset`` on.

    ``source`` and ``out`` are addresses.
    """
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
    """Return the address of ``dropout(attn_weights[first : first + size])``, in ``scratch``.

    If nothing is dropped, it is the address of the weights themselves.
    """
    if keys.active:
        apply_dropout(attn_weights, first, size, keys, first, scratch)
        return scratch
    return attn_weights + 4 * first


@njit(cache=True, nogil=True)
def _drop(x, keys, out, begin, end):
    apply_dropout(x, begin, end - begin, keys, begin, out + 4 * begin)


def _apply_mask(x: Tensor, keys: DropoutKeys) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    source, result = x.data_ptr(), out.data_ptr()
    parallel_for(lambda begin, end: _drop(source, keys, result, begin, end), x.numel(), values=x.numel())
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, keys: DropoutKeys) -> Tensor:
        ctx.keys = keys
        return _apply_mask(x, keys)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        return _apply_mask(grad, ctx.keys), None
