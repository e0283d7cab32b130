"""Channel-wise sample permutation (CSP: Yuan and Xu 2024, arXiv 2410.10914).

Every channel is permuted into the rank order of the first channel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphslice.errors import check_choice, check_number
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers.base import Aggregating, register
from graphslice.ops import sort_by_first

SHIFTS = ("none", "linear", "heads", "power")


@register("csp")
class CSP(Aggregating):
    """Channel-wise sample permutation (CSP, section 3).

    ``y = W_o concat_c GSort_K(S_{J_c} v_c)`` (eq. 4) with ``V = X W`` (on molecules ``V = P X W``). Channel c is
    shifted circularly by ``J_c`` rows, so that its last ``J_c`` rows come first (S, eq. 3), then the valid rows are
    split into K groups, and within each group the values of every channel are permuted into the rank order of channel
    1: the largest value goes to the row where channel 1 is largest. This is the optimal transport between the two
    channels. Rows that tie in channel 1, such as symmetric atoms, get the mean of their values; otherwise rounding
    errors would decide their order.

    Args:
        dim, heads, settings: as for :class:`Mixer`.
        groups: K; if K does not divide the number of rows, the first groups have one row more. 0 stands for
            ``K = ceil(N / 2)``, groups of two rows, which exchange minimum and maximum in O(N).
        shifts: ``"none"``; ``"linear"``, ``J_c = c ceil(N / C)`` with c from 0; ``"heads"``, ``C (m - 1) / D`` for all
            D channels of head m (Table 1, second row); or ``"power"``, ``J^(c - 1) - 1`` with
            ``J = N^(1 / (L C - 1))``, not rounded down, where c counts from 1 over the channels of all layers. Sorting
            with one group undoes linear shifts and those of heads, because they do not move channel 1.
        sort: if False, the channels are only shifted.

    Raises:
        InputError: if ``groups`` is negative or ``shifts`` is unknown.
    """

    def __init__(
        self, dim: int, heads: int, *, groups: int = 1, shifts: str = "none", sort: bool = True, **settings
    ) -> None:
        super().__init__(dim, heads, **settings)
        check_number("groups of mixer csp", groups, 0)
        check_choice("shifts of mixer csp", shifts, SHIFTS)
        self.groups, self.shifts, self.sort = groups, shifts, sort
        # Sorting all rows by rank does not depend on their numbering, unless channel 1 was shifted.
        self.equivariant = sort and groups == 1 and shifts != "power"

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        v = context.aggregate(self.value(x), self.active_dropout)
        if self.shifts != "none":
            v = self._shifted(v, context.lengths)
        return sort_by_first(v, context.lengths, self.groups) if self.sort else v

    def shift_steps(self, lengths: Tensor) -> Tensor:
        """Compute the circular shifts J of the channels, int64 ``[B, C]``, from ``lengths``, int64 ``[B]``."""
        rows = lengths[:, None].clamp_min(1)
        channels = torch.arange(self.dim, device=lengths.device)
        if self.shifts == "linear":
            return channels * (-(-rows // self.dim)) % rows
        if self.shifts == "heads":
            return self.heads * (channels * self.heads // self.dim) % rows  # C / D is the number of heads
        position = (self.layer - 1) * self.dim + channels
        exponent = position.double() / max(1, self.layers * self.dim - 1)
        # The small addend makes the shift of the last channel of the last layer N - 1 in spite of rounding.
        return (rows.double() ** exponent - 1 + 1e-9).long() % rows

    def _shifted(self, v: Tensor, lengths: Tensor) -> Tensor:
        rows = torch.arange(v.shape[1], device=v.device)[None, :, None]
        size = lengths[:, None, None]
        source = (rows - self.shift_steps(lengths)[:, None, :]) % size.clamp_min(1)
        return v.gather(1, torch.where(rows < size, source, rows))
