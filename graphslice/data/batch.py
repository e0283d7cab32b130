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
from graphslice.data.store import GraphStore

PathTies = Literal["mean", "floyd-warshall"]
_TIE_RULES = {"mean": paths.MEAN, "floyd-warshall": paths.FLOYD_WARSHALL}


@dataclass
class GraphBatch:
    """B molecules padded to N atoms, with the structure that the encodings read.

    A *walk* is a distance and the bonds along the shortest paths of that length; each distinct
    one of the batch is kept once (see :func:`graphslice.chem.paths.pair_walks`).

    Attributes:
        atoms: ``uint8 [B, N, 9]`` OGB features, 0 in the padding.
        degrees: ``uint8 [B, N]`` number of bonds of each atom.
        lengths: ``int64 [B]`` number of atoms of each molecule.
        pairs: ``int16 [B, N, N]`` (``int32`` where there are many walks) the walk from atom i to atom
            j; -1 in the padding.
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


def collate_rows(
    store: GraphStore,
    rows: np.ndarray,
    *,
    path_ties: PathTies = "mean",
    max_path: int = 5,
    multiple: int = 1,
    targets: np.ndarray | None = None,
) -> GraphBatch:
    """Make one batch of some molecules of a store.

    Args:
        store: of molecules.
        rows: ``int [B]``, at least one; each a molecule with at least one atom.
        path_ties: what the edge encoding reads where several shortest paths exist: ``"mean"`` of
            all of them, or the one of ``"floyd-warshall"``, as the original code does.
        max_path: how many bonds of a path count, from its start.
        multiple: pad the atoms so that with the graph token there is a multiple of so many rows.
        targets: ``float [R, T]`` of all rows of the store, nan where unknown.
    """
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    atom_ptr, bond_ptr, atoms, degrees, bonds, words = store.gather(rows)
    if extra := -(atoms.shape[1] + 1) % multiple:
        atoms = np.pad(atoms, ((0, 0), (0, extra), (0, 0)))
        degrees = np.pad(degrees, ((0, 0), (0, extra)))
    pairs, distances, ptr, codes, weights = paths.pair_walks(
        atom_ptr, bond_ptr, bonds, words, _TIE_RULES[path_ties], max_path, atoms.shape[1]
    )
    if len(distances) <= np.iinfo(np.int16).max:
        pairs = pairs.astype(np.int16)
    return GraphBatch(
        atoms=torch.from_numpy(atoms),
        degrees=torch.from_numpy(degrees),
        lengths=torch.from_numpy(np.diff(atom_ptr)),
        pairs=torch.from_numpy(pairs),
        walk_distances=torch.from_numpy(distances),
        walk_ptr=torch.from_numpy(ptr[:-1]),
        walk_codes=torch.from_numpy(codes),
        walk_weights=torch.from_numpy(weights),
        targets=None if targets is None else torch.from_numpy(targets[rows].astype(np.float32)),
        rows=torch.from_numpy(rows),
    )


def collate(graphs: Sequence[MolGraph], **settings) -> GraphBatch:
    """Make one batch of some molecules: :func:`collate_rows` of a store of them."""
    return collate_rows(GraphStore.from_graphs(graphs), np.arange(len(graphs)), **settings)
