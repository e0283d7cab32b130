"""Structural aggregation ``P V``, alone or with order statistics over all atoms of the molecule."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from graphslice.errors import InputError, nearest
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers.base import Aggregating, register
from graphslice.ops import broadcast_max, column_quantiles

STATISTICS = ("maximum", "minimum", "fixed", "learnable")
SOURCES = ("aggregated", "values")


@register("map-only")
class MapOnly(Aggregating):
    """Structural aggregation, ``y = W_o P X W_v``: the slice mixers without sorting, as a control experiment.

    Without a graph P is the identity.
    """

    equivariant = True

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        return context.aggregate(self.value(x), self.active_dropout)


@register("slice-quantile")
class SliceQuantile(Aggregating):
    """Structural aggregation in local channels, order statistics over all rows in pooled channels.

    With ``V = X W_v`` and ``A = P V``, the output before the projection W_o is ``A_ic`` in a local channel c and
    ``quantile_{q_c}({A_jc : j valid})`` in a pooled channel, the same for every row i. The mixer is
    permutation-equivariant, and differentiable in the values and, if learnable, in q. Quantiles are interpolated
    linearly.

    Args:
        dim, heads, settings: as for :class:`Mixer`.
        keep_fraction: fraction of the channels of each head that are local; with ``split_by_head``, of the heads.
        statistic: ``"maximum"``, ``"minimum"``, ``"fixed"`` (quantiles evenly spaced over the pooled channels) or
            ``"learnable"`` (quantiles initialised like the fixed ones).
        source: input of the statistic: ``"aggregated"``, A, or ``"values"``, V.
        split_by_head: if True, the first heads are entirely local and the others entirely pooled.

    Raises:
        InputError: if ``keep_fraction`` is outside of [0, 1], or ``statistic`` or ``source`` is unknown.
    """

    equivariant = True
    local_channels: Tensor
    pooled_index: Tensor
    q: Tensor

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        keep_fraction: float = 0.5,
        statistic: str = "maximum",
        source: str = "aggregated",
        split_by_head: bool = False,
        **settings,
    ) -> None:
        super().__init__(dim, heads, **settings)
        if not 0 <= keep_fraction <= 1:
            raise InputError(f"keep_fraction of mixer slice-quantile must be from 0 to 1, not {keep_fraction}")
        for name, value, known in (("statistic", statistic, STATISTICS), ("source", source, SOURCES)):
            if value not in known:
                raise InputError(f"unknown {name} {value!r}{nearest(value, known)}: choose from {', '.join(known)}")
        self.statistic, self.source = statistic, source
        local = _local_channels(dim, heads, keep_fraction, split_by_head)
        pooled_index = np.flatnonzero(~local)
        self.register_buffer("local_channels", torch.tensor(local), persistent=False)
        self.register_buffer("pooled_index", torch.tensor(pooled_index, dtype=torch.int64), persistent=False)
        pooled = len(pooled_index)
        q = (torch.arange(pooled) + 0.5) / max(1, pooled)
        if statistic == "learnable":
            self.q_logits = nn.Parameter(torch.logit(q))
        else:
            self.register_buffer("q", q, persistent=False)

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        v = self.value(x)
        aggregated = context.aggregate(v, self.active_dropout)
        if self.source == "values":
            aggregated = torch.where(self.local_channels, aggregated, v)
        if self.statistic == "maximum":
            return broadcast_max(aggregated, context.lengths, self.local_channels)
        if self.statistic == "minimum":
            return -broadcast_max(-aggregated, context.lengths, self.local_channels)
        q = torch.sigmoid(self.q_logits) if self.statistic == "learnable" else self.q
        pooled = column_quantiles(aggregated.index_select(2, self.pooled_index), context.lengths, q[None])
        return aggregated.index_copy(2, self.pooled_index, pooled.expand(-1, x.shape[1], -1))


def _local_channels(dim: int, heads: int, keep_fraction: float, split_by_head: bool) -> np.ndarray:
    """Compute the mask of local channels, bool ``[C]``."""
    head_dim = dim // heads
    head, channel_of_head = np.arange(dim) // head_dim, np.arange(dim) % head_dim
    if split_by_head:
        return head < round(keep_fraction * heads)
    return channel_of_head < round(keep_fraction * head_dim)
