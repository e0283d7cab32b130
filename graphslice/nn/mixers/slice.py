"""Slicing-sorting layers in place of attention (Sliceformer: Yuan and Xu 2023, arXiv 2310.17683), and the aggregation
``P V`` without sorting, alone or with maxima over all atoms of the molecule.

V is ``X W_v``. On molecules it is aggregated first, ``P V`` with ``P = Softmax(S + E)``; without a graph P is the
identity. Sort_col sorts every channel over the valid rows of a sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphslice.errors import check_choice, check_number
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers.base import Aggregating, register
from graphslice.ops import broadcast_max, column_sort, max_exchange


@register("slice-ascend")
class SliceAscend(Aggregating):
    """Ascending sort of every channel, ``Sort_col(P V)`` (Sliceformer, eq. 4)."""

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        return column_sort(context.aggregate(self.value(x), self.active_dropout), context.lengths)


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
        aggregated = context.aggregate(self.value(x), self.active_dropout)
        return column_sort(aggregated, context.lengths, self.descending)


@register("slice-released")
class SliceReleased(Aggregating):
    """Aggregation plus a sort, ``P V + Sort_col(V)``, as in the published code of the Sliceformer authors.

    Args:
        dim, heads, settings: as for :class:`Mixer`.
        order: ``"ascend"``; or ``"interleave"``, the Haar columns of the code: layer n splits the C / H channels of
            each head into ``2^(n - 1)`` blocks and sorts every second one in descending order.

    Raises:
        InputError: if ``order`` is unknown.
    """

    descending: Tensor

    def __init__(self, dim: int, heads: int, *, order: str = "ascend", **settings) -> None:
        super().__init__(dim, heads, **settings)
        check_choice("order of mixer slice-released", order, ("ascend", "interleave"))
        width, descending = dim // heads, torch.zeros(dim // heads, dtype=torch.bool)
        if order == "interleave" and self.layer > 1 and width > 1:
            channels, block = torch.arange(width), max(1, width // 2 ** (self.layer - 1))
            # The code also reverses the channels after the last pair of blocks, from one before its second half on.
            rest = width // (2 * block) * 2 * block + block - 1
            descending = (channels // block % 2 == 1) | (channels >= rest)
        self.register_buffer("descending", descending.repeat(heads), persistent=False)

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        v = self.value(x)
        return context.aggregate(v, self.active_dropout) + column_sort(v, context.lengths, self.descending)


@register("slice-max")
class SliceMax(Aggregating):
    """Max-exchange of ``P V`` (Sliceformer, section 3.3).

    In every channel the largest value is exchanged with that of the first row, the graph token.

    Args:
        dim, heads, settings: as for :class:`Mixer`.
        exchange: ``"soft"``, rows that nearly tie for the maximum share the exchange
            (:func:`graphslice.ops.max_exchange`); or ``"hard"``, as in the paper.

    Raises:
        InputError: if ``exchange`` is unknown.
    """

    def __init__(self, dim: int, heads: int, *, exchange: str = "soft", **settings) -> None:
        super().__init__(dim, heads, **settings)
        check_choice("exchange of mixer slice-max", exchange, ("soft", "hard"))
        self.hard = exchange == "hard"
        self.equivariant = not self.hard  # the order of equal atoms decides

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        return max_exchange(context.aggregate(self.value(x), self.active_dropout), context.lengths, self.hard)


@register("map-only")
class MapOnly(Aggregating):
    """Structural aggregation, ``y = W_o P X W_v``: the slice mixers without sorting, as a control experiment.

    Without a graph P is the identity.
    """

    equivariant = True

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        return context.aggregate(self.value(x), self.active_dropout)


@register("slice-quantile")
class SliceQuantile(Aggregating):
    """Structural aggregation in local channels, maxima over all rows in pooled channels.

    With ``A = P X W_v``, the output before the projection W_o is ``A_ic`` in a local channel c and
    ``max({A_jc : j valid})`` in a pooled channel, the same for every row i.

    Args:
        dim, heads, settings: as for :class:`Mixer`.
        keep_fraction: fraction of the channels of each head that are local.

    Raises:
        InputError: if ``keep_fraction`` is outside of [0, 1].
    """

    equivariant = True
    local_channels: Tensor

    def __init__(self, dim: int, heads: int, *, keep_fraction: float = 0.5, **settings) -> None:
        super().__init__(dim, heads, **settings)
        check_number("keep_fraction of mixer slice-quantile", keep_fraction, 0, 1)
        head_dim = dim // heads
        local = torch.arange(dim) % head_dim < round(keep_fraction * head_dim)
        self.register_buffer("local_channels", local, persistent=False)

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        aggregated = context.aggregate(self.value(x), self.active_dropout)
        return broadcast_max(aggregated, context.lengths, self.local_channels)
