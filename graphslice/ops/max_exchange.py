"""Exchange of the maximum of every channel with the value of the first row."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.dispatch import operator
from graphslice.ops.double_backward import once_differentiable

#: Distances to the maximum, relative to the size of the exchange, between which the weight of a row falls from 1 to 0.
TIE = (1e-3, 0.1)


@operator
def max_exchange(v: Tensor, mask: Tensor) -> Tensor:
    """Exchange the maximum of every channel with the value of the first row (Sliceformer, section 3.3).

    Symmetric molecules have many equal rows. A hard exchange would choose one of them by atom order or by rounding
    errors, so tied rows share the exchange. Row j has a weight w_j that is 1 while its distance to the maximum is below
    ``TIE[0]`` times the size of the exchange and falls linearly to 0 at ``TIE[1]`` times it; the weights are normalised
    to sum to 1. The map is doubly stochastic and continuous in v; without ties it swaps two entries. The weights have
    no gradient, like the indices of a hard exchange.

    The numba backend supports float32 and float64.

    Args:
        v: ``[B, N, C]``, floating point.
        mask: bool ``[B, N]``, True for valid rows; row 0 is valid.

    Returns:
        ``[B, N, C]``, dtype of ``v``; rows outside the mask are unchanged.
    """
    with torch.no_grad():
        first = v[:, :1]
        others = v.masked_fill(~mask[:, :, None], -torch.inf)
        others[:, 0] = -torch.inf
        largest = others.amax(dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).min)
        exchange = (largest - first).clamp_min(0)  # 0 if the first row already has the maximum
        steepness = 1 / ((TIE[1] - TIE[0]) * exchange).clamp_min(torch.finfo(v.dtype).tiny)
        weight = ((others - largest + TIE[1] * exchange) * steepness).clamp(0, 1)
        weight = weight / weight.sum(dim=1, keepdim=True).clamp_min(1)
    moved = weight * (v[:, :1] - v)
    return torch.cat([v[:, :1] - moved.sum(dim=1, keepdim=True), (v + moved)[:, 1:]], dim=1)


def _fits(v: Tensor, mask: Tensor) -> bool:
    return v.dim() == 3 and mask.shape == v.shape[:2] and mask.dtype == torch.bool


@max_exchange.backend("numba", dtypes=(torch.float32, torch.float64), fits=_fits)
def _numba(v: Tensor, mask: Tensor) -> Tensor:
    return _MaxExchange.apply(v, mask)


class _MaxExchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v: Tensor, mask: Tensor) -> Tensor:
        v = v.contiguous()
        out, weight = torch.empty_like(v), torch.empty_like(v)
        values = v.detach().numpy()
        constants = np.array([0, 1, TIE[1], TIE[1] - TIE[0], np.finfo(values.dtype).tiny], dtype=values.dtype)
        exchange_rows(values, mask.numpy(), out.numpy(), weight.numpy(), constants)
        ctx.save_for_backward(weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        (weight,) = ctx.saved_tensors
        result = torch.empty_like(weight)
        exchange_gradients(grad.contiguous().numpy(), weight.numpy(), result.numpy())
        return result, None


@njit(cache=True, nogil=True, error_model="numpy")
def exchange_rows(v, mask, out, weight, constants):
    """Write the result and the row weights, both ``[B, N, C]``; ``constants`` have the dtype of v."""
    batch, rows, channels = v.shape
    largest, exchange, steepness = np.empty(channels, v.dtype), np.empty(channels, v.dtype), np.empty(channels, v.dtype)
    total, moved = np.empty(channels, v.dtype), np.empty(channels, v.dtype)
    zero, one, high, span, tiny = constants
    for b in range(batch):
        first = v[b, 0]
        largest[:] = -np.inf
        for j in range(1, rows):
            if mask[b, j]:
                for c in range(channels):
                    largest[c] = max(largest[c], v[b, j, c])
        for c in range(channels):
            exchange[c] = max(largest[c] - first[c], zero)
            steepness[c] = one / max(span * exchange[c], tiny)
            total[c], moved[c] = zero, zero
        weight[b, 0] = zero
        for j in range(1, rows):
            if mask[b, j]:
                for c in range(channels):
                    w = (v[b, j, c] - largest[c] + high * exchange[c]) * steepness[c]
                    w = min(max(w, zero), one)
                    weight[b, j, c] = w
                    total[c] += w
            else:
                weight[b, j] = zero
        for c in range(channels):
            total[c] = max(total[c], one)
        for j in range(1, rows):
            if mask[b, j]:
                for c in range(channels):
                    w = weight[b, j, c] / total[c]
                    weight[b, j, c] = w
                    step = w * (first[c] - v[b, j, c])
                    out[b, j, c] = v[b, j, c] + step
                    moved[c] += step
            else:
                out[b, j] = v[b, j]
        for c in range(channels):
            out[b, 0, c] = first[c] - moved[c]


@njit(cache=True, nogil=True)
def exchange_gradients(grad, weight, result):
    """Compute the gradient of v, ``[B, N, C]``, from the upstream gradient and the row weights."""
    batch, rows, channels = grad.shape
    for b in range(batch):
        for c in range(channels):
            result[b, 0, c] = grad[b, 0, c]
        for j in range(1, rows):
            for c in range(channels):
                step = weight[b, j, c] * (grad[b, 0, c] - grad[b, j, c])
                result[b, j, c] = grad[b, j, c] + step
                result[b, 0, c] -= step
