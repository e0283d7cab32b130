"""Structural aggregation ``P V``, alone or with maxima over all atoms of the molecule."""

from __future__ import annotations

import torch
from torch import Tensor

from graphslice.errors import InputError
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers.base import Aggregating, register
from graphslice.ops import broadcast_max


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
    """Structural aggregation in local channels, maxima over all rows in pooled channels.

    With ``A = P X W_v``, the output before the projection W_o is ``A_ic`` in a local channel c and
    ``max({A_jc : j valid})`` in a pooled channel, the same for every row i.

    Args:
        dim, heads, settings: as for :class:`Mixer`.
        keep_fraction: fraction of the channels of each head that are local.

    Raises:
        InputError: if ``keep_fraction`` is outside of [0, 1].
    """

    equivariant = True
    local_channels: Tensor

    def __init__(self, dim: int, heads: int, *, keep_fraction: float = 0.5, **settings) -> None:
        super().__init__(dim, heads, **settings)
        if not 0 <= keep_fraction <= 1:
            raise InputError(f"keep_fraction of mixer slice-quantile must be from 0 to 1, not {keep_fraction}")
        head_dim = dim // heads
        local = torch.arange(dim) % head_dim < round(keep_fraction * head_dim)
        self.register_buffer("local_channels", local, persistent=False)

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        aggregated = context.aggregate(self.value(x), self.active_dropout)
        return broadcast_max(aggregated, context.lengths, self.local_channels)
