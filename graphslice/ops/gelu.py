"""GELU activation, exact form."""

from __future__ import annotations

import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dispatch import operator
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.simd.lanes import as_float32, as_int32, exp, float32x16, int32x16, load, splat, store
from graphslice.ops.threads import parallel_for


@operator
def gelu(x: Tensor) -> Tensor:
    """Compute ``GELU(x)`` in its exact form, with the error function (Hendrycks and Gimpel 2016).

    The numba backend supports float32 with a multiple of 16 values.

    Args:
        x: floating-point tensor of any shape.

    Returns:
        Tensor of the shape and dtype of ``x``.
    """
    return F.gelu(x)


@gelu.backend("numba", dtypes=(torch.float32,), fits=lambda x: x.numel() % 16 == 0)
def _numba(x: Tensor) -> Tensor:
    return _Gelu.apply(x) if torch.is_grad_enabled() else _gelu(x)


def _gelu(x: Tensor) -> Tensor:
    x = x.contiguous()
    out = torch.empty(x.shape)
    addresses = (x.data_ptr(), out.data_ptr())
    parallel_for(lambda begin, end: gelu_values(addresses, begin, end), x.numel() // 16, values=x.numel())
    return out


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _gelu(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, grad = ctx.saved_tensors[0].contiguous(), grad.contiguous()
        grad_x = torch.empty(x.shape)
        addresses = (x.data_ptr(), grad.data_ptr(), grad_x.data_ptr())
        parallel_for(lambda begin, end: gelu_gradients(addresses, begin, end), x.numel() // 16, values=x.numel())
        return grad_x


@njit(inline="always")
def _normal_cdf(x):
    """Return the normal CDF of lanes, with an error below 1e-7, and ``e^(-x^2 / 2)``.

    The error function is that of Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
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
def gelu_values(addresses, begin, end):
    """Compute GELU for blocks ``begin`` to ``end`` of 16 values; ``addresses``: x and result."""
    x, out = addresses
    for block in range(begin, end):
        value = load(float32x16(), x, 16 * block)
        store(out, 16 * block, value * _normal_cdf(value)[0])


@njit(cache=True, nogil=True)
def gelu_gradients(addresses, begin, end):
    """Compute gradients, as :func:`gelu_values`; ``addresses``: x, upstream gradient, gradient of x."""
    x, grad, grad_x = addresses
    lane_type = float32x16()
    density = splat(lane_type, 0.3989422804014327)  # 1 / sqrt(2 pi)
    for block in range(begin, end):
        value = load(lane_type, x, 16 * block)
        cdf, gaussian = _normal_cdf(value)
        store(grad_x, 16 * block, load(lane_type, grad, 16 * block) * (cdf + value * gaussian * density))
