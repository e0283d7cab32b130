"""Shortest paths between all atoms of molecules: distances and bond types along the path; compiled with numba.

For every ordered pair of atoms the model needs the distance and the bond types at the first, second, ... position of
the shortest path (the edge encoding of Graphormer, Ying et al. 2021, section 3.1.3). Many pairs of a batch share them,
so :func:`shortest_path_types` lists them once: a *path type* is a distance and some (position, bond type, weight)
entries, and every pair has the index of its path type.

Two rules are available for several shortest paths, which occur in every ring of even size:

- ``MEAN``: the average over all of them, which does not depend on the numbering of the atoms.
- ``FLOYD_WARSHALL``: the one that Floyd-Warshall finds with ascending intermediate atoms and strict improvements only,
  as in the original Graphormer. It depends on the numbering.

The search starts from one atom (the source) at a time: a breadth-first search lists the other atoms by distance with
their predecessors on the shortest paths. Each atom then gets the path type of its predecessor extended by one bond, or
the mean over several predecessors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from graphslice.chem.path_search import (
    FLOYD_WARSHALL,
    MAX_BIT_ATOMS,
    MEAN,
    Molecule,
    Search,
    floyd_warshall,
    new_molecule,
    new_search,
    search_by_bits,
    search_by_queue,
    set_bonds,
)
from graphslice.chem.path_types import PathTypes, Sums, assign_path_types, grow_table, is_full, new_sums, new_table
from graphslice.feature_dims import NUM_BOND_TYPES

__all__ = ["FLOYD_WARSHALL", "MEAN", "shortest_path_types"]


class _Batch(NamedTuple):
    """Concatenated molecules. Bonds have *local ids*: the bond types of the batch, numbered from 0."""

    atom_ptr: np.ndarray  # int64 [B + 1]
    bond_ptr: np.ndarray  # int64 [B + 1]
    bonds: np.ndarray  # int32 [M, 2]
    local_ids: np.ndarray  # uint8 [M]


def _local_bond_types(bond_type_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the local id of every bond and the bond type of every local id."""
    occurs = np.zeros(NUM_BOND_TYPES, bool)
    occurs[bond_type_ids] = True
    local_id_of = (np.cumsum(occurs) - 1).astype(np.uint8)
    return local_id_of[bond_type_ids], np.flatnonzero(occurs).astype(np.uint8)


@njit(cache=True, nogil=True)
def _fill_pairs(done, batch, rule, molecule, search, table, sums, pairs):
    """Fill ``pairs`` (``int32 [B, >=N, >=N]``), starting at source ``done[1]`` of molecule ``done[0]``.

    Returns:
        True if all are filled. Otherwise the table may be too small for the source that ``done`` (``int64 [2]``) then
        refers to.
    """
    batch, molecule, search = _Batch(*batch), Molecule(*molecule), Search(*search)
    table, sums = PathTypes(*table), Sums(*sums)
    chosen = np.empty((0, 0), np.int32)
    for b in range(done[0], len(pairs)):
        num_atoms = batch.atom_ptr[b + 1] - batch.atom_ptr[b]
        bonds = batch.bonds[batch.bond_ptr[b] : batch.bond_ptr[b + 1]]
        set_bonds(num_atoms, bonds, batch.local_ids[batch.bond_ptr[b] : batch.bond_ptr[b + 1]], molecule)
        if rule == FLOYD_WARSHALL:
            chosen = floyd_warshall(num_atoms, bonds)
        for source in range(done[1], num_atoms):
            if is_full(table, num_atoms):
                done[0], done[1] = b, source
                return False
            if num_atoms <= MAX_BIT_ATOMS:
                count = search_by_bits(source, rule, chosen, molecule, search)
            else:
                count = search_by_queue(source, num_atoms, rule, chosen, molecule, search)
            assign_path_types(source, count, num_atoms, molecule, search, table, sums)
            for j in range(num_atoms):
                pairs[b, source, j] = search.path_types[j]
        done[1] = 0
    return True


def shortest_path_types(
    atom_ptr: np.ndarray,
    bond_ptr: np.ndarray,
    bonds: np.ndarray,
    bond_type_ids: np.ndarray,
    rule: int,
    max_path: int,
    width: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find the path type of every ordered pair of atoms (all-pairs shortest paths) of a batch of molecules.

    Args:
        atom_ptr: ``int64 [B + 1]``, molecule b has atoms ``atom_ptr[b]:atom_ptr[b + 1]``.
        bond_ptr: ``int64 [B + 1]``, the same for bonds.
        bonds: ``int32 [M, 2]``, atoms numbered from 0 within their molecule.
        bond_type_ids: ``uint8 [M]``, each below ``NUM_BOND_TYPES``.
        rule: ``MEAN`` or ``FLOYD_WARSHALL``.
        max_path: number of bonds of a path that have entries, from its start.
        width: the number of atoms that ``pairs`` is padded to.

    Returns:
        ``(pairs, distances, ptr, codes, weights)``: ``pairs`` is ``int32 [B, width, width]``, the
        path type of (i, j), -1 in the padding; path type w has distance ``distances[w]``
        (``int32 [W]``) and the entries ``ptr[w]:ptr[w + 1]`` (``int32 [W + 1]``) of ``codes``
        (``int32 [K]``, position times ``NUM_BOND_TYPES`` plus bond type) and ``weights``
        (``float32 [K]``), which sum to 1. Several path types may be equal.
    """
    pairs = np.full((len(atom_ptr) - 1, width, width), -1, np.int32)
    most_atoms, most_bonds = (int(np.diff(ptr).max(initial=0)) for ptr in (atom_ptr, bond_ptr))
    local_ids, of_local_id = _local_bond_types(bond_type_ids)
    batch = _Batch(atom_ptr, bond_ptr, bonds, local_ids)
    molecule, search = new_molecule(most_atoms, most_bonds), new_search(most_atoms, most_bonds)
    sums, table = new_sums(max_path), new_table(max_path, of_local_id)
    done = np.zeros(2, np.int64)
    # Plain tuples, since numba takes microseconds to find the type of each array of a named one.
    scratch = tuple(molecule), tuple(search)
    while not _fill_pairs(done, tuple(batch), rule, *scratch, tuple(table), tuple(sums), pairs):
        table = grow_table(table)
    num_types, num_entries = table.used
    distances, ptr = table.distances[:num_types].copy(), table.ptr[: num_types + 1].astype(np.int32)
    lengths = np.minimum(distances, max_path)
    weights = (table.shares[:num_entries] / np.repeat(lengths, np.diff(ptr))).astype(np.float32)
    return pairs, distances, ptr, table.codes[:num_entries].copy(), weights
