"""Collation of molecules of a store into the arrays of a batch, which need no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphslice.chem import paths
from graphslice.chem.paths import bond_matrices
from graphslice.config import ATOM, LEVELS, MOLECULE
from graphslice.data.labels import Labels
from graphslice.data.store import GraphStore
from graphslice.errors import InputError, shown
from graphslice.feature_dims import MAX_DISTANCE

_TIE_RULES = {"mean": paths.MEAN, "floyd-warshall": paths.FLOYD_WARSHALL}


def batch_arrays(
    store: GraphStore,
    rows: np.ndarray,  # int [B], each with a molecule of at least one atom
    *,
    path_ties: str = "mean",  # "mean" over all shortest paths, or "floyd-warshall": the one of Graphormer's code
    max_path: int = 5,  # encoded bonds of a path, from its start
    multiple: int = 1,  # of the padded number of atoms plus graph token
    targets: Labels | None = None,  # of all rows of the store
    descriptors: Sequence[str] = (),
    level: str = MOLECULE,
    bonds: bool = False,  # add the matrix of bonds, for message passing
    auxiliary: Mapping[str, Labels] | None = None,  # of atoms and bonds of all rows, by level
) -> dict[str, np.ndarray]:
    """Collate rows of a store into the arrays of a :class:`~graphslice.batch.GraphBatch` that are not None."""
    if not 1 <= max_path <= MAX_DISTANCE:
        raise InputError(f"max_path must be from 1 to {MAX_DISTANCE}, not {max_path}")
    if path_ties not in _TIE_RULES:
        raise InputError(f"path_ties must be {' or '.join(_TIE_RULES)}, not {shown(path_ties)}")
    if multiple < 1:
        raise InputError(f"multiple must be at least 1, not {multiple}")
    if level not in LEVELS:
        raise InputError(f"level must be one of {', '.join(LEVELS)}, not {shown(level)}")
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    atom_ptr, bond_ptr, atoms, degrees, pairs, bond_type_ids = store.gather(rows)
    lengths = np.diff(atom_ptr)
    if not lengths.all():
        raise InputError(f"row {rows[lengths.argmin()]} of {store.name} has no molecule: leave it out of the batch")
    if extra := -(atoms.shape[1] + 1) % multiple:
        atoms = np.pad(atoms, ((0, 0), (0, extra), (0, 0)))
        degrees = np.pad(degrees, ((0, 0), (0, extra)))
    path_types, distances, ptr, codes, weights = paths.shortest_path_types(
        atom_ptr, bond_ptr, pairs, bond_type_ids, _TIE_RULES[path_ties], max_path, atoms.shape[1]
    )
    if len(distances) <= np.iinfo(np.int16).max:
        path_types = path_types.astype(np.int16)
    ends = atom_ptr, bond_ptr, pairs, bond_type_ids
    arrays = {
        "atoms": atoms,
        "degrees": degrees,
        "lengths": lengths,
        "path_types": path_types,
        "path_distances": distances,
        "path_ptr": ptr[:-1],
        "path_codes": codes,
        "path_weights": weights,
        "rows": rows,
    }
    if targets is not None:
        arrays["targets"] = targets[rows].astype(np.float32)
        if targets.bounds is not None:
            arrays["bounds_of_targets"] = targets.bounds[rows].astype(np.float32)
        if targets.weights is not None:
            arrays["weights"] = targets.weights[rows].astype(np.float32)
    if descriptors:
        arrays["descriptors"] = store.descriptors(rows, descriptors)
    if level != MOLECULE:
        arrays["atom_bond_index"] = _atom_bond_index(level, *ends)
    if bonds:
        arrays["bonds"] = bond_matrices(*ends, atoms.shape[1])
    return arrays | _auxiliary(auxiliary or {}, rows, *ends)


def _auxiliary(labels: Mapping[str, Labels], rows: np.ndarray, *ends: np.ndarray) -> dict[str, np.ndarray]:
    """Compute ``atom_index``, ``bond_index`` and the targets of atoms and bonds, of rows that have them."""
    fields = {}
    for level, level_labels in labels.items():
        atom_bond_index = _atom_bond_index(level, *ends)
        labelled = level_labels.counts_of(rows) > 0
        fields[f"{level}_index"] = atom_bond_index[labelled[atom_bond_index[:, 0]]]
        fields[f"{level}_targets"] = level_labels[rows].astype(np.float32)
    return fields


def _atom_bond_index(
    level: str, atom_ptr: np.ndarray, bond_ptr: np.ndarray, bonds: np.ndarray, bond_type_ids: np.ndarray
) -> np.ndarray:
    """Compute ``atom_bond_index``, ``int64 [M, 4]``, from the arrays that :meth:`GraphStore.gather` returns."""
    counts = np.diff(atom_ptr if level == ATOM else bond_ptr)
    molecules = np.repeat(np.arange(len(counts)), counts)
    if level == ATOM:
        atoms = np.arange(atom_ptr[-1]) - atom_ptr[molecules]
        columns = [molecules, atoms, atoms, np.zeros_like(atoms)]
    else:
        columns = [molecules, *bonds.T, bond_type_ids]
    return np.stack(columns, axis=1).astype(np.int64)
