"""GraphBatch: molecules of several sizes in one set of tensors, and how it is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from graphslice.chem import paths
from graphslice.chem.molecule import MolGraph

PathTies = Literal["mean", "floyd-warshall"]
_TIE_RULES = {"mean": paths.MEAN, "floyd-warshall": paths.FLOYD_WARSHALL}


@dataclass
class GraphBatch:
    """B molecules padded to N atoms, with the structure that the encodings read.

    A *walk* is a distance and the bonds along the shortest paths of that length; each distinct
    one of the batch is kept once (see :func:`graphslice.chem.paths.pair_walks`).

    Attributes:
        atoms: ``uint8 [B, N, 9]`` OGB features, 0 in the padding.
        degrees: ``int32 [B, N]`` number of bonds of each atom.
        lengths: ``int64 [B]`` number of atoms of each molecule.
        pairs: ``int32 [B, N, N]`` the walk from atom i to atom j; -1 in the padding.
        walk_distances: ``int32 [W]`` in bonds; 510 between fragments.
        walk_ptr: ``int32 [W]`` where the entries of each walk begin.
        walk_codes: ``int32 [K]`` bond at a position: position times 60 plus bond word.
        walk_weights: ``float32 [K]`` the share of each entry; they sum to 1 over a walk.
        targets: ``float32 [B, T]`` in the user's unit, nan where unknown; or None.
        rows: ``int64 [B]`` the row of each molecule in its source; or None.
    """

    atoms: Tensor
    degrees: Tensor
    lengths: Tensor
    pairs: Tensor
    walk_distances: Tensor
    walk_ptr: Tensor
    walk_codes: Tensor
    walk_weights: Tensor
    targets: Tensor | None = None
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def _map(self, function) -> GraphBatch:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return GraphBatch(**{k: None if v is None else function(v) for k, v in values.items()})

    def to(self, device: torch.device | str, non_blocking: bool = False) -> GraphBatch:
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> GraphBatch:
        """The same batch in page-locked memory, for asynchronous copies to a GPU."""
        return self._map(Tensor.pin_memory)


def collate(
    graphs: Sequence[MolGraph],
    *,
    path_ties: PathTies = "mean",
    max_path: int = 5,
    targets: np.ndarray | None = None,
    rows: np.ndarray | None = None,
) -> GraphBatch:
    """Make one batch of some molecules.

    Args:
        graphs: at least one molecule, each with at least one atom.
        path_ties: what the edge encoding reads where several shortest paths exist: ``"mean"`` of
            all of them, or the one of ``"floyd-warshall"``, as the original code does.
        max_path: how many bonds of a path count, from its start.
        targets: ``float [B, T]``, nan where unknown.
        rows: ``int [B]``.
    """
    sizes = np.array([graph.num_atoms for graph in graphs], dtype=np.int64)
    batch, width = len(graphs), int(sizes.max())
    atom_ptr = np.concatenate([[0], np.cumsum(sizes)])
    bond_ptr = np.concatenate([[0], np.cumsum([graph.num_bonds for graph in graphs])])
    bonds = np.concatenate([graph.bonds for graph in graphs])
    words = paths.bond_words(np.concatenate([graph.bond_features for graph in graphs]))

    # Where each atom of the concatenation goes in the padded rows.
    molecule = np.repeat(np.arange(batch), sizes)
    slot = molecule * width + np.arange(len(molecule)) - atom_ptr[molecule]
    atoms = np.zeros((batch * width, graphs[0].atoms.shape[1]), dtype=np.uint8)
    atoms[slot] = np.concatenate([graph.atoms for graph in graphs])
    ends = bonds + np.repeat(np.arange(batch) * width, np.diff(bond_ptr))[:, None]
    degrees = np.bincount(ends.reshape(-1), minlength=batch * width).astype(np.int32)

    pairs, distances, ptr, codes, weights = paths.pair_walks(
        atom_ptr, bond_ptr, bonds, words, _TIE_RULES[path_ties], max_path, width
    )
    return GraphBatch(
        atoms=torch.from_numpy(atoms.reshape(batch, width, -1)),
        degrees=torch.from_numpy(degrees.reshape(batch, width)),
        lengths=torch.from_numpy(sizes),
        pairs=torch.from_numpy(pairs),
        walk_distances=torch.from_numpy(distances),
        walk_ptr=torch.from_numpy(ptr[:-1]),
        walk_codes=torch.from_numpy(codes),
        walk_weights=torch.from_numpy(weights),
        targets=None if targets is None else torch.from_numpy(np.ascontiguousarray(targets, dtype=np.float32)),
        rows=None if rows is None else torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)),
    )
