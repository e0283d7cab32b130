"""Auxiliary atom- and bond-level targets of a molecule-level model, whose heads are discarded after training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn

from graphslice.batch import GraphBatch
from graphslice.data.labels import Labels
from graphslice.nn.atom_bond_readout import AtomBondReadout

# Weight of the loss of each level, relative to the loss of all molecule-level targets.
_WEIGHT = 0.5


class AuxiliaryHead(nn.Module):
    """Auxiliary output head: an atom- or bond-level readout and a linear map to T standardised targets.

    Args:
        dim: width of the atom embeddings.
        labels: labels of the training set, which define the names, means and standard deviations of the targets.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, dim: int, labels: Labels) -> None:
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
        """Compute the sums of the absolute errors over the labels of a batch.

        Args:
            rows: ``float [B, N + 1, C]``, atom embeddings after the last norm.
            batch: batch with ``atom_index`` and ``atom_targets``, or ``bond_index`` and ``bond_targets``.

        Returns:
            For each target, the sum of the absolute errors in units of its standard deviation, and the number of
            labels: ``float [T]`` each.
        """
        index, targets = getattr(batch, f"{self.level}_index"), getattr(batch, f"{self.level}_targets")
        labels = (targets - self.mean) / self.std
        known = ~torch.isnan(labels)
        with torch.autocast(rows.device.type, enabled=False):  # in full precision, as the main head
            errors = (self.head(self.reader(rows, index)) - labels.nan_to_num()).abs()
        return torch.where(known, errors, 0).sum(dim=0), known.sum(dim=0).to(errors.dtype)


class AuxiliaryHeads(nn.ModuleDict):
    """Auxiliary heads, one :class:`AuxiliaryHead` for each level (atom, bond) with labels.

    Args:
        dim: width of the atom embeddings.
        labels: labels of the training set, by level.
    """

    def __init__(self, dim: int, labels: Mapping[str, Labels]) -> None:
        super().__init__({level: AuxiliaryHead(dim, level_labels) for level, level_labels in labels.items()})
        self._errors: dict[str, list[Tensor]] = {}

    def losses(self, rows: Tensor, batch: GraphBatch) -> list[tuple[Tensor, Tensor]]:
        """Compute the auxiliary losses of a batch.

        Args:
            rows, batch: as in :meth:`AuxiliaryHead.forward`.

        Returns:
            For each level, the weighted sum of the errors, and the number of labels by which it is to be divided.
        """
        sums = [head(rows, batch) for head in self.values()]
        return [(_WEIGHT * errors.sum(), counts.sum()) for errors, counts in sums]

    def validate(self, rows: Tensor, batch: GraphBatch) -> None:
        """Accumulate the errors of a validation batch for :meth:`mean_errors`.

        Args:
            rows, batch: as in :meth:`AuxiliaryHead.forward`.
        """
        for level, head in self.items():
            self._errors.setdefault(level, []).append(torch.stack(head(rows, batch)))

    def mean_errors(self, world: int) -> dict[str, float]:
        """Return the mean absolute error of each target over the accumulated batches, and reset them.

        Args:
            world: number of processes, each of which has validated a part.

        Returns:
            Errors by target, in its unit, without targets that have no labels.
        """
        mae: dict[str, float] = {}
        for level, parts in self._errors.items():
            head, sums = cast(AuxiliaryHead, self[level]), torch.stack(parts).sum(dim=0)
            if world > 1:
                torch.distributed.all_reduce(sums)
            errors = (sums[0] / sums[1] * head.std).tolist()
            mae |= {name: error for name, error in zip(head.names, errors, strict=True) if math.isfinite(error)}
        self._errors = {}
        return mae
