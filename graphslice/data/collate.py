"""From rows of a store to a :class:`~graphslice.batch.GraphBatch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from graphslice.batch import GraphBatch
from graphslice.chem import shortest_paths
from graphslice.chem.molecule import MolGraph
from graphslice.data.store import GraphStore

PathTies = Literal["mean", "floyd-warshall"]
_TIE_RULES = {"mean": shortest_paths.MEAN, "floyd-warshall": shortest_paths.FLOYD_WARSHALL}


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
    atom_ptr, bond_ptr, atoms, degrees, bonds, bond_type_ids = store.gather(rows)
    if extra := -(atoms.shape[1] + 1) % multiple:
        atoms = np.pad(atoms, ((0, 0), (0, extra), (0, 0)))
        degrees = np.pad(degrees, ((0, 0), (0, extra)))
    pairs, distances, ptr, codes, weights = shortest_paths.shortest_path_types(
        atom_ptr, bond_ptr, bonds, bond_type_ids, _TIE_RULES[path_ties], max_path, atoms.shape[1]
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
