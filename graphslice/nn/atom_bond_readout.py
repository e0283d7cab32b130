"""What a head reads of an atom or of a bond, where predictions are of these and not of the molecule."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphslice.config import BOND
from graphslice.feature_dims import NUM_BOND_TYPES
from graphslice.nn.block import GELU


class AtomBondReadout(nn.Module):
    """The row of each atom that is asked about; of a bond ``GELU(W [x_a + x_b, |x_a - x_b|] + E[bond type])``.

    Both sums are the same whichever atom of a bond comes first. A linear head behind them alone could not tell how the
    two atoms go together.
    """

    def __init__(self, dim: int, level: str) -> None:
        super().__init__()
        self.of_bonds = level == BOND
        if self.of_bonds:
            self.pair = nn.Linear(2 * dim, dim)
            self.kind = nn.Embedding(NUM_BOND_TYPES, dim)
            self.activation = GELU()

    def forward(self, rows: Tensor, sites: Tensor) -> Tensor:
        """``[M, C]``, given the rows behind the last norm, ``[B, N + 1, C]``, and ``sites`` of a ``GraphBatch``."""
        molecule, first, second, kind = sites.unbind(dim=1)
        a = rows[molecule, first + 1]  # row 0 is the graph token
        if not self.of_bonds:
            return a
        b = rows[molecule, second + 1]
        return self.activation(self.pair(torch.cat([a + b, (a - b).abs()], dim=1)) + self.kind(kind))
