"""GraphBatch: molecules of several sizes in one set of tensors. What data makes and the model reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class GraphBatch:
    """B molecules padded to N atoms, with the structure that the encodings read.

    A *path type* is a distance and the bonds along the shortest paths of that length; each distinct
    one of the batch is kept once (see :func:`graphslice.chem.shortest_paths.shortest_path_types`).

    Attributes:
        atoms: ``uint8 [B, N, 9]`` OGB features, 0 in the padding.
        degrees: ``uint8 [B, N]`` number of bonds of each atom.
        lengths: ``int64 [B]`` number of atoms of each molecule.
        path_types: ``int16 [B, N, N]`` (``int32`` where there are many) the path type from atom i to
            atom j; -1 in the padding.
        path_distances: ``int32 [W]`` in bonds; 510 between fragments.
        path_ptr: ``int32 [W]`` where the entries of each path type begin.
        path_codes: ``int32 [K]`` bond at a position: position times 60 plus bond type id.
        path_weights: ``float32 [K]`` the share of each entry; they sum to 1 over a path type.
        targets: ``float32 [B, T]`` in the user's unit, nan where unknown; or None.
        rows: ``int64 [B]`` the row of each molecule in its source; or None.
    """

    atoms: Tensor
    degrees: Tensor
    lengths: Tensor
    path_types: Tensor
    path_distances: Tensor
    path_ptr: Tensor
    path_codes: Tensor
    path_weights: Tensor
    targets: Tensor | None = None
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def _map(self, function: Callable[[Tensor], Tensor]) -> GraphBatch:
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        changed: dict[str, Any] = {k: None if v is None else function(v) for k, v in values.items()}
        return GraphBatch(**changed)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> GraphBatch:
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> GraphBatch:
        """The same batch in page-locked memory, for asynchronous copies to a GPU."""
        return self._map(Tensor.pin_memory)
