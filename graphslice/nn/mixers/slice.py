"""Slicing-sorting in place of attention: Sliceformer (Yuan and Xu, 2023).

On molecules V becomes ``P V`` with ``P = Softmax(S + E)``; without a graph it is V.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphslice.nn.mixers.base import Mixer, Structure, register
from graphslice.ops import column_sort


class _Slice(Mixer):
    """A value projection, something done to the columns, an output projection."""

    def __init__(self, dim: int, heads: int, **settings) -> None:
        super().__init__(dim, heads, **settings)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)


@register("slice-ascend")
class SliceAscend(_Slice):
    """``Sort_col(P V)``, every channel ascending (Sliceformer, eq. 4)."""

    def forward(self, x: Tensor, structure: Structure) -> Tensor:
        v = structure.mix(self.value(x), self.active_dropout)
        return self.output(column_sort(v, structure.lengths))


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

    def forward(self, x: Tensor, structure: Structure) -> Tensor:
        v = structure.mix(self.value(x), self.active_dropout)
        return self.output(column_sort(v, structure.lengths, self.descending))


@register("slice-released")
class SliceReleased(_Slice):
    """``P V + Sort_col(V)``, ascending: what the authors' published code runs."""

    def forward(self, x: Tensor, structure: Structure) -> Tensor:
        v = self.value(x)
        return self.output(structure.mix(v, self.active_dropout) + column_sort(v, structure.lengths))


@register("slice-max")
class SliceMax(_Slice):
    """Max-exchange of ``P V`` with its first row, the graph token (Sliceformer, section 3.3)."""

    equivariant = True

    def forward(self, x: Tensor, structure: Structure) -> Tensor:
        v = structure.mix(self.value(x), self.active_dropout)
        return self.output(max_exchange(v, structure.mask))


def max_exchange(v: Tensor, mask: Tensor, tie: tuple[float, float] = (1e-3, 5e-2)) -> Tensor:
    """In every channel, exchange the largest value with the first row's.

    Which of several equal rows gives way would be up to the numbering and to the last bit of the
    arithmetic, and symmetric molecules are full of equal rows. So rows that tie share the
    exchange: row j takes part with a weight w_j that is 1 while its distance to the largest value
    is below ``tie[0]`` times the exchange itself, falls to 0 at ``tie[1]``, and is normalised to
    sum to 1. The map is doubly stochastic and continuous in v; without ties it moves two entries.
    The weights carry no gradient, as the indices of a hard exchange carry none.

    Args:
        v: ``[B, N, C]``.
        mask: bool ``[B, N]``, the valid rows; row 0 is valid.
        tie: where the weight begins and ends to fall.

    Returns:
        ``[B, N, C]``; rows outside the mask are unchanged.
    """
    with torch.no_grad():
        first = v[:, :1]
        others = v.masked_fill(~mask[:, :, None], -torch.inf)
        others[:, 0] = -torch.inf
        largest = others.amax(dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).min)
        exchange = (largest - first).clamp_min(0)  # 0 where the first row has the largest already
        steepness = 1 / ((tie[1] - tie[0]) * exchange).clamp_min(torch.finfo(v.dtype).tiny)
        weight = ((others - largest + tie[1] * exchange) * steepness).clamp(0, 1)
        weight = weight / weight.sum(dim=1, keepdim=True).clamp_min(1)
    moved = weight * (v[:, :1] - v)
    return torch.cat([v[:, :1] - moved.sum(dim=1, keepdim=True), (v + moved)[:, 1:]], dim=1)
