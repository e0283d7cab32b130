"""What is read of all molecules of a store at once: which are the same, their scaffolds, their fingerprints."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from graphslice.chem.fingerprints import FINGERPRINT_BITS, morgan_fingerprints
from graphslice.chem.molecule import MolArrays
from graphslice.chem.molecule_hash import MoleculeHashes, hash_molecules, hash_scaffolds
from graphslice.data.store import GraphStore
from graphslice.hardware import cores

# Molecules that are copied out of a store at a time.
_CHUNK_ROWS = 4_096


def molecule_keys(store: GraphStore, rows: np.ndarray) -> MoleculeHashes:
    """The hashes of some molecules of a store, in the order of ``rows`` (``int64 [R]``, each with atoms)."""
    found = _map_chunks(store, rows, lambda arrays: _stacked(hash_molecules(arrays)))
    identity, family = np.concatenate([np.empty((2, 0), np.uint64), *found], axis=1)
    return MoleculeHashes(identity, family)


def molecule_ids(store: GraphStore, rows: np.ndarray) -> np.ndarray:
    """``int64 [R]``, a number of the molecule that each row of a store is: that of all its rows."""
    return np.unique(molecule_keys(store, rows).identity, return_inverse=True)[1]


def scaffold_keys(store: GraphStore, rows: np.ndarray) -> np.ndarray:
    """``uint64 [R]``, the hash of the scaffold of some molecules of a store; ``rows`` as for :func:`molecule_keys`."""
    return np.concatenate([np.empty(0, np.uint64), *_map_chunks(store, rows, hash_scaffolds)])


def fingerprint_rows(store: GraphStore, rows: np.ndarray, bits: int = FINGERPRINT_BITS) -> np.ndarray:
    """Morgan fingerprints of some rows of a store, ``bool [R, bits]``; ``rows`` as for :func:`molecule_keys`."""
    found = _map_chunks(store, rows, lambda arrays: morgan_fingerprints(arrays, bits))
    return np.concatenate([np.empty((0, bits), bool), *found])


def molecule_arrays(store: GraphStore, rows: np.ndarray) -> MolArrays:
    """Some molecules of a store one behind another. ``rows``: ``int64 [R]``, each with at least one atom."""
    atom_ptr, bond_ptr, padded, _, bonds, bond_type_ids = store.gather(rows)
    valid = np.arange(padded.shape[1]) < np.diff(atom_ptr)[:, None]
    return MolArrays(atom_ptr, bond_ptr, padded[valid], bonds, bond_type_ids)


def _stacked(hashes: MoleculeHashes) -> np.ndarray:
    return np.stack([hashes.identity, hashes.family])


def _map_chunks(store: GraphStore, rows: np.ndarray, function: Callable[[MolArrays], np.ndarray]) -> list[np.ndarray]:
    """What a function makes of the molecules, some thousand at a time, on every core: compiled code runs beside."""
    chunks = [rows[begin : begin + _CHUNK_ROWS] for begin in range(0, len(rows), _CHUNK_ROWS)]
    if len(chunks) < 2:
        return [function(molecule_arrays(store, chunk)) for chunk in chunks]
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(lambda chunk: function(molecule_arrays(store, chunk)), chunks))
