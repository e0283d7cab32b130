"""Shortest paths between all atoms of molecules, distances and bond types along the path, and bond matrices; compiled.

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
the mean over several predecessors. One that extends another by a bond is looked up by the two, a mean of several by a
hash. A batch with more path types than the table holds starts again with a larger table.

Arrays are accessed as fields of their tuple, and a field is not used at the end of both branches of an ``if``: numba
then removes all reference counting, which would cost more than everything else. Index arrays are unsigned, since numba
checks signed indices for negative values.

Bond matrices encode the bond type and smallest ring size of every pair of atoms as one number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from graphslice.feature_dims import MAX_DISTANCE, NUM_BOND_TYPES, NUM_RING_CLASSES, UNREACHABLE

MEAN, FLOYD_WARSHALL = 0, 1


class Molecule(NamedTuple):
    """Connectivity of the current molecule; the arrays have the size of the largest molecule of the batch."""

    local_ids: np.ndarray  # uint8 [N, N], local id of the bond between two neighbours, otherwise undefined
    neighbour_ptr: np.ndarray  # uint32 [N + 1], a has neighbours[neighbour_ptr[a]:neighbour_ptr[a + 1]]
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


class Sums(NamedTuple):
    """Scratch space for a mean of path types; all shares are 0 between uses."""

    shares: np.ndarray  # float64, by code
    codes: np.ndarray  # int32, those with a share


def _scratch_space(num_atoms: int, num_bonds: int, max_path: int) -> tuple[Molecule, Search, Sums]:
    """Allocate arrays for molecules of up to a number of atoms and bonds, and paths of ``max_path`` bonds."""
    molecule = Molecule(
        local_ids=np.empty((num_atoms, num_atoms), np.uint8),
        neighbour_ptr=np.empty(num_atoms + 1, np.uint32),
        neighbours=np.empty(2 * num_bonds, np.uint32),
    )
    search = Search(
        atoms=np.empty(num_atoms, np.uint32),
        distances=np.empty(num_atoms, np.uint32),
        ptr=np.zeros(num_atoms + 1, np.uint32),
        predecessors=np.empty(num_bonds, np.uint32),
        steps=np.empty(num_atoms, np.int64),
        num_paths=np.empty(num_atoms, np.float64),
        path_types=np.empty(num_atoms, np.uint32),
    )
    codes = max_path * NUM_BOND_TYPES
    return molecule, search, Sums(np.zeros(codes, np.float64), np.empty(codes, np.int32))


@njit(cache=True)
def set_bonds(num_atoms, bonds, local_ids, molecule):
    """Fill the local ids of the bonds and the neighbours of the atoms."""
    for m in range(len(bonds)):
        a, b = bonds[m, 0], bonds[m, 1]
        molecule.local_ids[a, b] = molecule.local_ids[b, a] = local_ids[m]
    set_neighbours(num_atoms, bonds, molecule.neighbour_ptr, molecule.neighbours)


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

    Every prefix of such a path is itself the Floyd-Warshall path to its last atom: the largest intermediate atom of the
    path is the smallest possible among all shortest paths, and this holds for prefixes too.
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
def search_from(source, num_atoms, rule, chosen, molecule, search):
    """Search breadth-first and return how many atoms are reached. The queue is ``search.atoms``, where the atoms of one
    distance ascend."""
    for a in range(num_atoms):
        search.steps[a] = -1
    search.steps[source] = 0
    count, end, head, first = 0, 0, 0, 0  # first: row where the distance behind that of j begins
    j = np.uint32(source)
    while True:
        for e in range(molecule.neighbour_ptr[j], molecule.neighbour_ptr[j + 1]):
            u = molecule.neighbours[e]
            if search.steps[u] < 0:
                search.steps[u] = search.steps[j] + 1
                row = count
                while row > first and search.atoms[row - 1] > u:
                    search.atoms[row] = search.atoms[row - 1]
                    row -= 1
                search.atoms[row], search.distances[count] = u, search.steps[u]
                count += 1
            elif search.steps[u] == search.steps[j] - 1 and (rule == MEAN or u == chosen[source, j]):
                search.predecessors[end] = u
                end += 1
        if j != source:
            head += 1
            search.ptr[head] = end
        if head == count:
            return count
        if head == first:
            first = count
        j = search.atoms[head]


# The first two path types of every table: an atom with itself, and atoms in different fragments.
_SAME_ATOM, _UNREACHABLE = 0, 1
_NONE = 0  # lookup tables: no path type yet
# Path types that a table can hold at first; a batch of 128 molecules of 16 atoms has up to 3,000.
_TABLE_SIZE = 8_192


class PathTypes(NamedTuple):
    """The W path types of a batch found so far, with K entries, in arrays with spare capacity; the share of an entry is
    the fraction of the shortest paths with this bond type at this position."""

    max_path: int  # number of bonds of a path that have entries
    bond_type_ids: np.ndarray  # uint8 [L], the bond type of each local id
    used: np.ndarray  # int64 [2], W and K
    distances: np.ndarray  # int32 [W]
    ptr: np.ndarray  # uint32 [W + 1], path type w has the entries ptr[w]:ptr[w + 1]
    codes: np.ndarray  # int32 [K], position * NUM_BOND_TYPES + bond type
    shares: np.ndarray  # float32 [K]
    extended: np.ndarray  # uint32 [W, L + 1], the path type with one more bond, by its local id; L: beyond max_path
    keys: np.ndarray  # uint64, open-addressed hash table: the key of a mean of path types ...
    means: np.ndarray  # uint32, ... and its path type


def new_table(max_path: int, bond_type_ids: np.ndarray, size: int) -> PathTypes:
    """Create a :class:`PathTypes` for up to ``size`` path types, a power of 2, with the first two, same atom and
    different fragments, given the bond type of each local id (integer ``[L]``)."""
    table = PathTypes(
        max_path=max_path,
        bond_type_ids=bond_type_ids,
        used=np.array([2, 0]),
        distances=np.empty(size, np.int32),
        ptr=np.zeros(size + 1, np.uint32),
        codes=np.empty(8 * size, np.int32),
        shares=np.empty(8 * size, np.float32),
        extended=np.zeros((size, len(bond_type_ids) + 1), np.uint32),
        keys=np.empty(2 * size, np.uint64),
        means=np.zeros(2 * size, np.uint32),
    )
    table.distances[_SAME_ATOM], table.distances[_UNREACHABLE] = 0, UNREACHABLE
    return table


@njit(cache=True, forceinline=True)
def _slot(keys, means, key):
    """Slot of a key in the hash table, or the free slot for it."""
    mask = np.uint64(len(keys) - 1)
    slot = (key >> np.uint64(20)) & mask
    while means[slot] != _NONE and keys[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(cache=True, forceinline=True)
def is_full(table, num_atoms):
    """True if the path types from one source to ``num_atoms`` atoms might exceed the capacity."""
    most_entries = num_atoms * table.max_path * len(table.bond_type_ids)
    free_rows = len(table.distances) - table.used[0] - num_atoms
    return min(free_rows, len(table.codes) - table.used[1] - most_entries) < 0


@njit(cache=True, forceinline=True)
def _add_extended(parent, local_id, distance, table):
    """Add the path type that extends another one by one bond; return its index."""
    path_type, end = table.used[0], table.used[1]
    for e in range(table.ptr[parent], table.ptr[parent + 1]):
        table.codes[end], table.shares[end] = table.codes[e], table.shares[e]
        end += 1
    if local_id < len(table.bond_type_ids):
        table.codes[end], table.shares[end] = (distance - 1) * NUM_BOND_TYPES + table.bond_type_ids[local_id], 1.0
        end += 1
    table.distances[path_type], table.ptr[path_type + 1] = distance, end
    table.extended[parent, local_id] = path_type
    table.used[0], table.used[1] = path_type + 1, end
    return path_type


@njit(cache=True, forceinline=True, error_model="numpy")
def _key_of_mean(k, num_paths, molecule, search, max_path):
    """Hash the predecessors of row k: their path types, bonds to it, and shares of its paths."""
    j, distance, begin, end = search.atoms[k], search.distances[k], search.ptr[k], search.ptr[k + 1]
    key = np.uint64(min(distance, MAX_DISTANCE))
    for p in range(begin, end):
        u = search.predecessors[p]
        local_id = np.uint64(molecule.local_ids[j, u]) if distance <= max_path else np.uint64(255)
        part = (np.uint64(search.path_types[u]) << np.uint64(8) | local_id) * np.uint64(0x9E3779B97F4A7C15)
        share = np.uint64(search.num_paths[u] / num_paths * 2.0**32)
        part = (part ^ (part >> np.uint64(29)) ^ share) * np.uint64(0xBF58476D1CE4E5B9)
        part = (part ^ (part >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
        key += part ^ (part >> np.uint64(31))  # a sum: the order of the predecessors must not matter
    # Two of a batch's thousands of path types share one of 2^64 keys with a chance below 1e-10.
    return key * np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, forceinline=True)
def _add_share(sums, count, code, share):
    """Add to the share of a code; return the number of codes with a share, each of which is listed once."""
    if share > 0.0:  # it may underflow to 0, or be nan after an overflow, if there are very many shortest paths
        if sums.shares[code] == 0.0:
            sums.codes[count] = code
            count += 1
        sums.shares[code] += share
    return count


@njit(cache=True, forceinline=True, error_model="numpy")
def _add_mean(k, num_paths, molecule, search, table, sums):
    """Add the path type of row k as the mean over its predecessors; return its index."""
    j, distance = search.atoms[k], search.distances[k]
    count = 0
    for p in range(search.ptr[k], search.ptr[k + 1]):
        u = search.predecessors[p]
        parent, share = search.path_types[u], search.num_paths[u] / num_paths
        for e in range(table.ptr[parent], table.ptr[parent + 1]):
            count = _add_share(sums, count, table.codes[e], share * table.shares[e])
        if distance <= table.max_path:
            code = (distance - 1) * NUM_BOND_TYPES + table.bond_type_ids[molecule.local_ids[j, u]]
            count = _add_share(sums, count, code, share)
    path_type, end = table.used[0], table.used[1]
    for a in range(count):
        code = sums.codes[a]
        # Rounding is far coarser than the rounding errors of the sums, and far finer than relevant differences.
        share = round(sums.shares[code] * 2.0**20) / 2.0**20
        sums.shares[code] = 0.0
        if share > 0.0:
            table.codes[end], table.shares[end] = code, share
            end += 1
    table.distances[path_type], table.ptr[path_type + 1] = min(distance, MAX_DISTANCE), end
    table.used[0], table.used[1] = path_type + 1, end
    return path_type


@njit(cache=True, inline="always")
def assign_path_types(source, count, num_atoms, molecule, search, table, sums):
    """Assign a path type to the source and every atom, and add new path types to the table."""
    for a in range(num_atoms):
        search.path_types[a] = _UNREACHABLE
    search.path_types[source], search.num_paths[source] = _SAME_ATOM, 1.0
    for k in range(count):
        j, distance, begin, end = search.atoms[k], search.distances[k], search.ptr[k], search.ptr[k + 1]
        u = search.predecessors[begin]
        parent, num_paths = search.path_types[u], search.num_paths[u]
        if end - begin == 1:
            local_id = np.uint64(molecule.local_ids[j, u])
            if distance > table.max_path:
                local_id = np.uint64(len(table.bond_type_ids))
            path_type = table.extended[parent, local_id]
            if distance > MAX_DISTANCE:
                path_type = parent
            elif path_type == _NONE:
                path_type = _add_extended(parent, local_id, distance, table)
        else:
            for p in range(begin + 1, end):
                num_paths += search.num_paths[search.predecessors[p]]
            key = _key_of_mean(k, num_paths, molecule, search, table.max_path)
            slot = _slot(table.keys, table.means, key)
            if table.means[slot] == _NONE:
                table.keys[slot] = key
                table.means[slot] = _add_mean(k, num_paths, molecule, search, table, sums)
            path_type = table.means[slot]
        search.path_types[j], search.num_paths[j] = path_type, num_paths


@njit(cache=True, nogil=True)
def _fill_pairs(atom_ptr, bond_ptr, bonds, local_ids, rule, molecule, search, sums, table, pairs):
    """Fill ``pairs`` (``int32 [B, >=N, >=N]``) and the table; False if that may be too small."""
    molecule, search, sums, table = Molecule(*molecule), Search(*search), Sums(*sums), PathTypes(*table)
    chosen = np.empty((0, 0), np.int32)
    for b in range(len(pairs)):
        num_atoms, begin, end = atom_ptr[b + 1] - atom_ptr[b], bond_ptr[b], bond_ptr[b + 1]
        set_bonds(num_atoms, bonds[begin:end], local_ids[begin:end], molecule)
        if rule == FLOYD_WARSHALL:
            chosen = floyd_warshall(num_atoms, bonds[begin:end])
        for source in range(num_atoms):
            if is_full(table, num_atoms):
                return False
            count = search_from(source, num_atoms, rule, chosen, molecule, search)
            assign_path_types(source, count, num_atoms, molecule, search, table, sums)
            for j in range(num_atoms):
                pairs[b, source, j] = search.path_types[j]
    return True


def shortest_path_types(
    atom_ptr: np.ndarray,  # int64 [B + 1], molecule b has atoms atom_ptr[b]:atom_ptr[b + 1]
    bond_ptr: np.ndarray,  # int64 [B + 1], the same for bonds
    bonds: np.ndarray,  # int32 [M, 2], atoms numbered from 0 within their molecule
    bond_type_ids: np.ndarray,  # uint8 [M], each below NUM_BOND_TYPES
    rule: int,  # MEAN or FLOYD_WARSHALL
    max_path: int,  # number of bonds of a path that have entries, from its start
    width: int,  # the number of atoms that pairs is padded to
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find the path type of every ordered pair of atoms (all-pairs shortest paths) of a batch of molecules. Returns
    ``(pairs, distances, ptr, codes, weights)``: ``pairs`` is ``int32 [B, width, width]``, the path type of (i, j), -1
    in the padding; path type w has distance ``distances[w]`` (``int32 [W]``) and the entries ``ptr[w]:ptr[w + 1]``
    (``int32 [W + 1]``) of ``codes`` (``int32 [K]``, position times ``NUM_BOND_TYPES`` plus bond type) and ``weights``
    (``float32 [K]``), which sum to 1. Several path types may be equal."""
    pairs = np.full((len(atom_ptr) - 1, width, width), -1, np.int32)
    most_atoms, most_bonds = (int(np.diff(ptr).max(initial=0)) for ptr in (atom_ptr, bond_ptr))
    # Local ids of bonds: the bond types of the batch, numbered from 0.
    occurs = np.bincount(bond_type_ids, minlength=NUM_BOND_TYPES) > 0
    of_local_id, local_ids = np.flatnonzero(occurs).astype(np.uint8), (np.cumsum(occurs) - 1).astype(np.uint8)
    # Plain tuples, since numba takes microseconds to find the type of each array of a named one.
    scratch = map(tuple, _scratch_space(most_atoms, most_bonds, max_path))
    arguments = atom_ptr, bond_ptr, bonds, local_ids[bond_type_ids], rule, *scratch
    table = new_table(max_path, of_local_id, size := _TABLE_SIZE)
    while not _fill_pairs(*arguments, tuple(table), pairs):
        table = new_table(max_path, of_local_id, size := 4 * size)
    num_types, num_entries = table.used
    distances, ptr = table.distances[:num_types].copy(), table.ptr[: num_types + 1].astype(np.int32)
    lengths = np.minimum(distances, max_path)
    weights = (table.shares[:num_entries] / np.repeat(lengths, np.diff(ptr))).astype(np.float32)
    return pairs, distances, ptr, table.codes[:num_entries].copy(), weights


def bond_matrices(
    atom_ptr: np.ndarray, bond_ptr: np.ndarray, bonds: np.ndarray, bond_type_ids: np.ndarray, width: int
) -> np.ndarray:
    """Compute the bond matrices of molecules, ``int16 [B, width + 1, width + 1]``, for message passing along bonds.

    The entry of two rows is 1 + bond type + 60 times the ring class of the bond between them; 0 without a bond. Row 0
    is the graph token. The ring class is 0 for a bond in no ring, 1 to 6 for a smallest ring of 3 to 8 atoms, and 7 for
    larger ones. Arrays are as for :func:`shortest_path_types`; the largest molecule has at most ``width`` atoms.
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
