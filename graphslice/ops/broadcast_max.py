"""Max-pooling of some channels, broadcast to all rows; the other channels pass through."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.dispatch import operator
from graphslice.ops.double_backward import once_differentiable


@operator
def broadcast_max(v: Tensor, mask: Tensor, local_channels: Tensor) -> Tensor:
    """Replace every non-local channel by its maximum over the valid rows, in every row.

    The gradient of a maximum is split equally between the rows that attain it.

    The numba backend supports float32 and float64.

    Args:
        v: ``[B, N, C]``, floating point.
        mask: bool ``[B, N]``, True for valid rows.
        local_channels: bool ``[C]``, True for channels that are returned unchanged.

    Returns:
        ``[B, N, C]``, dtype of ``v``; -inf in the non-local channels of a sample without valid rows.
    """
    maxima = v.masked_fill(~mask[:, :, None], -torch.inf).amax(dim=1, keepdim=True)
    return torch.where(local_channels, v, maxima)


def _fits(v: Tensor, mask: Tensor, local_channels: Tensor) -> bool:
    if v.dim() != 3 or mask.shape != v.shape[:2] or local_channels.shape != v.shape[2:]:
        return False
    return mask.dtype == local_channels.dtype == torch.bool


@broadcast_max.backend("numba", dtypes=(torch.float32, torch.float64), fits=_fits)
def _numba(v: Tensor, mask: Tensor, local_channels: Tensor) -> Tensor:
    return _BroadcastMax.apply(v, mask, local_channels)


class _BroadcastMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v: Tensor, mask: Tensor, local_channels: Tensor) -> Tensor:
        v, local = v.contiguous(), local_channels.to(v.dtype)
        out, maxima = torch.empty_like(v), torch.empty(v.shape[0], v.shape[2], dtype=v.dtype)
        values = v.detach().numpy()
        _forward(values, mask.numpy(), local.numpy(), out.numpy(), maxima.numpy(), _constants(values))
        ctx.save_for_backward(v, mask, local, maxima)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        v, mask, local, maxima = (tensor.detach().numpy() for tensor in ctx.saved_tensors)
        grad_v = torch.empty(grad.shape, dtype=grad.dtype)
        _backward(grad.contiguous().numpy(), v, mask, local, maxima, grad_v.numpy(), _constants(v))
        return grad_v, None, None


def _constants(v: np.ndarray) -> np.ndarray:
    """Return 0, 1 and -inf in the dtype of ``v``; literals would promote float32 to float64 in the kernel."""
    return np.array([0, 1, -np.inf], dtype=v.dtype)


@njit(cache=True, nogil=True, error_model="numpy")
def _forward(v, mask, local, out, maxima, constants):
    batch, width, channels = v.shape
    zero, _, lowest = constants
    largest, nans = np.empty(channels, v.dtype), np.empty(channels, v.dtype)
    for b in range(batch):
        largest[:] = lowest
        nans[:] = zero
        for n in range(width):
            if mask[b, n]:
                for c in range(channels):
                    largest[c] = max(largest[c], v[b, n, c])
                for c in range(channels):
                    nans[c] += v[b, n, c] * zero  # nan if the value is nan or infinite, as max() drops nan
        for c in range(channels):
            largest[c] += nans[c]
            maxima[b, c] = largest[c]
            largest[c] = zero if local[c] > zero else largest[c]
        for n in range(width):
            for c in range(channels):
                out[b, n, c] = v[b, n, c] * local[c] + largest[c]  # a branch would prevent vectorisation


@njit(cache=True, nogil=True, error_model="numpy")
def _backward(grad, v, mask, local, maxima, grad_v, constants):
    batch, width, channels = grad.shape
    zero, one, _ = constants
    total, count = np.empty(channels, grad.dtype), np.empty(channels, grad.dtype)
    for b in range(batch):
        largest = maxima[b]
        total[:] = zero
        count[:] = zero
        for n in range(width):
            for c in range(channels):
                total[c] += grad[b, n, c]
            if mask[b, n]:
                for c in range(channels):
                    count[c] += one if v[b, n, c] == largest[c] else zero
        for c in range(channels):
            total[c] = total[c] * (one - local[c]) / max(count[c], one)
        for n in range(width):
            if mask[b, n]:
                for c in range(channels):
                    part = total[c] if v[b, n, c] == largest[c] else zero
                    grad_v[b, n, c] = grad[b, n, c] * local[c] + part
            else:
                for c in range(channels):
                    grad_v[b, n, c] = grad[b, n, c] * local[c]
