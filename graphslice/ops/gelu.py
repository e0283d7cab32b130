"""A bias and the GELU after it, in one pass over the memory."""

from __future__ import annotations

import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dispatch import operator
from graphslice.ops.simd.lanes import as_float32, as_int32, exp, float32x16, int32x16, load, splat, store
from graphslice.ops.threads import parallel_for

# Rows whose gradients are summed together, whatever the number of threads.
_CHUNK_ROWS = 128


@operator
def gelu(x: Tensor, bias: Tensor) -> Tensor:
    """``GELU(x + bias)`` with the error function itself (Hendrycks and Gimpel 2016).

    Args:
        x: ``[..., C]``, floating point.
        bias: ``[C]``.

    Returns:
        The shape and dtype of ``x``.
    """
    return F.gelu(x + bias)


@gelu.backend("numba", dtypes=(torch.float32,), fits=lambda x, bias: x.shape[-1] % 16 == 0)
def _numba(x: Tensor, bias: Tensor) -> Tensor:
    return _Gelu.apply(x, bias) if torch.is_grad_enabled() else _gelu(x, bias)


def _gelu(x: Tensor, bias: Tensor) -> Tensor:
    x, bias = x.contiguous(), bias.contiguous()
    out = torch.empty(x.shape)
    addresses = (x.data_ptr(), bias.data_ptr(), out.data_ptr())
    channels = x.shape[-1]
    parallel_for(lambda begin, end: _forward(addresses, channels, begin, end), x.numel() // channels, values=x.numel())
    return out


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bias)
        return _gelu(x, bias)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, bias = (t.contiguous() for t in ctx.saved_tensors)
        grad, grad_x = grad.contiguous(), torch.empty(x.shape)
        channels = x.shape[-1]
        rows = x.numel() // channels
        chunks = -(-rows // _CHUNK_ROWS)
        grad_bias = torch.zeros(chunks, channels)
        addresses = tuple(t.data_ptr() for t in (x, bias, grad, grad_x, grad_bias))
        parallel_for(lambda begin, end: _backward(addresses, channels, rows, begin, end), chunks, values=x.numel())
        return grad_x, grad_bias.sum(dim=0)


@njit(inline="always")
def _normal_cdf(x):
    """The normal distribution function of lanes, and ``e^(-x^2 / 2)``; error below 1e-7.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26, for the error function.
    """
    sign = as_int32(x) & splat(int32x16(), -(2**31))
    z = as_float32(as_int32(x) ^ sign) * splat(x, 0.7071067811865476)
    gaussian = exp(z * z * splat(x, -1.0))
    t = splat(x, 1.0) / (z * splat(x, 0.3275911) + splat(x, 1.0))
    series = splat(x, 1.061405429) * t + splat(x, -1.453152027)
    series = series * t + splat(x, 1.421413741)
    series = series * t + splat(x, -0.284496736)
    series = series * t + splat(x, 0.254829592)
    erf = as_float32(as_int32(splat(x, 1.0) - series * t * gaussian) ^ sign)
    return (erf + splat(x, 1.0)) * splat(x, 0.5), gaussian


@njit(cache=True, nogil=True)
def _forward(addresses, channels, begin, end):
    x, bias, out = addresses
    lane_type = float32x16()
    for row in range(begin, end):
        for c in range(0, channels, 16):
            value = load(lane_type, x, row * channels + c) + load(lane_type, bias, c)
            store(out, row * channels + c, value * _normal_cdf(value)[0])


@njit(cache=True, nogil=True)
def _backward(addresses, channels, rows, begin, end):
    x, bias, grad, grad_x, grad_bias = addresses
    lane_type = float32x16()
    density = splat(lane_type, 0.3989422804014327)  # 1 / sqrt(2 pi)
    for row in range(begin * _CHUNK_ROWS, min(end * _CHUNK_ROWS, rows)):
        chunk = row // _CHUNK_ROWS * channels
        for c in range(0, channels, 16):
            at = row * channels + c
            value = load(lane_type, x, at) + load(lane_type, bias, c)
            cdf, gaussian = _normal_cdf(value)
            result = load(lane_type, grad, at) * (cdf + value * gaussian * density)
            store(grad_x, at, result)
            store(grad_bias, chunk + c, load(lane_type, grad_bias, chunk + c) + result)
