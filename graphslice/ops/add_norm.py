"""A residual connection and the layer norm after it, in one pass over the memory."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dropout import NO_KEYS, draw_keys, dropout, keep
from graphslice.ops.simd.lanes import floats16, load, put, spread, store, total, value_at
from graphslice.ops.threads import over_parts

# Rows whose gradients of weight and bias are summed together, whatever the number of threads:
# so the sums do not depend on it.
_ROWS = 128


def add_norm(
    x: Tensor, y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor, p: float = 0.0, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """``s = x + dropout(y + y_bias)`` and ``LayerNorm(s)``.

    Args:
        x, y: ``[..., C]`` of one shape, floating point.
        y_bias: ``[C]``, what the linear map that made ``y`` has left to add.
        weight, bias: ``[C]`` of the norm.
        p: probability of the dropout; 0 for none.
        eps: of the norm.

    Returns:
        The sum and its norm, both of the shape of ``x``.
    """
    channels = x.shape[-1]
    ours = x.device.type == "cpu" and x.dtype == y.dtype == weight.dtype == torch.float32 and channels % 16 == 0
    if ours and x.numel() and not torch.compiler.is_compiling():
        keys = draw_keys(p) if p else None
        if torch.is_grad_enabled():
            return _AddNorm.apply(x, y, y_bias, weight, bias, keys, eps)
        return _added(x, y, y_bias, weight, bias, keys, eps)[:2]
    s = x + dropout(y + y_bias, p)
    return s, F.layer_norm(s, (channels,), weight, bias, eps)


def _added(
    x: Tensor, y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor, keys: tuple | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum, its norm, and ``[2, rows]`` the mean and the scale of every row."""
    x, y, vectors = x.contiguous(), y.contiguous(), torch.stack([y_bias, weight, bias])
    channels = x.shape[-1]
    rows = x.numel() // channels
    s, n, spreads = torch.empty(x.shape), torch.empty(x.shape), torch.empty(2, rows)
    pointers = tuple(t.data_ptr() for t in (x, y, vectors, s, n, spreads))

    def kernel(begin: int, end: int) -> None:
        _forward(pointers, channels, rows, keys is not None, keys or NO_KEYS, eps, begin, end)

    over_parts(kernel, rows, x.numel())
    return s, n, spreads


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor, keys: tuple | None, eps: float
    ):
        s, n, spreads = _added(x, y, y_bias, weight, bias, keys, eps)
        ctx.keys = keys
        ctx.save_for_backward(s, weight, spreads)
        ctx.set_materialize_grads(False)
        return s, n

    @staticmethod
    def backward(ctx, grad_s: Tensor | None, grad_n: Tensor | None):
        s, weight, spreads = ctx.saved_tensors
        grad_s = torch.zeros_like(s) if grad_s is None else grad_s.contiguous()
        grad_n = torch.zeros_like(s) if grad_n is None else grad_n.contiguous()
        channels, rows = s.shape[-1], spreads.shape[1]
        parts = -(-rows // _ROWS)
        grad_x = torch.empty_like(s)
        grad_y = grad_x if ctx.keys is None else torch.empty_like(s)
        sums = torch.zeros(3, parts, channels)
        tensors = (grad_s, grad_n, s, weight.contiguous(), grad_x, grad_y, spreads, *sums)
        pointers = tuple(t.data_ptr() for t in tensors)

        def kernel(begin: int, end: int) -> None:
            _backward(pointers, channels, rows, ctx.keys is not None, ctx.keys or NO_KEYS, begin, end)

        over_parts(kernel, parts, s.numel())
        return grad_x, grad_y, *sums.sum(dim=1), None, None


@njit(cache=True, nogil=True, error_model="numpy")
def _forward(pointers, channels, rows, dropped, keys, eps, begin, end):
    x, y, vectors, s, n, spreads = pointers
    y_bias, weight, bias = vectors, vectors + 4 * channels, vectors + 8 * channels
    like = floats16()
    count = np.float32(channels)
    for row in range(begin, end):
        first = row * channels
        sums = floats16()
        for c in range(0, channels, 16):
            at = first + c
            added = load(like, y, at) + load(like, y_bias, c)
            if dropped:
                added = added * keep(keys, at)
            value = load(like, x, at) + added
            store(s, at, value)
            sums = sums + value
        mean = total(sums) / count
        middle, squares = spread(like, mean), floats16()
        for c in range(0, channels, 16):
            away = load(like, s, first + c) - middle
            squares = squares + away * away
        scale = np.float32(1) / np.sqrt(total(squares) / count + np.float32(eps))
        put(spreads, row, mean)
        put(spreads, rows + row, scale)
        factor = spread(like, scale)
        for c in range(0, channels, 16):
            normed = (load(like, s, first + c) - middle) * factor
            store(n, first + c, normed * load(like, weight, c) + load(like, bias, c))


@njit(cache=True, nogil=True, error_model="numpy")
def _backward(pointers, channels, rows, dropped, keys, begin, end):
    grad_s, grad_n, s, weight, grad_x, grad_y, spreads, of_y_bias, of_weight, of_bias = pointers
    like = floats16()
    count = np.float32(channels)
    for row in range(begin * _ROWS, min(end * _ROWS, rows)):
        first, part = row * channels, row // _ROWS * channels
        middle = spread(like, value_at(like, spreads, row))
        factor = spread(like, value_at(like, spreads, rows + row))
        sums, products = floats16(), floats16()
        for c in range(0, channels, 16):
            normed = (load(like, s, first + c) - middle) * factor
            grad = load(like, grad_n, first + c)
            store(of_bias, part + c, load(like, of_bias, part + c) + grad)
            store(of_weight, part + c, load(like, of_weight, part + c) + grad * normed)
            grad = grad * load(like, weight, c)
            sums = sums + grad
            products = products + grad * normed
        mean = spread(like, total(sums) / count)
        slope = spread(like, total(products) / count)
        for c in range(0, channels, 16):
            at = first + c
            normed = (load(like, s, at) - middle) * factor
            grad = load(like, grad_n, at) * load(like, weight, c)
            grad = load(like, grad_s, at) + (grad - mean - normed * slope) * factor
            store(grad_x, at, grad)
            if dropped:
                grad = grad * keep(keys, at)
                store(grad_y, at, grad)
            store(of_y_bias, part + c, load(like, of_y_bias, part + c) + grad)
