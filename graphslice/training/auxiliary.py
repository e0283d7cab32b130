"""Labels of atoms and of bonds that a model of molecules learns beside its targets: heads that are not kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn

from graphslice.batch import GraphBatch
from graphslice.data.atom_bond_labels import AtomBondLabels
from graphslice.nn.atom_bond_readout import AtomBondReadout

# The weight of the labels of each level beside all targets of molecules together.
_WEIGHT = 0.5


class AuxiliaryHead(nn.Module):
    """Linear map of an :class:`~graphslice.nn.atom_bond_readout.AtomBondReadout` to T standardised values of each
    atom or bond.

    Args:
        dim: of the rows of the atoms.
        labels: of the training molecules, which say the names of the targets, their mean and deviation.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, dim: int, labels: AtomBondLabels) -> None:
        super().__init__()
        self.level, self.names = labels.level, labels.names
        self.reader, self.head = AtomBondReadout(dim, labels.level), nn.Linear(dim, len(labels.names))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                nn.init.zeros_(module.bias)
        std = np.nanstd(labels.values, axis=0)
        values = np.nanmean(labels.values, axis=0), np.where(std > 0, std, 1.0)
        for name, value in zip(("mean", "std"), values, strict=True):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))

    def forward(self, rows: Tensor, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """The sums over the labels of a batch of the absolute errors, in deviations, and how many there are:
        ``float [T]`` each.

        Args:
            rows: ``float [B, N + 1, C]``, behind the last norm.
            batch: with ``atom_index`` and ``atom_targets``, or those of bonds.
        """
        sites, targets = getattr(batch, f"{self.level}_index"), getattr(batch, f"{self.level}_targets")
        wanted = (targets - self.mean) / self.std
        known = ~torch.isnan(wanted)
        with torch.autocast(rows.device.type, enabled=False):  # in full precision, as the model's own head
            errors = (self.head(self.reader(rows, sites)) - wanted.nan_to_num()).abs()
        return torch.where(known, errors, 0).sum(dim=0), known.sum(dim=0).to(errors.dtype)


class AuxiliaryHeads(nn.ModuleDict):
    """One :class:`AuxiliaryHead` for each level that has labels.

    Args:
        dim: of the rows of the atoms.
        labels: of the training molecules, by level.
    """

    def __init__(self, dim: int, labels: Mapping[str, AtomBondLabels]) -> None:
        super().__init__({level: AuxiliaryHead(dim, some) for level, some in labels.items()})
        self._errors: dict[str, list[Tensor]] = {}

    def losses(self, rows: Tensor, batch: GraphBatch) -> list[tuple[Tensor, Tensor]]:
        """Of each level the weighted sum of the errors, and the number of labels, by which it is to be divided."""
        found = [head(rows, batch) for head in self.values()]
        return [(_WEIGHT * errors.sum(), counts.sum()) for errors, counts in found]

    def validate(self, rows: Tensor, batch: GraphBatch) -> None:
        """Keep the errors of a batch until :meth:`mean_errors` asks for them."""
        for level, head in self.items():
            self._errors.setdefault(level, []).append(torch.stack(head(rows, batch)))

    def mean_errors(self, world: int) -> dict[str, float]:
        """The mean absolute error of each target that has labels, in its unit, over what was validated since it was
        last asked for.

        Args:
            world: how many processes have validated a share each.
        """
        found: dict[str, float] = {}
        for level, parts in self._errors.items():
            head, sums = cast(AuxiliaryHead, self[level]), torch.stack(parts).sum(dim=0)
            if world > 1:
                torch.distributed.all_reduce(sums)
            errors = (sums[0] / sums[1] * head.std).tolist()
            found |= {name: error for name, error in zip(head.names, errors, strict=True) if math.isfinite(error)}
        self._errors = {}
        return found
