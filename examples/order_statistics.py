"""A mixer outside the package: ``slice-quantile`` with other order statistics, for the ablations of docs/mixers.md.

    GRAPHSLICE_MIXERS=examples/order_statistics.py graphslice compare --dataset demo --mixers \\
        slice-quantile,order-statistics:statistic=minimum,order-statistics:source=values --seeds 2 --budget 6epochs
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphslice.errors import InputError
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import Mixer, register
from graphslice.ops import column_quantiles

# Quantile of each statistic; None: evenly spaced over the pooled channels.
STATISTICS = {"maximum": 1.0, "minimum": 0.0, "fixed": None, "learnable": None}


@register("order-statistics")
class OrderStatistics(Mixer):
    """``P V`` in local channels, and a quantile over all rows in pooled channels: of P V, or (``source``) of V."""

    reads = ("attn_weights",)
    equivariant = True

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        statistic: str = "maximum",
        source: str = "aggregated",
        split_by_head: bool = False,
        **settings,
    ) -> None:
        super().__init__(dim, heads, **settings)
        if statistic not in STATISTICS or source not in ("aggregated", "values"):
            raise InputError(f"unknown statistic {statistic} or source {source}")
        self.source, self.value = source, nn.Linear(dim, dim)
        head, channel = torch.arange(dim) // (dim // heads), torch.arange(dim) % (dim // heads)
        local = head < heads // 2 if split_by_head else channel < dim // heads // 2
        pooled = (~local).nonzero()[:, 0]
        self.register_buffer("pooled", pooled, persistent=False)
        q = (torch.arange(len(pooled)) + 0.5) / len(pooled)
        level = STATISTICS[statistic]
        self.logits = nn.Parameter(torch.logit(q)) if statistic == "learnable" else None
        self.register_buffer("q", q if level is None else torch.full_like(q, level), persistent=False)

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        v = self.value(x)
        aggregated = context.aggregate(v, self.active_dropout)
        pooled = (aggregated if self.source == "aggregated" else v).index_select(2, self.pooled)
        q = self.q if self.logits is None else torch.sigmoid(self.logits)
        maxima = column_quantiles(pooled, context.lengths, q[None])  # [B, 1, pooled channels]
        return aggregated.index_copy(2, self.pooled, maxima.expand(-1, x.shape[1], -1))
