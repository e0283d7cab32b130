"""Max-pooling of some channels, broadcast to all rows; the other channels pass through."""

from __future__ import annotations

import torch
from torch import Tensor

from graphslice.ops.dispatch import operator
from graphslice.program.kernels import columns
from graphslice.program.layout import N
from graphslice.program.trace import BATCH, Gradient, Trace, Traced, Upstream


@operator
def broadcast_max(v: Tensor, lengths: Tensor, local_channels: Tensor) -> Tensor:
    """Replace every non-local channel by its maximum over the valid rows, in every row.

    The gradient of a maximum is split equally between the rows that attain it.

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
def _rule(trace: Trace, v, lengths, local_channels) -> Traced:
    channels = v.shape[2]
    out, maxima = trace.new(v.shape), trace.new((BATCH, channels))
    trace.forward(columns.broadcast_max, v, lengths, local_channels, out, maxima, N, channels)
    operands = v, lengths, local_channels, maxima, Upstream(out), Gradient(v)
    trace.backward(columns.broadcast_max_gradient, *operands, N, channels)
    return out
