"""GraphBatch: molecules of several sizes in one set of tensors. What data makes and the model reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphslice.feature_dims import ATOM_DIMS, MAX_DISTANCE, NUM_BOND_TYPES, NUM_RING_CLASSES, UNREACHABLE


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
        targets: ``float32 [B, T]`` in the user's unit, nan where unknown; or None. Of a model of atoms or bonds
            ``[M, T]``, those of one molecule after another.
        rows: ``int64 [B]`` the row of each molecule in its source; or None.
        descriptors: ``float32 [B, F]`` numbers beside the graph, nan where unknown; or None.
        sites: ``int64 [M, 4]``, what a model of atoms or bonds answers about, molecule by molecule: the molecule, the
            two atoms of the bond (of an atom twice itself) and the bond type id (of an atom 0); else None.
        bonds: ``int16 [B, N + 1, N + 1]``, for a model that reads them: 1 + bond type id + 60 times the class of the
            smallest ring of the bond between two rows (:func:`graphslice.chem.bond_matrix.bond_matrices`); row 0
            is the graph token, and 0 without a bond; else None.
        atom_index, bond_index: as ``atom_bond_index``, the labelled atoms and bonds, where a molecule-level model has
            auxiliary targets of these; else None.
        atom_targets, bond_targets: ``float32 [M, T]`` of these, nan where unknown; else None.

    Raises:
        ValueError: where tensors on the CPU do not fit together, or refer to what is not there. What is on a GPU is
            not looked at, since that would wait for it.
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
    descriptors: Tensor | None = None
    atom_bond_index: Tensor | None = None
    bonds: Tensor | None = None
    atom_index: Tensor | None = None
    bond_index: Tensor | None = None
    atom_targets: Tensor | None = None
    bond_targets: Tensor | None = None

    def __post_init__(self) -> None:
        if self.path_types.device.type == "cpu":
            _check(self)

    @classmethod
    def unchecked(cls, **tensors: Tensor | None) -> GraphBatch:
        """A batch of tensors that compiled code has just made of molecules that were checked; others are None."""
        batch = object.__new__(cls)
        batch.__dict__.update(_OPTIONAL | tensors)
        return batch

    def __len__(self) -> int:
        return len(self.lengths)

    def atom_bond_counts(self) -> Tensor:
        """``int64 [B]``: how many rows the predictions of each molecule have; 1 where they are of molecules."""
        if self.atom_bond_index is None:
            return torch.ones_like(self.lengths)
        return torch.bincount(self.atom_bond_index[:, 0], minlength=len(self))

    def _map(self, function: Callable[[Tensor], Tensor]) -> GraphBatch:
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        changed: dict[str, Any] = {k: None if v is None else function(v) for k, v in values.items()}
        return GraphBatch.unchecked(**changed)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> GraphBatch:
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> GraphBatch:
        """The same batch in page-locked memory, for asynchronous copies to a GPU."""
        return self._map(Tensor.pin_memory)


_OPTIONAL = {field.name: None for field in dataclasses.fields(GraphBatch) if field.default is None}


def _check(batch: GraphBatch) -> None:
    """Raise ValueError for shapes that do not agree and numbers that lie outside what they count."""
    (size, width), pairs, entries = batch.atoms.shape[:2], batch.path_distances.shape[:1], batch.path_codes.shape[:1]
    shapes = {
        "atoms": (size, width, len(ATOM_DIMS)),
        "degrees": (size, width),
        "lengths": (size,),
        "path_types": (size, width, width),
        "path_distances": pairs,
        "path_ptr": pairs,
        "path_codes": entries,
        "path_weights": entries,
    }
    for name, shape in shapes.items():
        if (found := getattr(batch, name).shape) != shape:
            raise ValueError(f"{name} of the batch has the shape {list(found)}, not {list(shape)}")
    labelled = size if batch.atom_bond_index is None else len(batch.atom_bond_index)
    for name, there in (("targets", labelled), ("rows", size)):
        if (given := getattr(batch, name)) is not None and len(given) != there:
            raise ValueError(f"{name} of the batch are {len(given)}, and must be {there}")
    if batch.lengths.dtype != torch.int64:
        raise ValueError(f"lengths of the batch are {batch.lengths.dtype}, not int64")
    ranges = {
        "degrees": (0, torch.iinfo(torch.int64).max),
        "lengths": (0, width),
        "path_types": (-1, len(batch.path_distances) - 1),
        "path_distances": (0, UNREACHABLE),
        "path_ptr": (0, len(batch.path_codes)),
        "path_codes": (0, MAX_DISTANCE * NUM_BOND_TYPES - 1),
    }
    for name, (low, high) in ranges.items():
        tensor = getattr(batch, name)
        if tensor.numel() and not low <= int(tensor.min()) <= int(tensor.max()) <= high:
            raise ValueError(f"{name} of the batch must be from {low} to {high}")
    found = batch.descriptors
    if found is not None and (found.dtype != torch.float32 or found.dim() != 2 or len(found) != size):
        raise ValueError(
            f"descriptors of the batch are {found.dtype} of the shape {list(found.shape)}, not float32 [{size}, F]"
        )
    for atom_bond_index in (batch.atom_bond_index, batch.atom_index, batch.bond_index):
        if atom_bond_index is not None:
            _check_atom_bond_index(atom_bond_index, size, width)
    if batch.bonds is not None:
        _check_bonds(batch.bonds, size, width + 1)
    if ((batch.atoms < 0) | (batch.atoms >= torch.tensor(ATOM_DIMS))).any():
        raise ValueError("atoms of the batch has features outside OGB's values")
    if len(batch.path_ptr) and (batch.path_ptr[0] != 0 or (batch.path_ptr.diff() < 0).any()):
        raise ValueError("path_ptr of the batch must begin with 0 and never fall")


def _check_bonds(bonds: Tensor, size: int, rows: int) -> None:
    if bonds.dtype != torch.int16 or bonds.shape != (size, rows, rows):
        raise ValueError(
            f"bonds of the batch are {bonds.dtype} of the shape {list(bonds.shape)}, not int16 {[size, rows, rows]}"
        )
    if bonds.numel() and not 0 <= int(bonds.min()) <= int(bonds.max()) <= NUM_BOND_TYPES * NUM_RING_CLASSES:
        raise ValueError(f"bonds of the batch must be from 0 to {NUM_BOND_TYPES * NUM_RING_CLASSES}")


def _check_atom_bond_index(atom_bond_index: Tensor, size: int, width: int) -> None:
    if atom_bond_index.dtype != torch.int64 or atom_bond_index.dim() != 2 or atom_bond_index.shape[1] != 4:
        raise ValueError(
            f"atom_bond_index of the batch is {atom_bond_index.dtype} {list(atom_bond_index.shape)}, not int64 [M, 4]"
        )
    if ((atom_bond_index < 0) | (atom_bond_index >= torch.tensor([size, width, width, NUM_BOND_TYPES]))).any():
        raise ValueError("atom_bond_index of the batch is out of range")
