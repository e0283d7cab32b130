"""Dropout that costs little beside the arithmetic it goes with.

On the CPU, torch draws one number of its generator for each value, one core doing so. Here a call
draws two keys, and whether a value stays is a hash of the keys and of the value's place: made in
registers, by any number of threads, and made again for the gradient instead of being kept.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.ops.lanes import floats16, ints16, load, numbered, spread, store, where_at_least
from graphslice.ops.parallel import over_parts


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


def draw_keys(p: float) -> np.ndarray:
    """``int32 [4]`` for :func:`keep`: two keys of torch's generator, the threshold of ``p``, the bits of 1 / (1 - p)."""
    keys = torch.empty(2, dtype=torch.int64).random_(-(2**31), 2**31).numpy().astype(np.int32)
    threshold = min(max(round(p * 2**32) - 2**31, -(2**31)), 2**31 - 1)
    return np.array([*keys, threshold, np.float32(1 / (1 - p)).view(np.int32)], np.int32)


@njit(inline="always")
def scale_of(keys):
    """``1 / (1 - p)``, float32."""
    return keys[3:].view(np.float32)[0]


@njit(inline="always")
def keep(keys, offset, scale):
    """Lanes of ``scale`` where the 16 values from ``offset`` on stay, of 0 where they are dropped.

    The hash is three rounds of multiply and shift (constants of C. Wellons' triple32), the second
    key between them.
    """
    like = ints16()
    x = numbered(like) + spread(like, np.int32(offset)) + spread(like, keys[0])
    x = (x ^ (x >> spread(like, np.int32(17)))) * spread(like, np.int32(-312814405))
    x = (x ^ (x >> spread(like, np.int32(11)))) * spread(like, np.int32(-1404298415))
    x = x ^ spread(like, keys[1])
    x = (x ^ (x >> spread(like, np.int32(15)))) * spread(like, np.int32(830770091))
    x = x ^ (x >> spread(like, np.int32(14)))
    return where_at_least(x, spread(like, keys[2]), spread(floats16(), scale), floats16())


@njit(cache=True, nogil=True)
def _drop(x, keys, out, begin, end):
    scale = scale_of(keys)
    rest = np.empty(16, np.float32)
    for at in range(begin, end, 16):
        if at + 16 <= len(x):
            store(out, at, load(floats16(), x, at) * keep(keys, at, scale))
        else:
            store(rest, 0, keep(keys, at, scale))
            for i in range(at, len(x)):
                out[i] = x[i] * rest[i - at]


def _dropped(x: Tensor, keys: np.ndarray) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    values, result = x.detach().view(-1).numpy(), out.view(-1).numpy()
    over_parts(lambda begin, end: _drop(values, keys, result, 16 * begin, 16 * end), -(-len(values) // 16), len(values))
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, keys: np.ndarray) -> Tensor:
        ctx.keys = keys
        return _dropped(x, keys)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _dropped(grad, ctx.keys), None
