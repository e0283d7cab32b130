"""Max-pooling of some channels, broadcast to all rows; the other channels pass through."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphslice.ops.dispatch import operator
from graphslice.program.kernels import pooling
from graphslice.program.layout import N
from graphslice.program.trace import BATCH, Gradient, Trace, Traced, Upstream


@operator
def broadcast_max(v: Tensor, lengths: Tensor, local_channels: Tensor) -> Tensor:
    """Replace every non-local channel by its maximum over the valid rows, in every row.

    The gradient of a maximum is split equally between the rows that attain it.

    The numba backend supports float32 with C a multiple of 16.

    Args:
        v: ``[B, N, C]``, floating point.
        lengths: int64 ``[B]``, number of valid rows.
        local_channels: bool ``[C]``, True for channels that are returned unchanged.

    Returns:
        ``[B, N, C]``, dtype of ``v``; -inf in the non-local channels of a sample without valid rows.
    """
    padding = torch.arange(v.shape[1], device=v.device) >= lengths[:, None]
    maxima = v.masked_fill(padding[:, :, None], -torch.inf).amax(dim=1, keepdim=True)
    return torch.where(local_channels, v, maxima)


@broadcast_max.kernels(v="B N C", lengths="B int64", local_channels="C bool")
def _rule(trace: Trace, v: Any, lengths: Any, local_channels: Any) -> Traced:
    v, rows, channels = trace.activations(v)
    lengths = trace.tensor(lengths, BATCH, dtype=torch.int64)
    local = trace.tensor(local_channels, channels, dtype=torch.bool)
    trace.require(rows == N, f"maxima of {v.shape}")
    out, maxima = trace.new(v.shape), trace.new((BATCH, channels))
    trace.forward(pooling.broadcast_max, v, lengths, local, out, maxima, N, channels)
    operands = v, lengths, local, maxima, Upstream(out), Gradient(v)
    trace.backward(pooling.broadcast_max_gradient, *operands, N, channels)
    return out
