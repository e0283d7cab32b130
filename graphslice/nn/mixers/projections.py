"""Softmax-free linear attention: Galerkin and Fourier type (Cao 2021, "Choose a Transformer: Fourier or Galerkin")."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers.base import Projected, register
from graphslice.ops import linear_attention
from graphslice.ops.program import Value
from graphslice.ops.tracer import Tracer


class _HeadNormed(Projected):
    """Base class with layer normalisation of two of query, key and value per head; on molecules V becomes ``P V``."""

    reads = ("attn_weights",)

    def __init__(self, dim: int, heads: int, **settings) -> None:
        super().__init__(dim, heads, **settings)
        self.scales = nn.Parameter(torch.ones(2, heads, dim // heads))
        self.shifts = nn.Parameter(torch.zeros(2, heads, dim // heads))

    def _head_normed(self, x: Tensor, index: int) -> Tensor:
        by_head = x.view(*x.shape[:2], self.heads, -1)
        normed = F.layer_norm(by_head, by_head.shape[-1:]) * self.scales[index] + self.shifts[index]
        return normed.flatten(2)


@register("galerkin")
class Galerkin(_HeadNormed):
    """Galerkin-type attention, ``Q (LN(K)^T LN(V)) / n`` per head (Cao 2021, eq. 6).

    n is the number of valid rows. The operation is a Petrov-Galerkin projection onto the columns of Q, and its cost is
    linear in n. On molecules V is ``P X W_v``.
    """

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        v = context.aggregate(self.value(x), self.active_dropout)
        k, v = self._head_normed(self.key(x), 0), self._head_normed(v, 1)
        return linear_attention(self.query(x), k, v, context.lengths, self.heads)

    def trace_mix(self, tracer: Tracer, x: Value) -> Value:
        v = tracer.aggregate(tracer.linear(x, self.value), self.active_dropout)
        k, v = tracer.head_norm(tracer.linear(x, self.key), self, 0), tracer.head_norm(v, self, 1)
        return tracer.linear_attention(tracer.linear(x, self.query), k, v)


@register("fourier")
class Fourier(_HeadNormed):
    """Fourier-type attention, ``(LN(Q) LN(K)^T) V / n`` per head (Cao 2021, eq. 5).

    n is the number of valid rows. ``LN(K)^T V`` is computed first, so that the cost is linear in n. On molecules V is
    ``P X W_v``.
    """

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        v = context.aggregate(self.value(x), self.active_dropout)
        q, k = self._head_normed(self.query(x), 0), self._head_normed(self.key(x), 1)
        return linear_attention(q, k, v, context.lengths, self.heads)

    def trace_mix(self, tracer: Tracer, x: Value) -> Value:
        v = tracer.aggregate(tracer.linear(x, self.value), self.active_dropout)
        q, k = (tracer.head_norm(tracer.linear(x, m), self, i) for i, m in enumerate((self.query, self.key)))
        return tracer.linear_attention(q, k, v)
