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

    In groups of two rows a sort is the exchange of minimum and maximum, in O(N) (MaxMin; Anil et al. 2019). The numba
    backend supports float32 with C a multiple of 16, in one group or in groups of two.

    Args:
        v: ``[B, N, C]``, floating point.
        lengths: int64 ``[B]``, number of valid rows of each sample; the padding is not changed.
        groups: K, the number of groups into which the valid rows of a sample are split; the first have one row more
            if K does not divide the rows. 0 stands for ``K = ceil(length / 2)``, groups of two rows.

    Returns:
        ``[B, N, C]``; channel 1 is unchanged, and values of rows that tie in channel 1 are averaged.
    """
    batch, width, channels = v.shape
    if groups == 1:
        return _sort_rows_by_first(v, lengths)
    if groups == 0 or 2 * groups >= width:
        return _exchange_in_pairs(v, lengths - groups if groups else lengths // 2)
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
    trace.require(groups in (0, 1), f"a sort in {groups} groups")
    out, sizes = trace.new(v.shape), (float_bits(TIE), N, v.shape[2])
    if groups == 0:
        trace.forward(columns.exchange_in_pairs, v, v, lengths, out, *sizes)
        trace.backward(columns.exchange_in_pairs, v, Upstream(out), lengths, Gradient(v), *sizes)
        return out
    ordered, rows = trace_sort(trace, v, lengths, "ascending", keep_rows=True)
    trace.forward(columns.average_ties, ordered, ordered, rows, lengths, out, 0, *sizes)
    operands = ordered, rows, lengths, Gradient(ordered), 1
    trace.backward(columns.average_ties, Upstream(out), *operands, *sizes)
    return out


def _exchange_in_pairs(v: Tensor, pairs: Tensor) -> Tensor:
    """Sort each of the first ``pairs``, ``[B]``, of two rows by channel 1; later rows are unchanged."""
    one, other = v[:, :-1:2], v[:, 1::2]
    first, second = one[:, :, :1].detach(), other[:, :, :1].detach()
    is_pair = (torch.arange(one.shape[1], device=v.device) < pairs[:, None])[:, :, None]
    ties = is_pair & ((first - second).abs() <= TIE * torch.maximum(first.abs(), second.abs()))
    falls = ~(one <= other) & (other == other)  # nan is sorted last
    exchanged, mean = is_pair & (falls ^ falls[:, :, :1]), (one + other) / 2
    rows = [torch.where(ties, mean, torch.where(exchanged, b, a)) for a, b in ((one, other), (other, one))]
    return torch.cat([torch.stack(rows, dim=2).flatten(1, 2), v[:, 2 * one.shape[1] :]], dim=1)


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
