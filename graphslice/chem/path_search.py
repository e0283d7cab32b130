"""Breadth-first and Floyd-Warshall shortest-path searches in a molecule: distances and predecessors; compiled.

Arrays are accessed as fields of their tuple, and a field is not used at the end of both branches of an ``if``: numba
then removes all reference counting, which would cost more than everything else. Index arrays are unsigned, since numba
checks signed indices for negative values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

MEAN, FLOYD_WARSHALL = 0, 1

#: Most atoms for :func:`search_by_bits`, which stores a set of atoms in one 64-bit number.
MAX_BIT_ATOMS = 64


class Molecule(NamedTuple):
    """Connectivity of the current molecule; the arrays have the size of the largest molecule of the batch."""

    local_ids: np.ndarray  # uint8 [N, N], local id of the bond between two neighbours, otherwise undefined
    neighbour_bits: np.ndarray  # uint64 [64], bit b of entry a: a and b are neighbours; only up to 64 atoms
    neighbour_ptr: np.ndarray  # uint32 [N + 1], a has neighbours[neighbour_ptr[a]:neighbour_ptr[a + 1]]; above 64
    neighbours: np.ndarray  # uint32 [2M]


class Search(NamedTuple):
    """Atoms reached by a search from one source, in rows by increasing distance; the source itself has no row."""

    atoms: np.ndarray  # uint32 [N]
    distances: np.ndarray  # uint32 [N]
    ptr: np.ndarray  # uint32 [N + 1], row k has predecessors[ptr[k]:ptr[k + 1]]
    predecessors: np.ndarray  # uint32 [M], neighbours one bond closer to the source
    steps: np.ndarray  # int64 [N], by atom: its distance, -1 before it is reached
    num_paths: np.ndarray  # float64 [N], by atom: number of shortest paths from the source
    path_types: np.ndarray  # uint32 [N], by atom: the path type of the source and it


@intrinsic
def lowest_bit(typingctx, bits):
    """Index of the lowest set bit of a uint64 other than 0: one machine instruction."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


def new_molecule(num_atoms: int, num_bonds: int) -> Molecule:
    """Allocate a :class:`Molecule` for a number of atoms and bonds; :func:`set_bonds` fills it."""
    return Molecule(
        local_ids=np.empty((num_atoms, num_atoms), np.uint8),
        neighbour_bits=np.empty(MAX_BIT_ATOMS, np.uint64),
        neighbour_ptr=np.empty(num_atoms + 1, np.uint32),
        neighbours=np.empty(2 * num_bonds, np.uint32),
    )


def new_search(num_atoms: int, num_bonds: int) -> Search:
    """Allocate a :class:`Search` for a number of atoms and bonds; a search fills it."""
    return Search(
        atoms=np.empty(num_atoms, np.uint32),
        distances=np.empty(num_atoms, np.uint32),
        ptr=np.zeros(num_atoms + 1, np.uint32),
        predecessors=np.empty(num_bonds, np.uint32),
        steps=np.empty(num_atoms, np.int64),
        num_paths=np.empty(num_atoms, np.float64),
        path_types=np.empty(num_atoms, np.uint32),
    )


@njit(cache=True)
def set_bonds(num_atoms, bonds, local_ids, molecule):
    """Fill the local ids of the bonds and the neighbours of the atoms, in the form that the search needs."""
    for m in range(len(bonds)):
        a, b = bonds[m, 0], bonds[m, 1]
        molecule.local_ids[a, b] = molecule.local_ids[b, a] = local_ids[m]
    if num_atoms <= MAX_BIT_ATOMS:
        _set_neighbour_bits(num_atoms, bonds, molecule)
    else:
        set_neighbours(num_atoms, bonds, molecule.neighbour_ptr, molecule.neighbours)


@njit(cache=True)
def _set_neighbour_bits(num_atoms, bonds, molecule):
    for a in range(num_atoms):
        molecule.neighbour_bits[a] = 0
    for m in range(len(bonds)):
        a, b = bonds[m, 0], bonds[m, 1]
        molecule.neighbour_bits[a] |= np.uint64(1) << np.uint64(b)
        molecule.neighbour_bits[b] |= np.uint64(1) << np.uint64(a)


@njit(cache=True)
def set_neighbours(num_atoms, bonds, ptr, neighbours):
    """Fill uint32 ``ptr [N + 1]`` and ``neighbours [2 M]``; atom a has ``neighbours[ptr[a]:ptr[a + 1]]``."""
    for a in range(num_atoms + 1):
        ptr[a] = 0
    for m in range(len(bonds)):
        for side in range(2):
            ptr[bonds[m, side] + 1] += 1
    for a in range(num_atoms):
        ptr[a + 1] += ptr[a]
    for m in range(len(bonds)):
        for side in range(2):
            a = bonds[m, side]
            neighbours[ptr[a]] = bonds[m, 1 - side]
            ptr[a] += 1
    for a in range(num_atoms, 0, -1):  # ptr[a] is the end of a's neighbours now, which is the begin of the next atom's
        ptr[a] = ptr[a - 1]
    ptr[0] = 0


@njit(cache=True)
def floyd_warshall(num_atoms, bonds):
    """Find for each pair (i, j) the atom before j on the Floyd-Warshall path from i.

    Every prefix of such a path is itself the Floyd-Warshall path to its last atom: the largest intermediate atom of
    the path is the smallest possible among all shortest paths, and this holds for prefixes too.
    """
    distance = np.full((num_atoms, num_atoms), 1 << 20, np.int32)
    before = np.empty((num_atoms, num_atoms), np.int32)  # undefined without a path
    degree = np.zeros(num_atoms, np.int64)
    for i in range(num_atoms):
        distance[i, i] = 0
    for m in range(len(bonds)):
        a, b = bonds[m, 0], bonds[m, 1]
        distance[a, b] = distance[b, a] = 1
        before[a, b], before[b, a] = a, b
        degree[a] += 1
        degree[b] += 1
    for k in range(num_atoms):
        if degree[k] < 2:  # no shortest path passes through a terminal atom
            continue
        for i in range(num_atoms):
            to_k = distance[i, k]
            for j in range(num_atoms):
                shorter = to_k + distance[k, j] < distance[i, j]
                distance[i, j] = to_k + distance[k, j] if shorter else distance[i, j]
                before[i, j] = before[k, j] if shorter else before[i, j]
    return before


@njit(cache=True)
def search_by_bits(source, rule, chosen, molecule, search):
    """Search breadth-first in a molecule of at most 64 atoms; return the number of atoms reached.

    A set of atoms is a 64-bit number in a register: for molecules, the mispredicted branches of an ordinary search
    would dominate the cost.
    """
    one = np.uint64(1)
    count, end, distance = 0, 0, 0
    front = one << np.uint64(source)
    unseen = ~front
    while front != 0:
        distance += 1
        ahead = np.uint64(0)
        bits = front
        while bits != 0:
            ahead |= molecule.neighbour_bits[lowest_bit(bits)]
            bits &= bits - one
        ahead &= unseen
        unseen &= ~ahead
        bits = ahead
        while bits != 0:
            j = lowest_bit(bits)
            bits &= bits - one
            search.atoms[count], search.distances[count] = j, distance
            count += 1
            before = molecule.neighbour_bits[j] & front
            if rule == FLOYD_WARSHALL:
                before = one << np.uint64(chosen[source, j])
            while before != 0:
                search.predecessors[end] = lowest_bit(before)
                before &= before - one
                end += 1
            search.ptr[count] = end
        front = ahead
    return count


@njit(cache=True)
def search_by_queue(source, num_atoms, rule, chosen, molecule, search):
    """Search breadth-first as :func:`search_by_bits`, in a molecule of any size; ``search.atoms`` is the queue."""
    for a in range(num_atoms):
        search.steps[a] = -1
    search.steps[source] = 0
    count, end, head = 0, 0, 0
    j = np.uint32(source)
    while True:
        for e in range(molecule.neighbour_ptr[j], molecule.neighbour_ptr[j + 1]):
            u = molecule.neighbours[e]
            if search.steps[u] < 0:
                search.steps[u] = search.steps[j] + 1
                search.atoms[count], search.distances[count] = u, search.steps[u]
                count += 1
            elif search.steps[u] == search.steps[j] - 1 and (rule == MEAN or u == chosen[source, j]):
                search.predecessors[end] = u
                end += 1
        if j != source:
            head += 1
            search.ptr[head] = end
        if head == count:
            return count
        j = search.atoms[head]
