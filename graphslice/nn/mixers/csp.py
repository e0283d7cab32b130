"""Channel-wise sample permutation (CSP): every channel is permuted into the rank order of the first channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphslice.errors import InputError, nearest
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers.base import Mixer, register
from graphslice.ops import column_sort
from graphslice.ops.base_tracer import NotTraceable
from graphslice.ops.program import Value
from graphslice.ops.tracer import Tracer

SHIFTS = ("none", "linear", "power")

#: Rows tie if their values in channel 1 differ by at most this fraction of the largest absolute value.
TIE = 1e-5


@register("csp")
class CSP(Mixer):
    """Channel-wise sample permutation (CSP, section 3).

    ``y = W_o concat_c GSort_K(S_{J_c} v_c)`` with ``V = X W`` (on molecules ``V = P X W``). Channel c is shifted
    circularly by ``J_c`` rows (S), then the valid rows are split into K groups, and within each group the values of
    every channel are permuted into the rank order of channel 1: the largest value goes to the row where channel 1 is
    largest. This is the optimal transport between the two channels. Rows that tie in channel 1, such as symmetric
    atoms, get the mean of their values; otherwise rounding errors would decide their order.

    Args:
        dim, heads, settings: as for :class:`Mixer`.
        groups: K; if K does not divide the number of rows, the first groups have one row more.
        shifts: ``"none"``; ``"linear"``, ``J_c = c ceil(N / C)`` with c from 0; or ``"power"``, ``J^(c - 1) - 1`` with
            ``J = N^(1 / (L C - 1))``, where c counts from 1 over the channels of all layers. Sorting with one group
            undoes linear shifts, because these do not move channel 1.
        sort: if False, the channels are only shifted.

    Raises:
        InputError: if ``groups`` is less than 1 or ``shifts`` is unknown.
    """

    reads = ("attn_weights",)

    def __init__(
        self, dim: int, heads: int, *, groups: int = 1, shifts: str = "none", sort: bool = True, **settings
    ) -> None:
        super().__init__(dim, heads, **settings)
        if groups < 1:
            raise InputError(f"groups of mixer csp must be at least 1, not {groups}")
        if shifts not in SHIFTS:
            raise InputError(f"unknown shifts {shifts!r}{nearest(shifts, SHIFTS)}: choose from {', '.join(SHIFTS)}")
        self.groups, self.shifts, self.sort = groups, shifts, sort
        # Sorting all rows by rank does not depend on their numbering, unless channel 1 was shifted.
        self.equivariant = sort and groups == 1 and shifts != "power"
        self.value = nn.Linear(dim, dim)

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        v = context.aggregate(self.value(x), self.active_dropout)
        if self.shifts != "none":
            v = self._shifted(v, context.lengths)
        return sort_by_first(v, context.lengths, self.groups) if self.sort else v

    def trace_mix(self, tracer: Tracer, x: Value) -> Value:
        if self.groups > 1 or self.shifts != "none" or not self.sort:
            raise NotTraceable
        return tracer.sort_by_first(tracer.aggregate(tracer.linear(x, self.value), self.active_dropout), TIE)

    def shift_steps(self, lengths: Tensor) -> Tensor:
        """Compute the circular shifts J of the channels.

        Args:
            lengths: int64 ``[B]``, number of valid rows of each sample.

        Returns:
            int64 ``[B, C]``, numbers of rows.
        """
        rows = lengths[:, None].clamp_min(1)
        channels = torch.arange(self.dim, device=lengths.device)
        if self.shifts == "linear":
            return channels * (-(-rows // self.dim)) % rows
        position = (self.layer - 1) * self.dim + channels
        exponent = position.double() / max(1, self.layers * self.dim - 1)
        # The small addend makes the shift of the last channel of the last layer N - 1 in spite of rounding.
        return (rows.double() ** exponent - 1 + 1e-9).long() % rows

    def _shifted(self, v: Tensor, lengths: Tensor) -> Tensor:
        rows = torch.arange(v.shape[1], device=v.device)[None, :, None]
        size = lengths[:, None, None]
        source = (rows + self.shift_steps(lengths)[:, None, :]) % size.clamp_min(1)
        return v.gather(1, torch.where(rows < size, source, rows))


def sort_by_first(v: Tensor, lengths: Tensor, groups: int = 1) -> Tensor:
    """Permute every channel into the rank order of channel 1, within groups of rows.

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
