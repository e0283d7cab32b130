"""Softmax attention with a structural bias, as in Graphormer."""

from __future__ import annotations

from torch import Tensor

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers.base import Projected, register
from graphslice.ops import attention


@register("softmax")
class SoftmaxAttention(Projected):
    """Multi-head attention with structural bias (Ying et al. 2021, eqs. 6 and 7).

    Per head ``Softmax(Q K^T / sqrt(d) + S + E) V`` with d = C / H, S the spatial and E the edge encoding.
    """

    reads = ("attn_bias",)

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        return attention(q, k, v, context.attn_bias.to(q.dtype), self.heads, self.active_dropout)
