"""Table of the distinct path types of a batch, which grows on demand; compiled with numba.

A path type is a distance and some (position, bond type, weight) entries. A path type that extends another one by one
bond is looked up by the two; one that is the mean of several is looked up by a hash. The notes on tuples and unsigned
indices in :mod:`~graphslice.chem.path_search` apply here too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from graphslice.feature_dims import MAX_DISTANCE, NUM_BOND_TYPES, UNREACHABLE

# The first two path types of every table: an atom with itself, and atoms in different fragments.
_SAME_ATOM, _UNREACHABLE = 0, 1
_NONE = 0  # lookup tables: no path type yet


class PathTypes(NamedTuple):
    """The W path types of a batch found so far, with K entries, in arrays with spare capacity.

    The share of an entry is the fraction of the shortest paths with this bond type at this position.
    """

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


class Sums(NamedTuple):
    """Scratch space for a mean of path types; all shares are 0 between uses."""

    shares: np.ndarray  # float64, by code
    codes: np.ndarray  # int32, those with a share


def new_sums(max_path: int) -> Sums:
    """Allocate a :class:`Sums` for paths of ``max_path`` bonds with entries."""
    size = max_path * NUM_BOND_TYPES
    return Sums(np.zeros(size, np.float64), np.empty(size, np.int32))


def new_table(max_path: int, bond_type_ids: np.ndarray) -> PathTypes:
    """Create a :class:`PathTypes` with the first two path types: same atom, and different fragments.

    Args:
        max_path: number of bonds of a path that have entries.
        bond_type_ids: integer ``[L]``, bond type of each local id.
    """
    table = PathTypes(
        max_path=max_path,
        bond_type_ids=bond_type_ids,
        used=np.array([2, 0]),
        distances=np.empty(4096, np.int32),
        ptr=np.zeros(4097, np.uint32),
        codes=np.empty(32768, np.int32),
        shares=np.empty(32768, np.float32),
        extended=np.zeros((4096, len(bond_type_ids) + 1), np.uint32),
        keys=np.empty(8192, np.uint64),
        means=np.zeros(8192, np.uint32),
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


def grow_table(table: PathTypes) -> PathTypes:
    """Copy the path types to arrays of twice the capacity."""
    keys, means = np.empty(2 * len(table.keys), np.uint64), np.zeros(2 * len(table.means), np.uint32)
    _copy_hash_table(table.keys, table.means, keys, means)
    return table._replace(
        distances=_doubled(table.distances),
        ptr=_doubled(table.ptr),
        codes=_doubled(table.codes),
        shares=_doubled(table.shares),
        extended=_doubled(table.extended),
        keys=keys,
        means=means,
    )


def _doubled(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, np.zeros_like(array)])


@njit(cache=True)
def _copy_hash_table(keys, means, larger_keys, larger_means):
    for old in range(len(keys)):
        if means[old] != _NONE:
            slot = _slot(larger_keys, larger_means, keys[old])
            larger_keys[slot], larger_means[slot] = keys[old], means[old]


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
