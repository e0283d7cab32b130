"""Readout of atoms and bonds, the input of the head of a model with atom-level or bond-level targets."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphslice.config import BOND
from graphslice.feature_dims import NUM_BOND_TYPES


class AtomBondReadout(nn.Module):
    """Features of atoms or bonds (``level``) for the output head. Those of an atom a are its row x_a; those of a bond
    a-b are ``GELU(W [x_a + x_b, |x_a - x_b|] + E[bond type])``, which does not depend on the order of the atoms; the
    non-linearity lets a linear head model their interaction."""

    def __init__(self, dim: int, level: str) -> None:
        super().__init__()
        self.of_bonds = level == BOND
        if self.of_bonds:
            self.pair = nn.Linear(2 * dim, dim)
            self.kind = nn.Embedding(NUM_BOND_TYPES, dim)
            self.activation = nn.GELU()

    def forward(self, rows: Tensor, index: Tensor) -> Tensor:
        """Gather the features ``[M, C]`` of atoms or bonds from ``rows [B, N + 1, C]``, the output of the final norm;
        ``index``: int64 ``[M, 4]``, ``atom_bond_index`` of a :class:`~graphslice.batch.GraphBatch`."""
        molecule, first, second, kind = index.unbind(dim=1)
        a = rows[molecule, first + 1]  # row 0 is the graph token
        if not self.of_bonds:
            return a
        b = rows[molecule, second + 1]
        return self.activation(self.pair(torch.cat([a + b, (a - b).abs()], dim=1)) + self.kind(kind))
