"""Hashes, scaffolds and fingerprints of all molecules of a store, computed in parallel."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from graphslice.chem.fingerprints import FINGERPRINT_BITS, morgan_fingerprints
from graphslice.chem.graph_descriptors import graph_inputs
from graphslice.chem.molecule import MolArrays
from graphslice.chem.molecule_hash import MoleculeHashes, hash_molecules, hash_scaffolds
from graphslice.data.store import GraphStore
from graphslice.hardware import cores

# Number of molecules that are copied from a store at a time.
_CHUNK_ROWS = 4_096


def molecule_keys(store: GraphStore, rows: np.ndarray) -> MoleculeHashes:
    """Return the identity and family hashes of some molecules of a store; compute them if it holds none.

    Args:
        store: preprocessed molecules.
        rows: ``int64 [R]``, each with at least one atom.
    """
    if (keys := store.keys) is not None:
        return MoleculeHashes(keys.identity[rows], keys.family[rows])
    hashes = _map_chunks(store, rows, lambda arrays: np.stack(hash_molecules(arrays), axis=1))
    return MoleculeHashes(*np.ascontiguousarray(hashes.T))


def molecule_ids(store: GraphStore, rows: np.ndarray) -> np.ndarray:
    """Number the molecules of some rows of a store: ``int64 [R]``, equal for rows of the same molecule."""
    return np.unique(molecule_keys(store, rows).identity, return_inverse=True)[1]


def scaffold_keys(store: GraphStore, rows: np.ndarray) -> np.ndarray:
    """Compute the scaffold hashes of some molecules of a store, ``uint64 [R]``; see :func:`molecule_keys`."""
    return _map_chunks(store, rows, hash_scaffolds)


def fingerprint_rows(store: GraphStore, rows: np.ndarray, bits: int = FINGERPRINT_BITS) -> np.ndarray:
    """Compute the Morgan fingerprints of some molecules of a store, ``bool [R, bits]``; see :func:`molecule_keys`."""
    return _map_chunks(store, rows, lambda arrays: morgan_fingerprints(arrays, bits))


def graph_input_rows(store: GraphStore, rows: np.ndarray) -> np.ndarray:
    """Compute the inputs of base models for molecules of a store, ``float32 [R, F]``; see :func:`molecule_keys`."""
    return _map_chunks(store, rows, graph_inputs)


def molecule_arrays(store: GraphStore, rows: np.ndarray) -> MolArrays:
    """Concatenate the arrays of some molecules of a store; ``rows``: ``int64 [R]``, each with at least one atom."""
    atom_ptr, bond_ptr, padded, _, bonds, bond_type_ids = store.gather(rows)
    valid = np.arange(padded.shape[1]) < np.diff(atom_ptr)[:, None]
    return MolArrays(atom_ptr, bond_ptr, padded[valid], bonds, bond_type_ids)


def _map_chunks(store: GraphStore, rows: np.ndarray, function: Callable[[MolArrays], np.ndarray]) -> np.ndarray:
    """Concatenate a function of chunks of molecules, in one thread per core; compiled functions run in parallel."""
    if len(rows) <= _CHUNK_ROWS:
        return function(molecule_arrays(store, rows))
    chunks = [rows[begin : begin + _CHUNK_ROWS] for begin in range(0, len(rows), _CHUNK_ROWS)]
    with ThreadPoolExecutor(cores()) as pool:
        return np.concatenate(list(pool.map(lambda chunk: function(molecule_arrays(store, chunk)), chunks)))
