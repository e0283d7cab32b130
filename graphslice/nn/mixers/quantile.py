"""``P V`` alone, and with order statistics of it: the local map with a view of the whole molecule."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphslice.errors import InputError, nearest
from graphslice.nn.mixers.base import Mixer, Structure, register
from graphslice.ops import broadcast_max, column_quantiles

STATISTICS = ("maximum", "minimum", "fixed", "learnable")
SOURCES = ("map", "values")


@register("map-only")
class MapOnly(Mixer):
    """``P V``: the control, what remains of the slices without their sort. V itself without a graph."""

    reads = ("map",)
    equivariant = True

    def __init__(self, dim: int, heads: int, **settings) -> None:
        super().__init__(dim, heads, **settings)
        self.value = nn.Linear(dim, dim)

    def mixed(self, x: Tensor, structure: Structure) -> Tensor:
        return structure.mix(self.value(x), self.active_dropout)


@register("slice-quantile")
class SliceQuantile(Mixer):
    """Some channels keep ``P V``; the others give every row an order statistic of ``P V`` over all rows.

    Equivariant to the numbering, and differentiable in the values and, if learnable, in the place.

    Args:
        share: of the channels of each head that keep ``P V``; with ``apart``, of the heads.
        statistic: ``"maximum"``, ``"minimum"``, ``"fixed"`` quantiles evenly spread over the channels, or
            ``"learnable"`` ones that begin there. Between two values a quantile is linear.
        told: of what the statistic is: ``"map"``, of ``P V``, or ``"values"``, of V.
        apart: whether the first heads keep all of their channels and the last tell all of theirs.
    """

    reads = ("map",)
    equivariant = True
    kept: Tensor
    tells: Tensor
    quantiles: Tensor

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        share: float = 0.5,
        statistic: str = "maximum",
        told: str = "map",
        apart: bool = False,
        **settings,
    ) -> None:
        super().__init__(dim, heads, **settings)
        if not 0 <= share <= 1:
            raise InputError(f"the share of slice-quantile is from 0 to 1, not {share}")
        for name, value, known in (("statistic", statistic, STATISTICS), ("told", told, SOURCES)):
            if value not in known:
                raise InputError(f"unknown {name} {value!r}{nearest(value, known)}: choose from {', '.join(known)}")
        self.statistic, self.told = statistic, told
        self.value = nn.Linear(dim, dim)
        own = dim // heads
        kept = [(c // own < round(share * heads)) if apart else (c % own < round(share * own)) for c in range(dim)]
        self.register_buffer("kept", torch.tensor(kept), persistent=False)
        tells = [c for c in range(dim) if not kept[c]]
        self.register_buffer("tells", torch.tensor(tells, dtype=torch.int64), persistent=False)
        spread = (torch.arange(len(tells)) + 0.5) / max(1, len(tells))
        if statistic == "learnable":
            self.places = nn.Parameter(torch.logit(spread))
        else:
            self.register_buffer("quantiles", spread, persistent=False)

    def mixed(self, x: Tensor, structure: Structure) -> Tensor:
        v = self.value(x)
        mixed = structure.mix(v, self.active_dropout)
        if self.told == "values":
            mixed = torch.where(self.kept, mixed, v)
        if self.statistic == "maximum":
            return broadcast_max(mixed, structure.mask, self.kept)
        if self.statistic == "minimum":
            return -broadcast_max(-mixed, structure.mask, self.kept)
        places = torch.sigmoid(self.places) if self.statistic == "learnable" else self.quantiles
        told = column_quantiles(mixed.index_select(2, self.tells), structure.lengths, places[None])
        return mixed.index_copy(2, self.tells, told.expand(-1, mixed.shape[1], -1))
