"""A bias and the GELU after it, in one pass over the memory."""

from __future__ import annotations

import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.simd.lanes import as_floats, as_ints, exponential, floats16, ints16, load, spread, store
from graphslice.ops.threads import over_parts

# Rows whose gradients are summed together, whatever the number of threads.
_ROWS = 128


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """``GELU(x + bias)`` for ``x [..., C]`` and ``bias [C]``, with the error function itself."""
    ours = x.device.type == "cpu" and x.dtype == bias.dtype == torch.float32 and x.shape[-1] % 16 == 0
    if ours and x.numel() and not torch.compiler.is_compiling():
        return _BiasGelu.apply(x, bias) if torch.is_grad_enabled() else _activated(x, bias)
    return F.gelu(x + bias)


def _activated(x: Tensor, bias: Tensor) -> Tensor:
    x, bias = x.contiguous(), bias.contiguous()
    out = torch.empty(x.shape)
    pointers = (x.data_ptr(), bias.data_ptr(), out.data_ptr())
    channels = x.shape[-1]
    over_parts(lambda begin, end: _forward(pointers, channels, begin, end), x.numel() // channels, x.numel())
    return out


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bias)
        return _activated(x, bias)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, bias = (t.contiguous() for t in ctx.saved_tensors)
        grad, out = grad.contiguous(), torch.empty(x.shape)
        channels = x.shape[-1]
        rows = x.numel() // channels
        parts = -(-rows // _ROWS)
        sums = torch.zeros(parts, channels)
        pointers = tuple(t.data_ptr() for t in (x, bias, grad, out, sums))
        over_parts(lambda begin, end: _backward(pointers, channels, rows, begin, end), parts, x.numel())
        return out, sums.sum(dim=0)


@njit(inline="always")
def _normal(x):
    """The normal distribution function of lanes, and ``e^(-x^2 / 2)``; error below 1e-7.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26, for the error function.
    """
    sign = as_ints(x) & spread(ints16(), -(2**31))
    z = as_floats(as_ints(x) ^ sign) * spread(x, 0.7071067811865476)
    bell = exponential(z * z * spread(x, -1.0))
    t = spread(x, 1.0) / (z * spread(x, 0.3275911) + spread(x, 1.0))
    series = spread(x, 1.061405429) * t + spread(x, -1.453152027)
    series = series * t + spread(x, 1.421413741)
    series = series * t + spread(x, -0.284496736)
    series = series * t + spread(x, 0.254829592)
    error = as_floats(as_ints(spread(x, 1.0) - series * t * bell) ^ sign)
    return (error + spread(x, 1.0)) * spread(x, 0.5), bell


@njit(cache=True, nogil=True)
def _forward(pointers, channels, begin, end):
    x, bias, out = pointers
    like = floats16()
    for row in range(begin, end):
        for c in range(0, channels, 16):
            value = load(like, x, row * channels + c) + load(like, bias, c)
            store(out, row * channels + c, value * _normal(value)[0])


@njit(cache=True, nogil=True)
def _backward(pointers, channels, rows, begin, end):
    x, bias, grad, out, sums = pointers
    like = floats16()
    density = spread(like, 0.3989422804014327)
    for row in range(begin * _ROWS, min(end * _ROWS, rows)):
        part = row // _ROWS * channels
        for c in range(0, channels, 16):
            at = row * channels + c
            value = load(like, x, at) + load(like, bias, c)
            below, bell = _normal(value)
            slope = load(like, grad, at) * (below + value * bell * density)
            store(out, at, slope)
            store(sums, part + c, load(like, sums, part + c) + slope)
