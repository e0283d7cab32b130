"""Slicing-sorting in place of attention: Sliceformer (Yuan and Xu, 2023).

On molecules V becomes ``P V`` with ``P = Softmax(S + E)``; without a graph it is V.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers.base import Mixer, register
from graphslice.ops import column_sort, max_exchange
from graphslice.ops.program import Value
from graphslice.ops.tracer import Tracer


class _Slice(Mixer):
    """A value projection, and something done to its columns."""

    reads = ("attn_weights",)

    def __init__(self, dim: int, heads: int, **settings) -> None:
        super().__init__(dim, heads, **settings)
        self.value = nn.Linear(dim, dim)


@register("slice-ascend")
class SliceAscend(_Slice):
    """``Sort_col(P V)``, every channel ascending (Sliceformer, eq. 4)."""

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        return context.aggregate_sort(self.value(x), dropout=self.active_dropout)

    def trace_mix(self, tracer: Tracer, x: Value) -> Value:
        return tracer.column_sort(tracer.aggregate(tracer.linear(x, self.value), self.active_dropout))


@register("slice-interleave")
class SliceInterleave(_Slice):
    """``Sort_col(P V)``, ascending or descending by channel and layer (Sliceformer, eqs. 5 and 6).

    Channel i = 1..C of layer n = 1..L is ascending where ``sin(2^(L - n) pi i / C) >= 0``.
    """

    descending: Tensor

    def __init__(self, dim: int, heads: int, **settings) -> None:
        super().__init__(dim, heads, **settings)
        # In whole numbers, since the sine of a multiple of pi is zero only on paper:
        # the phase in units of pi / C, and a sine below zero for C < phase < 2 C.
        phases = [2 ** (self.layers - self.layer) * i % (2 * dim) for i in range(1, dim + 1)]
        self.register_buffer("descending", torch.tensor([phase > dim for phase in phases]), persistent=False)

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        return context.aggregate_sort(self.value(x), self.descending, self.active_dropout)

    def trace_mix(self, tracer: Tracer, x: Value) -> Value:
        return tracer.column_sort(tracer.aggregate(tracer.linear(x, self.value), self.active_dropout), self.descending)


@register("slice-released")
class SliceReleased(_Slice):
    """``P V + Sort_col(V)``, ascending: what the authors' published code runs."""

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        v = self.value(x)
        return context.aggregate(v, self.active_dropout) + column_sort(v, context.lengths)

    def trace_mix(self, tracer: Tracer, x: Value) -> Value:
        v = tracer.linear(x, self.value)
        return tracer.add(tracer.aggregate(v, self.active_dropout), tracer.column_sort(v))


@register("slice-max")
class SliceMax(_Slice):
    """Max-exchange of ``P V`` with its first row, the graph token (Sliceformer, section 3.3)."""

    equivariant = True

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        v = context.aggregate(self.value(x), self.active_dropout)
        return max_exchange(v, context.mask)

    def trace_mix(self, tracer: Tracer, x: Value) -> Value:
        return tracer.max_exchange(tracer.aggregate(tracer.linear(x, self.value), self.active_dropout))
