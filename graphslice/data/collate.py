"""From rows of a store to a :class:`~graphslice.batch.GraphBatch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch

from graphslice.batch import GraphBatch
from graphslice.chem import shortest_paths
from graphslice.chem.bond_matrix import bond_matrices
from graphslice.chem.molecule import MolArrays, MolGraph
from graphslice.config import ATOM, LEVELS, MOLECULE
from graphslice.data.atom_bond_labels import AtomBondLabels
from graphslice.data.store import GraphStore
from graphslice.errors import InputError, shown
from graphslice.feature_dims import MAX_DISTANCE

PathTies = Literal["mean", "floyd-warshall"]
_TIE_RULES = {"mean": shortest_paths.MEAN, "floyd-warshall": shortest_paths.FLOYD_WARSHALL}


def collate_rows(
    store: GraphStore,
    rows: np.ndarray,
    *,
    path_ties: PathTies = "mean",
    max_path: int = 5,
    multiple: int = 1,
    targets: np.ndarray | AtomBondLabels | None = None,
    descriptors: Sequence[str] = (),
    level: str = MOLECULE,
    bonds: bool = False,
    auxiliary: Mapping[str, AtomBondLabels] | None = None,
) -> GraphBatch:
    """Make one batch of some molecules of a store.

    Args:
        store: of molecules.
        rows: ``int [B]``, at least one; each a molecule with at least one atom.
        path_ties: what the edge encoding reads where several shortest paths exist: ``"mean"`` of
            all of them, or the one of ``"floyd-warshall"``, as the original code does.
        max_path: how many bonds of a path count, from its start.
        multiple: pad the atoms so that with the graph token there is a multiple of so many rows.
        targets: ``float [R, T]`` of all rows of the store, nan where unknown; or those of their atoms or bonds.
        descriptors: names of those that the model reads.
        level: what the model answers about: molecule, atom or bond.
        bonds: whether the model reads bonds beside paths.
        auxiliary: labels of the atoms and of the bonds of all rows of the store, by level, that are learned beside
            the targets.

    Raises:
        InputError: for a row without a molecule, settings out of their range, and descriptors that the store has not.
    """
    if not 1 <= max_path <= MAX_DISTANCE:
        raise InputError(f"max_path must be from 1 to {MAX_DISTANCE}, not {max_path}")
    if path_ties not in _TIE_RULES:
        raise InputError(f"path_ties is {' or '.join(_TIE_RULES)}, not {shown(path_ties)}")
    if multiple < 1:
        raise InputError(f"multiple must be at least 1, not {multiple}")
    if level not in LEVELS:
        raise InputError(f"level is {', '.join(LEVELS)}, not {shown(level)}")
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    atom_ptr, bond_ptr, atoms, degrees, pairs, bond_type_ids = store.gather(rows)
    lengths = np.diff(atom_ptr)
    if len(rows) and not lengths.all():
        raise InputError(f"row {rows[lengths.argmin()]} of {store.name} has no molecule to make a batch of")
    if extra := -(atoms.shape[1] + 1) % multiple:
        atoms = np.pad(atoms, ((0, 0), (0, extra), (0, 0)))
        degrees = np.pad(degrees, ((0, 0), (0, extra)))
    path_types, distances, ptr, codes, weights = shortest_paths.shortest_path_types(
        atom_ptr, bond_ptr, pairs, bond_type_ids, _TIE_RULES[path_ties], max_path, atoms.shape[1]
    )
    if len(distances) <= np.iinfo(np.int16).max:
        path_types = path_types.astype(np.int16)
    ends = atom_ptr, bond_ptr, pairs, bond_type_ids
    return GraphBatch.unchecked(  # of a store, which was checked
        atoms=torch.from_numpy(atoms),
        degrees=torch.from_numpy(degrees),
        lengths=torch.from_numpy(lengths),
        path_types=torch.from_numpy(path_types),
        path_distances=torch.from_numpy(distances),
        path_ptr=torch.from_numpy(ptr[:-1]),
        path_codes=torch.from_numpy(codes),
        path_weights=torch.from_numpy(weights),
        targets=None if targets is None else torch.from_numpy(targets[rows].astype(np.float32)),
        rows=torch.from_numpy(rows),
        descriptors=torch.from_numpy(store.descriptors(rows, descriptors)) if descriptors else None,
        atom_bond_index=None if level == MOLECULE else _atom_bond_index(level, *ends),
        bonds=torch.from_numpy(bond_matrices(*ends, atoms.shape[1])) if bonds else None,
        **_auxiliary(auxiliary or {}, rows, *ends),
    )


def _auxiliary(labels: Mapping[str, AtomBondLabels], rows: np.ndarray, *ends: np.ndarray) -> dict[str, torch.Tensor]:
    """``atom_index`` and their like: of the molecules of some rows that have labels of these."""
    found = {}
    for level, some in labels.items():
        atom_bond_index = _atom_bond_index(level, *ends)
        labelled = torch.from_numpy(some.counts_of(rows) > 0)
        found[f"{level}_index"] = atom_bond_index[labelled[atom_bond_index[:, 0]]]
        found[f"{level}_targets"] = torch.from_numpy(some[rows].astype(np.float32))
    return found


def _atom_bond_index(
    level: str, atom_ptr: np.ndarray, bond_ptr: np.ndarray, bonds: np.ndarray, bond_type_ids: np.ndarray
) -> torch.Tensor:
    """``atom_bond_index`` of a batch of the molecules that :meth:`GraphStore.gather` gives."""
    counts = np.diff(atom_ptr if level == ATOM else bond_ptr)
    molecules = np.repeat(np.arange(len(counts)), counts)
    if level == ATOM:
        atoms = np.arange(atom_ptr[-1]) - atom_ptr[molecules]
        columns = [molecules, atoms, atoms, np.zeros_like(atoms)]
    else:
        columns = [molecules, *bonds.T, bond_type_ids]
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.int64))


def collate(graphs: Sequence[MolGraph], values: Mapping[str, np.ndarray] | None = None, **settings) -> GraphBatch:
    """Make one batch of some molecules: :func:`collate_rows` of a store of them.

    ``values``: their descriptors by name, as :meth:`GraphStore.from_arrays` takes them.
    """
    store = GraphStore.from_arrays(MolArrays.from_graphs(graphs), descriptors=values)
    return collate_rows(store, np.arange(len(graphs)), **settings)
