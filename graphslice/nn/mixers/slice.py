"""Slicing-sorting layers in place of attention (Sliceformer: Yuan and Xu 2023, arXiv 2310.17683).

V is ``X W_v``. On molecules it is aggregated first, ``P V`` with ``P = Softmax(S + E)``; without a graph P is the
identity. Sort_col sorts every channel over the valid rows of a sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers.base import Aggregating, register
from graphslice.ops import column_sort, max_exchange


@register("slice-ascend")
class SliceAscend(Aggregating):
    """Ascending sort of every channel, ``Sort_col(P V)`` (Sliceformer, eq. 4)."""

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        return context.aggregate_sort(self.value(x), dropout=self.active_dropout)


@register("slice-interleave")
class SliceInterleave(Aggregating):
    """Interleaved sort, ``Sort_col(P V)`` with an order per channel and layer (Sliceformer, eqs. 5 and 6).

    Channel i = 1..C of layer n = 1..L is sorted in ascending order if ``sin(2^(L - n) pi i / C) >= 0``, else in
    descending order.
    """

    descending: Tensor

    def __init__(self, dim: int, heads: int, **settings) -> None:
        super().__init__(dim, heads, **settings)
        # Integer arithmetic, because the floating-point sine of a multiple of pi is not exactly 0. The phase is in
        # units of pi / C; the sine is negative for C < phase < 2 C.
        phases = [2 ** (self.layers - self.layer) * i % (2 * dim) for i in range(1, dim + 1)]
        self.register_buffer("descending", torch.tensor([phase > dim for phase in phases]), persistent=False)

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        return context.aggregate_sort(self.value(x), self.descending, self.active_dropout)


@register("slice-released")
class SliceReleased(Aggregating):
    """Aggregation plus ascending sort, ``P V + Sort_col(V)``, as in the published code of the Sliceformer authors."""

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        v = self.value(x)
        return context.aggregate(v, self.active_dropout) + column_sort(v, context.lengths)


@register("slice-max")
class SliceMax(Aggregating):
    """Max-exchange of ``P V`` (Sliceformer, section 3.3).

    In every channel the largest value is exchanged with that of the first row, the graph token; rows that nearly tie
    for the maximum share the exchange (:func:`graphslice.ops.max_exchange`).
    """

    equivariant = True

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        v = context.aggregate(self.value(x), self.active_dropout)
        return max_exchange(v, context.lengths)
