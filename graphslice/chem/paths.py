"""Shortest paths of molecules, compiled with numba: distances, and the bonds along the way.

For every ordered pair of atoms the model needs the distance and which bonds stand at the first,
second, ... position of the shortest path (the edge encoding of Graphormer, Ying et al. 2021,
section 3.1.3). Most pairs of a batch share theirs with others, so :func:`pair_walks` lists them
once: a *walk* is a distance and some (position, bond, weight) entries, and a pair names its walk.

Two rules say what happens where several shortest paths exist, as in every even ring:

- ``MEAN``: the average over all of them. The numbering of the atoms does not enter.
- ``FLOYD_WARSHALL``: the one that Floyd-Warshall finds with the intermediate atom ascending and
  only strict improvements, which is what the original code trained on. Depends on the numbering.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.vocabulary import BOND_DIMS, BOND_WORDS, MAX_DISTANCE, UNREACHABLE

MEAN, FLOYD_WARSHALL = 0, 1

# Walks every batch begins with: nothing, and the pair of two fragments.
_EMPTY, _APART = 0, 1


def bond_words(bond_features: np.ndarray) -> np.ndarray:
    """Number each bond by its features: ``[M, 3]`` to ``uint8 [M]`` below ``BOND_WORDS``."""
    _, stereo, conjugated = BOND_DIMS
    f = bond_features.astype(np.uint8)
    return (f[:, 0] * stereo + f[:, 1]) * conjugated + f[:, 2]


@njit(cache=True)
def _grown(array):
    """The array with room for twice as many values."""
    larger = np.zeros(2 * len(array), array.dtype)
    larger[: len(array)] = array
    return larger


@njit(cache=True)
def _slot(keys, ids, key):
    """Where a key stands in the open-addressed table, or the free place where it would."""
    mixed = (key ^ (key >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    mask = np.uint64(len(keys) - 1)
    slot = (mixed >> np.uint64(20)) & mask
    while ids[slot] >= 0 and keys[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@njit(cache=True)
def _rehashed(keys, ids):
    """The table with twice the places."""
    new_keys, new_ids = np.empty(2 * len(keys), np.uint64), np.full(2 * len(ids), -1, np.int32)
    for old in range(len(keys)):
        if ids[old] >= 0:
            slot = _slot(new_keys, new_ids, keys[old])
            new_keys[slot], new_ids[slot] = keys[old], ids[old]
    return new_keys, new_ids


@njit(cache=True)
def _neighbours(num_atoms, bonds, words, begin, end, start, to, word):
    """Adjacency in compressed rows: neighbours of i are ``to[start[i]:start[i + 1]]``."""
    start[: num_atoms + 1] = 0
    for m in range(begin, end):
        start[bonds[m, 0] + 1] += 1
        start[bonds[m, 1] + 1] += 1
    for i in range(num_atoms):
        start[i + 1] += start[i]
    # Filled from the back, so that start ends where it began.
    for m in range(end - 1, begin - 1, -1):
        for side in range(2):
            a, b = bonds[m, side], bonds[m, 1 - side]
            start[a + 1] -= 1
            to[start[a + 1]], word[start[a + 1]] = b, words[m]
    for i in range(num_atoms):
        start[i] = start[i + 1]
    start[num_atoms] = 2 * (end - begin)


@njit(cache=True)
def _floyd_warshall(num_atoms, bonds, begin, end):
    """For each pair the last intermediate atom that shortened its path (-1: none)."""
    far = 1 << 20
    distance = np.full((num_atoms, num_atoms), far, np.int32)
    via = np.full((num_atoms, num_atoms), -1, np.int32)
    for i in range(num_atoms):
        distance[i, i] = 0
    for m in range(begin, end):
        distance[bonds[m, 0], bonds[m, 1]] = 1
        distance[bonds[m, 1], bonds[m, 0]] = 1
    for k in range(num_atoms):
        for i in range(num_atoms):
            to_k = distance[i, k]
            if to_k < far:
                for j in range(num_atoms):
                    if to_k + distance[k, j] < distance[i, j]:
                        distance[i, j] = to_k + distance[k, j]
                        via[i, j] = k
    return via


@njit(cache=True)
def _floyd_warshall_path(i, j, length, via, start, to, word, codes, stack):
    """The first ``length`` bonds of Floyd-Warshall's path from i to j."""
    stack[0, 0], stack[0, 1] = i, j
    depth = 1
    for position in range(length):
        depth -= 1
        a, b = stack[depth, 0], stack[depth, 1]
        while via[a, b] >= 0:
            k = via[a, b]
            stack[depth, 0], stack[depth, 1] = k, b
            depth += 1
            b = k
        for e in range(start[a], start[a + 1]):
            if to[e] == b:
                codes[position] = position * BOND_WORDS + word[e]
                break


@njit(cache=True)
def _walks_from(
    i, n, rule, max_path, start, to, word, via, row, before_search, walk, share_of, mixed, stack, lists, table, state
):
    """Name the walks from atom i to all others in ``row``; False if the lists have no room left.

    A walk is known by its parent and its last bond, or by its content where it has no one parent.
    Walks named before the room ended keep their names, so the caller makes room and calls again.
    """
    steps, count, before, by, queue = before_search
    distances, ptr, codes, shares = lists
    keys, ids = table
    row[:n] = _APART
    row[i] = walk[i] = _EMPTY
    steps[:n] = -1
    steps[i], count[i], queue[0] = 0, 1.0, i
    head, tail = 0, 1
    while head < tail:
        j = queue[head]
        head += 1
        s = steps[j]
        if j != i:
            s_capped = min(s, MAX_DISTANCE)
            extends = rule == MEAN and before[j] >= 0
            parent, num_mixed = 0, 0
            if extends and s > MAX_DISTANCE:
                walk[j] = walk[before[j]]
            else:
                if extends:
                    parent = walk[before[j]]
                    last = np.uint64(by[j]) if s <= max_path else np.uint64(255)
                    key = (np.uint64(parent) << np.uint64(8)) | last
                else:
                    if rule == MEAN:
                        for e in range(start[j], start[j + 1]):
                            u = to[e]
                            if steps[u] == s - 1:
                                part = count[u] / count[j]
                                for at in range(ptr[walk[u]], ptr[walk[u] + 1]):
                                    if share_of[codes[at]] == 0.0:
                                        mixed[num_mixed] = codes[at]
                                        num_mixed += 1
                                    share_of[codes[at]] += part * shares[at]
                                if s <= max_path:
                                    code = (s - 1) * BOND_WORDS + word[e]
                                    if share_of[code] == 0.0:
                                        mixed[num_mixed] = code
                                        num_mixed += 1
                                    share_of[code] += part
                    else:
                        num_mixed = min(s, max_path)
                        _floyd_warshall_path(i, j, num_mixed, via, start, to, word, mixed, stack)
                        for a in range(num_mixed):
                            share_of[mixed[a]] = 1.0
                    key = _content_key(s_capped, mixed, num_mixed, share_of)

                slot = _slot(keys, ids, key)
                found = ids[slot]
                if found < 0:
                    inherited = ptr[parent + 1] - ptr[parent] if extends else 0
                    if (
                        state[0] + 1 >= len(distances)
                        or state[1] + inherited + num_mixed + 1 > len(codes)
                        or 2 * state[0] > len(keys)
                    ):
                        for a in range(num_mixed):
                            share_of[mixed[a]] = 0.0
                        return False
                    found = state[0]
                    end = state[1]
                    for at in range(ptr[parent], ptr[parent] + inherited):
                        codes[end], shares[end] = codes[at], shares[at]
                        end += 1
                    if extends and s <= max_path:
                        codes[end], shares[end] = (s - 1) * BOND_WORDS + by[j], 1.0
                        end += 1
                    for a in range(num_mixed):
                        codes[end], shares[end] = mixed[a], share_of[mixed[a]]
                        end += 1
                    distances[found], ptr[found + 1] = s_capped, end
                    keys[slot], ids[slot] = key, found
                    state[0], state[1] = found + 1, end
                walk[j] = found
                for a in range(num_mixed):
                    share_of[mixed[a]] = 0.0
            row[j] = walk[j]

        for e in range(start[j], start[j + 1]):
            v = to[e]
            if steps[v] < 0:
                steps[v], count[v], before[v], by[v] = s + 1, count[j], j, word[e]
                queue[tail] = v
                tail += 1
            elif steps[v] == s + 1:
                count[v] += count[j]
                before[v] = -1
    return True


@njit(cache=True)
def _content_key(distance, mixed, num_mixed, share_of):
    """Sort the entries, round their shares, and hash them."""
    for a in range(1, num_mixed):
        code = mixed[a]
        c = a
        while c > 0 and mixed[c - 1] > code:
            mixed[c] = mixed[c - 1]
            c -= 1
        mixed[c] = code
    key = np.uint64(distance + 1) * np.uint64(0x9E3779B97F4A7C15)
    for a in range(num_mixed):
        # Rounded far above the noise of the sums, far below anything that matters.
        scaled = round(share_of[mixed[a]] * 2.0**20)
        share_of[mixed[a]] = scaled / 2.0**20
        key = (key ^ np.uint64(mixed[a])) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ (key >> np.uint64(31)) ^ np.uint64(scaled)) * np.uint64(0x94D049BB133111EB)
        key ^= key >> np.uint64(29)
    # 63 bits: two of a batch's thousands of walks share one with a chance below 1e-10.
    return key | (np.uint64(1) << np.uint64(63))


@njit(cache=True)
def pair_walks(atom_ptr, bond_ptr, bonds, words, rule, max_path, width):
    """Name the walk of every ordered pair of atoms of a batch of molecules.

    From each atom the walks grow along its breadth-first search: the walk to j is the walk to the
    atom before j and one more bond, or, where several atoms are before j, their mean weighted with
    the numbers of shortest paths to them.

    Args:
        atom_ptr: ``int64 [B + 1]``, molecule b has atoms ``atom_ptr[b]:atom_ptr[b + 1]``.
        bond_ptr: ``int64 [B + 1]``, the same for bonds.
        bonds: ``int32 [M, 2]``, atoms numbered from 0 within their molecule.
        words: ``uint8 [M]`` of :func:`bond_words`.
        rule: ``MEAN`` or ``FLOYD_WARSHALL``.
        max_path: how many bonds of a path count, from its start.
        width: the number of atoms that ``pairs`` is padded to.

    Returns:
        ``(pairs, distances, ptr, codes, weights)``: ``pairs`` is ``int32 [B, width, width]``, the
        walk of (i, j), -1 in the padding; walk w has distance ``distances[w]`` (``int32 [W]``) and
        the entries ``ptr[w]:ptr[w + 1]`` (``int32 [W + 1]``) of ``codes`` (``int32 [K]``, position
        times ``BOND_WORDS`` plus bond word) and ``weights`` (``float32 [K]``), which sum to 1.
        Several walks may be equal.
    """
    batch = len(atom_ptr) - 1
    pairs = np.full((batch, width, width), -1, np.int32)
    most_atoms, most_bonds = 1, 0
    for b in range(batch):
        most_atoms = max(most_atoms, atom_ptr[b + 1] - atom_ptr[b])
        most_bonds = max(most_bonds, bond_ptr[b + 1] - bond_ptr[b])
    start = np.zeros(most_atoms + 1, np.int32)
    to, word = np.empty(2 * most_bonds, np.int32), np.empty(2 * most_bonds, np.uint8)
    search = (
        np.empty(most_atoms, np.int32),
        np.empty(most_atoms, np.float64),
        np.empty(most_atoms, np.int32),
        np.empty(most_atoms, np.uint8),
        np.empty(most_atoms, np.int32),
    )
    walk = np.empty(most_atoms, np.int32)
    stack = np.empty((most_atoms + 1, 2), np.int32)
    share_of = np.zeros(max_path * BOND_WORDS, np.float64)
    mixed = np.empty(max_path * BOND_WORDS, np.int32)
    none = np.empty((0, 0), np.int32)

    distances, ptr = np.empty(2048, np.int32), np.zeros(2049, np.int32)
    codes, shares = np.empty(16384, np.int32), np.empty(16384, np.float32)
    distances[_EMPTY], distances[_APART] = 0, UNREACHABLE
    state = np.array([2, 0])  # walks and entries so far
    keys, ids = np.empty(8192, np.uint64), np.full(8192, -1, np.int32)

    for b in range(batch):
        n = atom_ptr[b + 1] - atom_ptr[b]
        _neighbours(n, bonds, words, bond_ptr[b], bond_ptr[b + 1], start, to, word)
        via = none
        if rule == FLOYD_WARSHALL:
            via = _floyd_warshall(n, bonds, bond_ptr[b], bond_ptr[b + 1])
        for i in range(n):
            while not _walks_from(
                i,
                n,
                rule,
                max_path,
                start,
                to,
                word,
                via,
                pairs[b, i],
                search,
                walk,
                share_of,
                mixed,
                stack,
                (distances, ptr, codes, shares),
                (keys, ids),
                state,
            ):
                distances, ptr = _grown(distances), _grown(ptr)
                codes, shares = _grown(codes), _grown(shares)
                keys, ids = _rehashed(keys, ids)
    walks, entries = state
    weights = shares[:entries].copy()
    for w in range(walks):
        for at in range(ptr[w], ptr[w + 1]):
            weights[at] /= min(distances[w], max_path)
    return pairs, distances[:walks].copy(), ptr[: walks + 1].copy(), codes[:entries].copy(), weights
