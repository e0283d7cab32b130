"""GraphBatch: a padded batch of molecular graphs, the input of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphslice.feature_dims import ATOM_DIMS, MAX_DISTANCE, NUM_BOND_TYPES, NUM_RING_CLASSES, UNREACHABLE


@dataclass
class GraphBatch:
    """B molecules padded to N atoms, with the structural encodings that the model reads.

    A *path type* is a distance and the bonds along the shortest paths of that length; every distinct path type of the
    batch is stored once (see :func:`graphslice.chem.paths.shortest_path_types`). Of an atom- or bond-level model, M are
    the predicted atoms or bonds of all molecules.

    Raises:
        ValueError: if tensors on the CPU have inconsistent shapes or indices out of range. Tensors on a GPU are
            not checked, since that would synchronise with it.
    """

    atoms: Tensor  # uint8 [B, N, 9], OGB atom features, 0 in the padding
    degrees: Tensor  # uint8 [B, N], number of bonds of each atom
    lengths: Tensor  # int64 [B], number of atoms of each molecule
    path_types: Tensor  # int16 [B, N, N], int32 where there are many: from atom i to atom j; -1 in the padding
    path_distances: Tensor  # int32 [W], distance of each path type in bonds; 510 between fragments
    path_ptr: Tensor  # int32 [W], index of the first entry of each path type
    path_codes: Tensor  # int32 [K], bond at a position of a path: position times 60 plus bond type id
    path_weights: Tensor  # float32 [K], weight of each entry; the weights of a path type sum to 1
    targets: Tensor | None = None  # float32 [B, T], or [M, T], in the user's units, nan where unknown
    bounds_of_targets: Tensor | None = None  # float32 [B, T, 2], lower and upper bounds of targets, graphslice.tasks
    weights: Tensor | None = None  # float32 [B], weight of each molecule; None if all are equal
    rows: Tensor | None = None  # int64 [B], row of each molecule in its dataset
    descriptors: Tensor | None = None  # float32 [B, F], molecular descriptors, nan where unknown
    # int64 [M, 4], molecule by molecule: index of the molecule, the two atoms of the bond (for an atom twice its index)
    # and the bond type id (for an atom 0); None for molecule-level models.
    atom_bond_index: Tensor | None = None
    # int16 [B, N + 1, N + 1] for models that need it: 1 + bond type id + 60 times the class of the smallest ring of the
    # bond between two rows (graphslice.chem.paths.bond_matrices), 0 without a bond; row 0 is the graph token.
    bonds: Tensor | None = None
    # As atom_bond_index, if a molecule-level model has auxiliary atom- or bond-level targets, float32 [M, T].
    atom_index: Tensor | None = None
    bond_index: Tensor | None = None
    atom_targets: Tensor | None = None
    bond_targets: Tensor | None = None

    def __post_init__(self) -> None:
        if self.path_types.device.type == "cpu":
            _check(self)

    @classmethod
    def unchecked(cls, **tensors: Tensor | None) -> GraphBatch:
        """Create a batch without checks, from tensors computed for checked molecules; omitted tensors are None."""
        batch = object.__new__(cls)
        batch.__dict__.update(_OPTIONAL | tensors)
        return batch

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> GraphBatch:
        """Create a batch without checks from arrays by name, with which it shares memory."""
        return cls.unchecked(**{name: torch.from_numpy(array) for name, array in arrays.items()})

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def row_lengths(self) -> Tensor:
        """Number of rows of each molecule, graph token included, ``int64 [B]``."""
        return self.lengths + 1

    def label_weights(self) -> Tensor | None:
        """Return the weight of each row of ``targets``, ``float32 [M]``; None if all are equal."""
        if self.weights is None or self.atom_bond_index is None:
            return self.weights
        return self.weights[self.atom_bond_index[:, 0]]

    def atom_bond_counts(self) -> Tensor:
        """Return ``int64 [B]``, the number of predicted atoms or bonds per molecule; 1 for molecule-level models."""
        if self.atom_bond_index is None:
            return torch.ones_like(self.lengths)
        return torch.bincount(self.atom_bond_index[:, 0], minlength=len(self))

    def _map(self, function: Callable[[Tensor], Tensor]) -> GraphBatch:
        present = {name: tensor for name, tensor in vars(self).items() if tensor is not None}
        return GraphBatch.unchecked(**{name: function(tensor) for name, tensor in present.items()})

    def to(self, device: torch.device | str, non_blocking: bool = False) -> GraphBatch:
        """Copy the batch to another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> GraphBatch:
        """Copy the batch to page-locked memory, for asynchronous copies to a GPU."""
        return self._map(Tensor.pin_memory)


_OPTIONAL = {field.name: None for field in dataclasses.fields(GraphBatch) if field.default is None}


_INDICES = ("atom_bond_index", "atom_index", "bond_index")
_DTYPES = {"lengths": torch.int64, "descriptors": torch.float32, "bonds": torch.int16} | dict.fromkeys(
    _INDICES, torch.int64
)


def _check(batch: GraphBatch) -> None:
    (size, width), pairs, entries = batch.atoms.shape[:2], batch.path_distances.shape[:1], batch.path_codes.shape[:1]
    labelled = size if batch.atom_bond_index is None else len(batch.atom_bond_index)
    shapes: dict[str, tuple[int | None, ...]] = {
        "atoms": (size, width, len(ATOM_DIMS)),
        "degrees": (size, width),
        "lengths": (size,),
        "path_types": (size, width, width),
        "path_distances": pairs,
        "path_ptr": pairs,
        "path_codes": entries,
        "path_weights": entries,
        "targets": (labelled, None),
        "bounds_of_targets": (labelled, None, 2),
        "weights": (size,),
        "rows": (size,),
        "descriptors": (size, None),
        "bonds": (size, width + 1, width + 1),
        **dict.fromkeys(_INDICES, (None, 4)),
    }
    for name, shape in shapes.items():
        if (tensor := getattr(batch, name)) is None:
            continue
        if tensor.dim() != len(shape) or any(n not in (None, m) for n, m in zip(shape, tensor.shape, strict=True)):
            expected = ", ".join("any" if n is None else str(n) for n in shape)
            raise ValueError(f"{name} of the batch has the shape {list(tensor.shape)}, not [{expected}]")
        if tensor.dtype != _DTYPES.get(name, tensor.dtype):
            raise ValueError(f"{name} of the batch has the dtype {tensor.dtype}, not {_DTYPES[name]}")
    ranges = {
        "degrees": (0, torch.iinfo(torch.int64).max),
        "lengths": (0, width),
        "path_types": (-1, len(batch.path_distances) - 1),
        "path_distances": (0, UNREACHABLE),
        "path_ptr": (0, len(batch.path_codes)),
        "path_codes": (0, MAX_DISTANCE * NUM_BOND_TYPES - 1),
        "bonds": (0, NUM_BOND_TYPES * NUM_RING_CLASSES),
    }
    for name, (low, high) in ranges.items():
        tensor = getattr(batch, name)
        if tensor is not None and tensor.numel() and not low <= int(tensor.min()) <= int(tensor.max()) <= high:
            raise ValueError(f"{name} of the batch must be from {low} to {high}")
    limits = torch.tensor([size, width, width, NUM_BOND_TYPES])
    for name in _INDICES:
        if (index := getattr(batch, name)) is not None and ((index < 0) | (index >= limits)).any():
            raise ValueError(f"{name} of the batch is out of range")
    if ((batch.atoms < 0) | (batch.atoms >= torch.tensor(ATOM_DIMS))).any():
        raise ValueError("atoms of the batch has features outside the ranges of OGB")
    if len(batch.path_ptr) and (batch.path_ptr[0] != 0 or (batch.path_ptr.diff() < 0).any()):
        raise ValueError("path_ptr of the batch must start with 0 and never decrease")
