"""Bond matrices: the bond type and smallest ring size of every pair of atoms, encoded as one number."""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.chem.path_search import set_neighbours
from graphslice.feature_dims import NUM_BOND_TYPES, NUM_RING_CLASSES


def bond_matrices(
    atom_ptr: np.ndarray, bond_ptr: np.ndarray, bonds: np.ndarray, bond_type_ids: np.ndarray, width: int
) -> np.ndarray:
    """Compute the bond matrices of B molecules, for models with message passing along bonds.

    Args:
        atom_ptr, bond_ptr: ``int64 [B + 1]``, offsets of the atoms and bonds of each molecule.
        bonds: ``int32 [M, 2]``, atoms numbered within their molecule.
        bond_type_ids: ``uint8 [M]``.
        width: N, at least the number of atoms of the largest molecule.

    Returns:
        ``int16 [B, N + 1, N + 1]``: 1 + bond type + 60 times the ring class of the bond between two rows; 0 without a
        bond. Row 0 is the graph token. The ring class is 0 for a bond in no ring, 1 to 6 for a smallest ring of 3 to 8
        atoms, and 7 for larger ones.
    """
    matrices = np.zeros((len(atom_ptr) - 1, width + 1, width + 1), np.int16)
    _write(atom_ptr, bond_ptr, np.ascontiguousarray(bonds), bond_type_ids, matrices)
    return matrices


@njit(cache=True, nogil=True)
def _write(atom_ptr, bond_ptr, bonds, bond_type_ids, matrices):
    for b in range(len(atom_ptr) - 1):
        first, count = bond_ptr[b], bond_ptr[b + 1] - bond_ptr[b]
        atoms = atom_ptr[b + 1] - atom_ptr[b]
        ptr, neighbours = np.empty(atoms + 1, np.uint32), np.empty(2 * count, np.uint32)
        distances, queue = np.empty(atoms, np.int64), np.empty(atoms, np.int64)
        set_neighbours(atoms, bonds[first : first + count], ptr, neighbours)
        for m in range(first, first + count):
            i, j = bonds[m, 0], bonds[m, 1]
            size = _smallest_ring(i, j, atoms, ptr, neighbours, distances, queue)
            ring = 0 if size == 0 else min(size - 2, NUM_RING_CLASSES - 1)
            code = 1 + bond_type_ids[m] + NUM_BOND_TYPES * ring
            matrices[b, i + 1, j + 1] = code
            matrices[b, j + 1, i + 1] = code


@njit(cache=True)
def _smallest_ring(start, goal, atoms, ptr, neighbours, distances, queue):
    """Number of atoms of the smallest ring with the bond between two atoms; 0 if there is none."""
    distances[:atoms] = -1
    distances[start] = 0
    queue[0] = start
    head, tail = 0, 1
    while head < tail:
        atom = queue[head]
        head += 1
        for k in range(ptr[atom], ptr[atom + 1]):
            neighbour = np.int64(neighbours[k])
            if distances[neighbour] >= 0 or (atom == start and neighbour == goal):
                continue
            distances[neighbour] = distances[atom] + 1
            if neighbour == goal:
                return distances[neighbour] + 1
            queue[tail] = neighbour
            tail += 1
    return 0
