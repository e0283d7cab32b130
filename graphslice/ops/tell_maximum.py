"""Some channels stay as they are; the others tell every row their largest value."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor


def tell_maximum(v: Tensor, mask: Tensor, kept: Tensor) -> Tensor:
    """``v`` in the channels that are kept; in the others the maximum over the valid rows, for every row.

    The gradient of a maximum goes to the rows that have it, in equal parts.

    Args:
        v: ``[B, N, C]``, floating point.
        mask: bool ``[B, N]``, the valid rows.
        kept: bool ``[C]``.

    Returns:
        ``[B, N, C]``; -inf in the channels that are not kept of a sample without valid rows.
    """
    if v.device.type == "cpu" and v.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling():
        return _NumbaTell.apply(v, mask, kept)
    return tell_in_torch(v, mask, kept)


def tell_in_torch(v: Tensor, mask: Tensor, kept: Tensor) -> Tensor:
    """:func:`tell_maximum` in plain torch, for any device and dtype."""
    largest = v.masked_fill(~mask[:, :, None], -torch.inf).amax(dim=1, keepdim=True)
    return torch.where(kept, v, largest)


class _NumbaTell(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v: Tensor, mask: Tensor, kept: Tensor) -> Tensor:
        v, kept = v.contiguous(), kept.to(v.dtype)
        out, largest = torch.empty_like(v), torch.empty(v.shape[0], v.shape[2], dtype=v.dtype)
        values = v.detach().numpy()
        _tell(values, mask.numpy(), kept.numpy(), out.numpy(), largest.numpy(), _constants(values))
        ctx.save_for_backward(v, mask, kept, largest)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        v, mask, kept, largest = (tensor.detach().numpy() for tensor in ctx.saved_tensors)
        result = torch.empty(grad.shape, dtype=grad.dtype)
        _tell_backward(grad.contiguous().numpy(), v, mask, kept, largest, result.numpy(), _constants(v))
        return result, None, None


def _constants(v: np.ndarray) -> np.ndarray:
    """0, 1 and -inf of the values' own type: another would make wider numbers of all that meets it."""
    return np.array([0, 1, -np.inf], dtype=v.dtype)


@njit(cache=True, nogil=True, error_model="numpy")
def _tell(v, mask, kept, out, largest, constants):
    batch, width, channels = v.shape
    zero, _, least = constants
    most, broken = np.empty(channels, v.dtype), np.empty(channels, v.dtype)
    for b in range(batch):
        most[:] = least
        broken[:] = zero
        for n in range(width):
            if mask[b, n]:
                for c in range(channels):
                    most[c] = max(most[c], v[b, n, c])
                for c in range(channels):
                    broken[c] += v[b, n, c] * zero  # no number where the value is none: it must not get lost
        for c in range(channels):
            most[c] += broken[c]
            largest[b, c] = most[c]
            most[c] = zero if kept[c] > zero else most[c]
        for n in range(width):
            for c in range(channels):
                out[b, n, c] = v[b, n, c] * kept[c] + most[c]  # a choice would keep the loop from vectors


@njit(cache=True, nogil=True, error_model="numpy")
def _tell_backward(grad, v, mask, kept, largest, result, constants):
    batch, width, channels = grad.shape
    zero, one, _ = constants
    total, count = np.empty(channels, grad.dtype), np.empty(channels, grad.dtype)
    for b in range(batch):
        most = largest[b]
        total[:] = zero
        count[:] = zero
        for n in range(width):
            for c in range(channels):
                total[c] += grad[b, n, c]
            if mask[b, n]:
                for c in range(channels):
                    count[c] += one if v[b, n, c] == most[c] else zero
        for c in range(channels):
            total[c] = total[c] * (one - kept[c]) / max(count[c], one)
        for n in range(width):
            if mask[b, n]:
                for c in range(channels):
                    share = total[c] if v[b, n, c] == most[c] else zero
                    result[b, n, c] = grad[b, n, c] * kept[c] + share
            else:
                for c in range(channels):
                    result[b, n, c] = grad[b, n, c] * kept[c]
