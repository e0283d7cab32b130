"""Channel-wise sample permutation: every channel arranged in the rank order of the first."""

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

#: Rows tie whose values in channel 1 are nearer than this share of the largest.
TIE = 1e-5


@register("csp")
class CSP(Mixer):
    """``||_c GSort_K(S_{J_c} v_c)`` of ``V = X W`` (on molecules ``P X W``), and an output projection.

    Channel c is shifted circularly by ``J_c`` rows, then the rows are cut into K groups, and in each
    the values of every channel are arranged as those of channel 1 rank there: the largest where
    channel 1 has its largest. That is the optimal transport between the two (CSP, section 3). Rows
    that tie in channel 1 share their values: symmetric atoms tie, and which of them came first would
    be up to the last bit of the arithmetic.

    Args:
        groups: K; the first groups take one row more where K does not divide the rows.
        shifts: ``"none"``; ``"linear"``, ``J_c = c ceil(N / C)``; or ``"power"``, ``J^(c - 1) - 1`` with
            ``J = N^(1 / (L C - 1))``, c counting from 1 over the channels of all layers. Complete sorting
            undoes the linear ones, which leave channel 1 where it is.
        sort: whether to sort; without, the channels are only shifted.
    """

    reads = ("attn_weights",)

    def __init__(
        self, dim: int, heads: int, *, groups: int = 1, shifts: str = "none", sort: bool = True, **settings
    ) -> None:
        super().__init__(dim, heads, **settings)
        if groups < 1:
            raise InputError(f"csp needs at least 1 group, not {groups}")
        if shifts not in SHIFTS:
            raise InputError(f"unknown shifts {shifts!r}{nearest(shifts, SHIFTS)}: choose from {', '.join(SHIFTS)}")
        self.groups, self.shifts, self.sort = groups, shifts, sort
        # Complete sorting by ranks does not ask how the rows are numbered, unless channel 1 was moved.
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
        """``int64 [B, C]``: by how many rows each channel of each sample is shifted."""
        rows = lengths[:, None].clamp_min(1)
        channels = torch.arange(self.dim, device=lengths.device)
        if self.shifts == "linear":
            return channels * (-(-rows // self.dim)) % rows
        place = (self.layer - 1) * self.dim + channels
        exponent = place.double() / max(1, self.layers * self.dim - 1)
        # The last channel of the last layer is to go N - 1 steps, whatever the rounding.
        return (rows.double() ** exponent - 1 + 1e-9).long() % rows

    def _shifted(self, v: Tensor, lengths: Tensor) -> Tensor:
        rows = torch.arange(v.shape[1], device=v.device)[None, :, None]
        size = lengths[:, None, None]
        source = (rows + self.shift_steps(lengths)[:, None, :]) % size.clamp_min(1)
        return v.gather(1, torch.where(rows < size, source, rows))


def sort_by_first(v: Tensor, lengths: Tensor, groups: int = 1) -> Tensor:
    """In each group of rows, arrange every channel as channel 1 ranks.

    Args:
        v: ``[B, N, C]``.
        lengths: ``[B]``, the valid rows; the others stay.
        groups: how many groups the valid rows of a sample are cut into.

    Returns:
        ``[B, N, C]``; its channel 1 is that of ``v``.
    """
    batch, width, channels = v.shape
    if groups == 1:
        return _sort_rows_by_first(v, lengths)
    number = torch.arange(groups, device=v.device)
    sizes = lengths[:, None] // groups + (number < lengths[:, None] % groups)
    begins = sizes.cumsum(1) - sizes
    rows = torch.arange(-(-width // groups), device=v.device)
    inside = rows < sizes[:, :, None]
    # [B, K, rows of a group]: where they stand; of a place that a group has not, its last.
    where = (begins[:, :, None] + rows).clamp_max(width - 1).view(batch, -1, 1).expand(-1, -1, channels)
    cut = v.gather(1, where).view(batch * groups, len(rows), channels)
    arranged = _sort_rows_by_first(cut, sizes.view(-1)).view(batch, -1, channels)
    nowhere = torch.full_like(where, width)  # a row of its own, that is cut off again
    target = torch.where(inside.view(batch, -1, 1), where, nowhere)
    return torch.cat([v, v[:, :1]], dim=1).scatter(1, target, arranged)[:, :width]


def _sort_rows_by_first(v: Tensor, lengths: Tensor) -> Tensor:
    rows = torch.arange(v.shape[1], device=v.device)
    valid = rows < lengths[:, None]
    first = v[:, :, 0].detach().masked_fill(~valid, torch.nan)  # the padding behind all others
    ordered, order = torch.sort(first, dim=1, stable=True)
    ranks = torch.empty_like(order).scatter_(1, order, rows.expand_as(order).contiguous())
    ranks = torch.where(valid, ranks, rows)
    # Runs of ranks that tie; a difference from nan is not small, so the padding makes none.
    ends = ordered.masked_fill(~valid, 0).abs().amax(dim=1, keepdim=True)
    apart = ~(ordered.diff(dim=1) <= TIE * ends)
    runs = torch.nn.functional.pad(apart, (1, 0)).cumsum(1)[:, :, None].expand_as(v)
    total = torch.zeros_like(v).scatter_add(1, runs, column_sort(v, lengths))
    count = torch.zeros_like(v[:, :, :1]).scatter_add(1, runs[:, :, :1], torch.ones_like(v[:, :, :1]))
    shared = total / count.clamp_min(1)
    return shared.gather(1, runs.gather(1, ranks[:, :, None].expand_as(v)))
