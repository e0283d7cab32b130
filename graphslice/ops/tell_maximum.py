"""Some channels stay as they are; the others tell every row their largest value."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor


def tell_maximum(v: Tensor, mask: Tensor, kept: Tensor) -> Tensor:
    """``v`` in the channels that are kept; in the others the maximum over the valid rows, for every row.

    The gradient of a maximum goes to a row that has it.

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
    largest = v.masked_fill(~mask[:, :, None], -torch.inf).max(dim=1, keepdim=True).values
    return torch.where(kept, v, largest)


class _NumbaTell(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v: Tensor, mask: Tensor, kept: Tensor) -> Tensor:
        v = v.contiguous()
        out, rows = torch.empty_like(v), torch.empty(v.shape[0], v.shape[2], dtype=torch.int32)
        _tell(v.detach().numpy(), mask.numpy(), kept.numpy(), out.numpy(), rows.numpy())
        ctx.save_for_backward(kept, rows)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        kept, rows = ctx.saved_tensors
        result = torch.empty(grad.shape, dtype=grad.dtype)
        _tell_backward(
            grad.contiguous().numpy(), kept.numpy(), kept.to(grad.dtype).numpy(), rows.numpy(), result.numpy()
        )
        return result, None, None


@njit(cache=True, nogil=True, error_model="numpy")
def _tell(v, mask, kept, out, rows):
    batch, width, channels = v.shape
    largest = np.empty(channels, v.dtype)
    for b in range(batch):
        where = rows[b]
        largest[:] = -np.inf
        where[:] = 0
        for n in range(width):
            if mask[b, n]:
                row = v[b, n]
                for c in range(channels):
                    take = row[c] > largest[c] or row[c] != row[c]  # a nan is the largest, as for torch
                    where[c] = n if take else where[c]
                    largest[c] = row[c] if take else largest[c]
        for n in range(width):
            row, into = v[b, n], out[b, n]
            for c in range(channels):
                into[c] = row[c] if kept[c] else largest[c]


@njit(cache=True, nogil=True, error_model="numpy")
def _tell_backward(grad, kept, scale, rows, result):
    batch, width, channels = grad.shape
    total = np.empty(channels, grad.dtype)
    for b in range(batch):
        total[:] = 0
        for n in range(width):
            row, into = grad[b, n], result[b, n]
            for c in range(channels):
                total[c] += row[c]
                into[c] = row[c] * scale[c]
        for c in range(channels):
            if not kept[c]:
                result[b, rows[b, c], c] = total[c]
