"""Permutation of every channel into the rank order of the first channel."""

from __future__ import annotations

import torch
from torch import Tensor

from graphslice.ops.column_sort import column_sort, trace_sort
from graphslice.ops.dispatch import operator
from graphslice.program.kernels import columns
from graphslice.program.layout import N
from graphslice.program.simd.lanes import float_bits
from graphslice.program.trace import Gradient, Trace, Traced, Upstream

#: Rows tie if their values in channel 1 differ by at most this fraction of the largest absolute value.
TIE = 1e-5


@operator
def sort_by_first(v: Tensor, lengths: Tensor, groups: int = 1) -> Tensor:
    """Permute every channel into the rank order of channel 1, within groups of rows (CSP, section 3).

    The numba backend supports float32 with C a multiple of 16 and one group.

    Args:
        v: ``[B, N, C]``, floating point.
        lengths: int64 ``[B]``, number of valid rows of each sample; the padding is not changed.
        groups: number of groups into which the valid rows of a sample are split.

    Returns:
        ``[B, N, C]``; channel 1 is unchanged, and values of rows that tie in channel 1 are averaged.
    """
    batch, width, channels = v.shape
    if groups == 1:
        return _sort_rows_by_first(v, lengths)
    number = torch.arange(groups, device=v.device)
    sizes = lengths[:, None] // groups + (number < lengths[:, None] % groups)
    starts = sizes.cumsum(1) - sizes
    rows = torch.arange(-(-width // groups), device=v.device)
    inside = rows < sizes[:, :, None]
    # [B, K, rows of the largest group]: row indices; beyond the end of a group any valid index serves.
    source = (starts[:, :, None] + rows).clamp_max(width - 1).view(batch, -1, 1).expand(-1, -1, channels)
    grouped = v.gather(1, source).view(batch * groups, len(rows), channels)
    permuted = _sort_rows_by_first(grouped, sizes.view(-1)).view(batch, -1, channels)
    discarded = torch.full_like(source, width)  # an additional row, which the last line removes
    target = torch.where(inside.view(batch, -1, 1), source, discarded)
    return torch.cat([v, v[:, :1]], dim=1).scatter(1, target, permuted)[:, :width]


@sort_by_first.kernels(v="B N C", lengths="B int64")
def _rule(trace: Trace, v, lengths, groups: int = 1) -> Traced:
    trace.require(groups == 1, f"a sort in {groups} groups")
    ordered, rows = trace_sort(trace, v, lengths, "ascending", keep_rows=True)
    out, sizes = trace.new(ordered.shape), (float_bits(TIE), N, ordered.shape[2])
    trace.forward(columns.average_ties, ordered, ordered, rows, lengths, out, 0, *sizes)
    operands = ordered, rows, lengths, Gradient(ordered), 1
    trace.backward(columns.average_ties, Upstream(out), *operands, *sizes)
    return out


def _sort_rows_by_first(v: Tensor, lengths: Tensor) -> Tensor:
    rows = torch.arange(v.shape[1], device=v.device)
    valid = rows < lengths[:, None]
    first = v[:, :, 0].detach().masked_fill(~valid, torch.nan)  # nan is sorted last
    sorted_first, order = torch.sort(first, dim=1, stable=True)
    ranks = torch.empty_like(order).scatter_(1, order, rows.expand_as(order).contiguous())
    ranks = torch.where(valid, ranks, rows)
    # Runs of ranks that tie. Comparisons with nan are false, so the padding forms no run.
    largest = sorted_first.masked_fill(~valid, 0).abs().amax(dim=1, keepdim=True)
    run_starts = ~(sorted_first.diff(dim=1) <= TIE * largest)
    runs = torch.nn.functional.pad(run_starts, (1, 0)).cumsum(1)[:, :, None].expand_as(v)
    total = torch.zeros_like(v).scatter_add(1, runs, column_sort(v, lengths))
    count = torch.zeros_like(v[:, :, :1]).scatter_add(1, runs[:, :, :1], torch.ones_like(v[:, :, :1]))
    means = total / count.clamp_min(1)
    return means.gather(1, runs.gather(1, ranks[:, :, None].expand_as(v)))
