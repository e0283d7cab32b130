"""Attention with query, key and value: softmax attention with a structural bias, as in Graphormer, and linear attention
without softmax (Cao 2021, "Choose a Transformer: Fourier or Galerkin")."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers.base import Projected, register
from graphslice.ops import attention, head_norm, linear_attention


@register("softmax")
class SoftmaxAttention(Projected):
    """Multi-head attention with structural bias (Ying et al. 2021, eqs. 6 and 7).

    Per head ``Softmax(Q K^T / sqrt(d) + S + E) V`` with d = C / H, S the spatial and E the edge encoding.
    """

    reads = ("attn_bias",)

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        return attention(q, k, v, context.attn_bias.to(q.dtype), self.heads, self.active_dropout)


class _HeadNormed(Projected):
    """Base class with layer normalisation of two of query, key and value per head; on molecules V becomes ``P V``."""

    reads = ("attn_weights",)

    def __init__(self, dim: int, heads: int, **settings) -> None:
        super().__init__(dim, heads, **settings)
        self.scales = nn.Parameter(torch.ones(2, heads, dim // heads))
        self.shifts = nn.Parameter(torch.zeros(2, heads, dim // heads))


@register("galerkin")
class Galerkin(_HeadNormed):
    """Galerkin-type attention, ``Q (LN(K)^T LN(V)) / n`` per head (Cao 2021, eq. 6).

    n is the number of valid rows. The operation is a Petrov-Galerkin projection onto the columns of Q, and its cost is
    linear in n. On molecules V is ``P X W_v``.
    """

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        v = context.aggregate(self.value(x), self.active_dropout)
        k, v = (head_norm(y, self.scales, self.shifts, i) for i, y in enumerate((self.key(x), v)))
        return linear_attention(self.query(x), k, v, context.lengths, self.heads)


@register("fourier")
class Fourier(_HeadNormed):
    """Fourier-type attention, ``(LN(Q) LN(K)^T) V / n`` per head (Cao 2021, eq. 5).

    n is the number of valid rows. ``LN(K)^T V`` is computed first, so that the cost is linear in n. On molecules V is
    ``P X W_v``.
    """

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        v = context.aggregate(self.value(x), self.active_dropout)
        q, k = (head_norm(y, self.scales, self.shifts, i) for i, y in enumerate((self.query(x), self.key(x))))
        return linear_attention(q, k, v, context.lengths, self.heads)
