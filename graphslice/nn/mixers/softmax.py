"""Softmax attention with a structural bias: Graphormer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.nn.mixers.base import Mixer, Structure, register


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
        batch, width, _ = x.shape
        q, k, v = (f(x).view(batch, width, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=structure.bias.to(q.dtype), dropout_p=self.active_dropout
        )
        return mixed.transpose(1, 2).reshape(batch, width, -1)
