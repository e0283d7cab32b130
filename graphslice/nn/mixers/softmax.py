"""Softmax attention with a structural bias: Graphormer."""

from __future__ import annotations

from torch import Tensor

from graphslice.nn.mixers.base import Projected, Structure, register
from graphslice.ops import attention


@register("softmax")
class SoftmaxAttention(Projected):
    """``Softmax(Q K^T / sqrt(d) + S + E) V`` and an output projection (Ying et al. 2021, eq. 7)."""

    reads = ("bias",)

    def mixed(self, x: Tensor, structure: Structure) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        return attention(q, k, v, structure.bias, self.heads, self.active_dropout)
