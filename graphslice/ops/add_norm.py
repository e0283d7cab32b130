"""Residual connection followed by layer normalisation, fused."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dispatch import operator
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.dropout import DropoutKeys, draw_dropout_keys, dropout, dropout_factors
from graphslice.ops.simd.lanes import float32x16, load, load_scalar, reduce_sum, splat, store, store_scalar
from graphslice.ops.threads import parallel_for

# Rows per partial sum of the gradients of weight and bias. Fixed, so that the sums do not depend on the number of
# threads.
_CHUNK_ROWS = 128


@operator
def add_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, p: float = 0.0, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Compute the residual sum ``s = x + dropout(y)`` and its layer norm (Ba et al. 2016).

    The numba backend supports float32 with C a multiple of 16.

    Args:
        x, y: ``[..., C]``, floating point, of the same shape.
        weight, bias: ``[C]``, parameters of the layer norm.
        p: dropout probability, in [0, 1).
        eps: added to the variance in the layer norm.

    Returns:
        ``s`` and ``LayerNorm(s)``, both of the shape of ``x``.
    """
    s = x + dropout(y, p)
    return s, F.layer_norm(s, x.shape[-1:], weight, bias, eps)


def _fits(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, p: float = 0.0, eps: float = 1e-5) -> bool:
    channels = x.shape[-1:]
    return x.dim() > 0 and x.shape == y.shape and weight.shape == bias.shape == channels and channels[0] % 16 == 0


@add_norm.backend("numba", dtypes=(torch.float32,), fits=_fits)
def _numba(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, p: float = 0.0, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    keys = draw_dropout_keys(p)
    if torch.is_grad_enabled():
        return _AddNorm.apply(x, y, weight, bias, keys, eps)
    return _add_norm(x, y, weight, bias, keys, eps)[:2]


def _add_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, keys: DropoutKeys, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum, its norm, and the mean and inverse standard deviation of every row, ``[2, rows]``."""
    x, y, weight, bias = (t.contiguous() for t in (x, y, weight, bias))
    channels = x.shape[-1]
    rows = x.numel() // channels
    s, n, moments = torch.empty(x.shape), torch.empty(x.shape), torch.empty(2, rows)
    addresses = tuple(t.data_ptr() for t in (x, y, weight, bias, s, n, moments))
    parallel_for(lambda begin, end: norm_rows(addresses, channels, rows, keys, eps, begin, end), rows, values=x.numel())
    return s, n, moments


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, keys: DropoutKeys, eps: float):
        s, n, moments = _add_norm(x, y, weight, bias, keys, eps)
        ctx.keys = keys
        ctx.save_for_backward(s, weight, moments)
        ctx.set_materialize_grads(False)
        return s, n

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_s: Tensor | None, grad_n: Tensor | None):
        s, weight, moments = ctx.saved_tensors
        keys = ctx.keys
        grad_s = torch.zeros_like(s) if grad_s is None else grad_s.contiguous()
        grad_n = torch.zeros_like(s) if grad_n is None else grad_n.contiguous()
        channels, rows = s.shape[-1], moments.shape[1]
        chunks = -(-rows // _CHUNK_ROWS)
        grad_x = torch.empty_like(s)
        grad_y = torch.empty_like(s) if keys.active else grad_x
        sums = torch.zeros(2, chunks, channels)
        tensors = (grad_s, grad_n, s, weight.contiguous(), grad_x, grad_y, moments, *sums)
        addresses = tuple(t.data_ptr() for t in tensors)
        parallel_for(
            lambda begin, end: _backward(addresses, channels, rows, keys, begin, end), chunks, values=s.numel()
        )
        return grad_x, grad_y, *sums.sum(dim=1), None, None


@njit(cache=True, nogil=True, error_model="numpy")
def norm_rows(addresses, channels, rows, keys, eps, begin, end):
    """Compute rows ``begin`` to ``end``; ``addresses`` are those of the tensors in and out of :func:`_add_norm`."""
    x, y, weight, bias, s, n, moments = addresses
    lane_type = float32x16()
    count = np.float32(channels)
    for row in range(begin, end):
        first = row * channels
        sums = float32x16()
        for c in range(0, channels, 16):
            at = first + c
            branch = load(lane_type, y, at)
            if keys.active:
                branch = branch * dropout_factors(keys, at)
            value = load(lane_type, x, at) + branch
            store(s, at, value)
            sums = sums + value
        mean = reduce_sum(sums) / count
        means, squares = splat(lane_type, mean), float32x16()
        for c in range(0, channels, 16):
            centered = load(lane_type, s, first + c) - means
            squares = squares + centered * centered
        inverse_std = np.float32(1) / np.sqrt(reduce_sum(squares) / count + np.float32(eps))
        store_scalar(moments, row, mean)
        store_scalar(moments, rows + row, inverse_std)
        scale = splat(lane_type, inverse_std)
        for c in range(0, channels, 16):
            normed = (load(lane_type, s, first + c) - means) * scale
            store(n, first + c, normed * load(lane_type, weight, c) + load(lane_type, bias, c))


@njit(cache=True, nogil=True, error_model="numpy")
def _backward(addresses, channels, rows, keys, begin, end):
    for chunk in range(begin, end):
        at = 4 * chunk * channels
        sums = (*addresses[:7], addresses[7] + at, addresses[8] + at)
        row_gradients(sums, channels, rows, keys, chunk * _CHUNK_ROWS, min((chunk + 1) * _CHUNK_ROWS, rows))


@njit(cache=True, nogil=True, error_model="numpy")
def row_gradients(addresses, channels, rows, keys, begin, end):
    """Compute the gradients of rows ``begin`` to ``end``; those of weight and bias are accumulated.

    Args:
        addresses: of the gradients of both results, the sum, the weight, the gradients of x and y (may be the same
            address), ``[2, rows]`` means and inverse standard deviations, and the gradients of weight and bias.
        channels, rows: C and the number of rows.
        keys: of the dropout mask.
    """
    grad_s, grad_n, s, weight, grad_x, grad_y, moments, grad_weight, grad_bias = addresses
    lane_type = float32x16()
    count = np.float32(channels)
    for row in range(begin, end):
        first = row * channels
        means = splat(lane_type, load_scalar(lane_type, moments, row))
        scale = splat(lane_type, load_scalar(lane_type, moments, rows + row))
        sums, products = float32x16(), float32x16()
        for c in range(0, channels, 16):
            normed = (load(lane_type, s, first + c) - means) * scale
            grad = load(lane_type, grad_n, first + c)
            store(grad_bias, c, load(lane_type, grad_bias, c) + grad)
            store(grad_weight, c, load(lane_type, grad_weight, c) + grad * normed)
            grad = grad * load(lane_type, weight, c)
            sums = sums + grad
            products = products + grad * normed
        mean_grad = splat(lane_type, reduce_sum(sums) / count)
        mean_product = splat(lane_type, reduce_sum(products) / count)
        for c in range(0, channels, 16):
            at = first + c
            normed = (load(lane_type, s, at) - means) * scale
            grad = load(lane_type, grad_n, at) * load(lane_type, weight, c)
            grad = load(lane_type, grad_s, at) + (grad - mean_grad - normed * mean_product) * scale
            store(grad_x, at, grad)
            if keys.active:
                store(grad_y, at, grad * dropout_factors(keys, at))
