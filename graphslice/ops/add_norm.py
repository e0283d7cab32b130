"""A residual connection and the layer norm after it, in one pass over the memory."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dropout import draw_keys, dropout, keep, scale_of
from graphslice.ops.lanes import floats16, load, spread, store, total
from graphslice.ops.parallel import over_parts

# Rows whose gradients of weight and bias are summed together, whatever the number of threads:
# so the sums do not depend on it.
_ROWS = 128


def add_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, p: float = 0.0, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """``s = x + dropout(y)`` and ``LayerNorm(s)``.

    Args:
        x, y: ``[..., C]`` of one shape, floating point.
        weight, bias: ``[C]`` of the norm.
        p: probability of the dropout; 0 for none.
        eps: of the norm.

    Returns:
        The sum and its norm, both of the shape of ``x``.
    """
    channels = x.shape[-1]
    ours = x.device.type == "cpu" and x.dtype == y.dtype == weight.dtype == torch.float32 and channels % 16 == 0
    if ours and x.numel() and not torch.compiler.is_compiling():
        return _AddNorm.apply(x, y, weight, bias, draw_keys(p) if p else None, eps)
    s = x + dropout(y, p)
    return s, F.layer_norm(s, (channels,), weight, bias, eps)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, keys: np.ndarray | None, eps: float):
        channels = x.shape[-1]
        s = torch.empty(x.shape)
        n = torch.empty(x.shape)
        rows = x.numel() // channels
        spreads = torch.empty(2, rows)
        ctx.dropped, ctx.keys = keys is not None, np.zeros(4, np.int32) if keys is None else keys
        flat = [t.detach().contiguous().view(-1).numpy() for t in (x, y, weight, bias, s, n)]
        means, scales = spreads.numpy()

        def kernel(begin: int, end: int) -> None:
            _forward(*flat, means, scales, ctx.keys, ctx.dropped, np.float32(eps), begin, end)

        over_parts(kernel, rows, x.numel())
        ctx.save_for_backward(s, weight, spreads)
        ctx.set_materialize_grads(False)
        return s, n

    @staticmethod
    def backward(ctx, grad_s: Tensor | None, grad_n: Tensor | None):
        s, weight, spreads = ctx.saved_tensors
        if grad_n is None:
            grad_n = torch.zeros_like(s)
        if grad_s is None:
            grad_s = torch.zeros_like(s)
        channels = s.shape[-1]
        rows = s.numel() // channels
        parts = -(-rows // _ROWS)
        grad_x = torch.empty_like(s)
        grad_y = torch.empty_like(s) if ctx.dropped else grad_x
        sums = torch.zeros(2, parts, channels)
        flat = [t.contiguous().view(-1).numpy() for t in (grad_s, grad_n, s, weight.detach(), grad_x, grad_y)]
        means, scales = spreads.numpy()
        of_weight, of_bias = sums.view(2, -1).numpy()

        def kernel(begin: int, end: int) -> None:
            _backward(*flat, means, scales, ctx.keys, ctx.dropped, of_weight, of_bias, begin, end)

        over_parts(kernel, parts, s.numel())
        of_weight, of_bias = sums.sum(dim=1)
        return grad_x, grad_y, of_weight, of_bias, None, None


@njit(cache=True, nogil=True, error_model="numpy")
def _forward(x, y, weight, bias, s, n, means, scales, keys, dropped, eps, begin, end):
    like = floats16()
    channels = len(weight)
    count = np.float32(channels)
    stays = scale_of(keys)
    for row in range(begin, end):
        first = row * channels
        sums = floats16()
        for c in range(0, channels, 16):
            at = first + c
            added = load(like, y, at)
            if dropped:
                added = added * keep(keys, at, stays)
            value = load(like, x, at) + added
            store(s, at, value)
            sums = sums + value
        mean = total(sums) / count
        middle, squares = spread(like, mean), floats16()
        for c in range(0, channels, 16):
            away = load(like, s, first + c) - middle
            squares = squares + away * away
        scale = np.float32(1) / np.sqrt(total(squares) / count + eps)
        means[row], scales[row] = mean, scale
        factor = spread(like, scale)
        for c in range(0, channels, 16):
            normed = (load(like, s, first + c) - middle) * factor
            store(n, first + c, normed * load(like, weight, c) + load(like, bias, c))


@njit(cache=True, nogil=True, error_model="numpy")
def _backward(
    grad_s, grad_n, s, weight, grad_x, grad_y, means, scales, keys, dropped, of_weight, of_bias, begin, end
):
    like = floats16()
    channels = len(weight)
    count = np.float32(channels)
    stays = scale_of(keys)
    for row in range(begin * _ROWS, min(end * _ROWS, len(means))):
        first, part = row * channels, row // _ROWS * channels
        middle, factor = spread(like, means[row]), spread(like, scales[row])
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
                store(grad_y, at, grad * keep(keys, at, stays))
