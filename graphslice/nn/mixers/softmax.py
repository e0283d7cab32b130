"""Softmax attention with a structural bias: Graphormer."""

from __future__ import annotations

from torch import Tensor, nn

from graphslice.nn.mixers.base import Mixer, Structure, register
from graphslice.ops import attention


@register("softmax")
class SoftmaxAttention(Mixer):
    """``Softmax(Q K^T / sqrt(d) + S + E) V`` and an output projection (Ying et al. 2021, eq. 7)."""

    reads = ("bias",)
    equivariant = True

    def __init__(self, dim: int, heads: int, **settings) -> None:
        super().__init__(dim, heads, **settings)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)

    def mixed(self, x: Tensor, structure: Structure) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        return attention(q, k, v, structure.bias, self.heads, self.active_dropout)
