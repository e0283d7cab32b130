"""Shortest paths of molecules, compiled with numba: distances, and the bonds along the way.

For every ordered pair of atoms the model needs the distance and which bonds stand at the first,
second, ... position of the shortest path (the edge encoding of Graphormer, Ying et al. 2021,
section 3.1.3). Most pairs of a batch share theirs with others, so :func:`pair_walks` names every
distinct one once: a *walk* is a distance and a list of (position, bond, weight).

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


def bond_words(bond_features: np.ndarray) -> np.ndarray:
    """Number each bond by its features: ``[M, 3]`` to ``uint8 [M]`` below ``BOND_WORDS``."""
    _, stereo, conjugated = BOND_DIMS
    f = bond_features.astype(np.uint8)
    return (f[:, 0] * stereo + f[:, 1]) * conjugated + f[:, 2]


@njit(cache=True)
def _neighbours(num_atoms, bonds, words):
    """Adjacency in compressed rows: neighbours of i are ``to[start[i]:start[i + 1]]``."""
    start = np.zeros(num_atoms + 1, np.int32)
    for m in range(len(bonds)):
        start[bonds[m, 0] + 1] += 1
        start[bonds[m, 1] + 1] += 1
    for i in range(num_atoms):
        start[i + 1] += start[i]
    fill = start[:-1].copy()
    to = np.empty(2 * len(bonds), np.int32)
    word = np.empty(2 * len(bonds), np.uint8)
    for m in range(len(bonds)):
        a, b = bonds[m, 0], bonds[m, 1]
        to[fill[a]], word[fill[a]] = b, words[m]
        to[fill[b]], word[fill[b]] = a, words[m]
        fill[a] += 1
        fill[b] += 1
    return start, to, word


@njit(cache=True)
def _breadth_first(num_atoms, start, to):
    """Distances and numbers of shortest paths between all pairs of atoms."""
    distance = np.full((num_atoms, num_atoms), UNREACHABLE, np.int32)
    count = np.zeros((num_atoms, num_atoms), np.float64)
    queue = np.empty(num_atoms, np.int32)
    for source in range(num_atoms):
        distance[source, source] = 0
        count[source, source] = 1.0
        queue[0] = source
        head, tail = 0, 1
        steps = np.zeros(num_atoms, np.int32)  # uncapped, so that equal caps do not look like ties
        while head < tail:
            u = queue[head]
            head += 1
            for e in range(start[u], start[u + 1]):
                v = to[e]
                if v != source and steps[v] == 0:
                    steps[v] = steps[u] + 1
                    distance[source, v] = steps[v]
                    queue[tail] = v
                    tail += 1
                if steps[v] == steps[u] + 1:
                    count[source, v] += count[source, u]
    return distance, count


@njit(cache=True)
def _floyd_warshall(num_atoms, bonds):
    """Distances, and for each pair the last intermediate atom that shortened it (-1: none)."""
    distance = np.full((num_atoms, num_atoms), 1 << 20, np.int32)
    via = np.full((num_atoms, num_atoms), -1, np.int32)
    for i in range(num_atoms):
        distance[i, i] = 0
    for m in range(len(bonds)):
        distance[bonds[m, 0], bonds[m, 1]] = 1
        distance[bonds[m, 1], bonds[m, 0]] = 1
    for k in range(num_atoms):
        for i in range(num_atoms):
            to_k = distance[i, k]
            for j in range(num_atoms):
                if to_k + distance[k, j] < distance[i, j]:
                    distance[i, j] = to_k + distance[k, j]
                    via[i, j] = k
    for i in range(num_atoms):
        for j in range(num_atoms):
            if distance[i, j] >= 1 << 20:
                distance[i, j] = UNREACHABLE
    return distance, via


@njit(cache=True)
def _mean_walk(i, j, length, distance, count, start, to, word, codes, weights, scratch):
    """Fill ``codes`` and ``weights`` with the bonds of all shortest paths from i to j, averaged.

    ``scratch.prob[u]`` is the share of the paths that pass u. Returns the number of entries.
    """
    prob, here, there, share = scratch
    entries = 0
    here[0] = i
    prob[i] = 1.0
    num_here = 1
    for position in range(length):
        first = entries
        num_there = 0
        for a in range(num_here):
            u = here[a]
            for e in range(start[u], start[u + 1]):
                v = to[e]
                if distance[v, j] != distance[u, j] - 1:
                    continue
                p = prob[u] * count[v, j] / count[u, j]
                if prob[v] == 0.0:
                    there[num_there] = v
                    num_there += 1
                prob[v] += p
                if share[word[e]] == 0.0:
                    # Keep the words of a position in ascending order: equal walks look equal.
                    at = entries
                    code = position * BOND_WORDS + word[e]
                    while at > first and codes[at - 1] > code:
                        codes[at] = codes[at - 1]
                        at -= 1
                    codes[at] = code
                    entries += 1
                share[word[e]] += p
        for at in range(first, entries):
            w = codes[at] - position * BOND_WORDS
            # Rounded far above the noise of the sums, far below anything that matters.
            weights[at] = round(share[w] * 2.0**20) / 2.0**20 / length
            share[w] = 0.0
        for a in range(num_here):
            prob[here[a]] = 0.0
        for a in range(num_there):
            here[a] = there[a]
        num_here = num_there
    for a in range(num_here):
        prob[here[a]] = 0.0
    return entries


@njit(cache=True)
def _floyd_warshall_walk(i, j, length, via, start, to, word, codes, weights, stack):
    """The first ``length`` bonds of Floyd-Warshall's path from i to j."""
    stack[0, 0], stack[0, 1] = i, j
    depth, entries = 1, 0
    while entries < length:
        depth -= 1
        a, b = stack[depth, 0], stack[depth, 1]
        while via[a, b] >= 0:
            k = via[a, b]
            stack[depth, 0], stack[depth, 1] = k, b
            depth += 1
            b = k
        for e in range(start[a], start[a + 1]):
            if to[e] == b:
                codes[entries] = entries * BOND_WORDS + word[e]
                weights[entries] = 1.0 / length
                break
        entries += 1
    return entries


@njit(cache=True)
def pair_walks(atom_ptr, bond_ptr, bonds, words, rule, max_path, width):
    """Name the walk of every ordered pair of atoms of a batch of molecules.

    Args:
        atom_ptr: ``int64 [B + 1]``, molecule b has atoms ``atom_ptr[b]:atom_ptr[b + 1]``.
        bond_ptr: ``int64 [B + 1]``, the same for bonds.
        bonds: ``int32 [M, 2]``, atoms numbered from 0 within their molecule.
        words: ``uint8 [M]`` of :func:`bond_words`.
        rule: ``MEAN`` or ``FLOYD_WARSHALL``.
        max_path: how many bonds of a path count, from its start.
        width: the number of atoms that ``pair`` is padded to.

    Returns:
        ``(pair, distance, ptr, codes, weights)``: ``pair`` is ``int32 [B, width, width]``, the
        walk of (i, j), -1 in the padding; walk w has distance ``distance[w]`` (``int32 [W]``) and
        the entries ``ptr[w]:ptr[w + 1]`` (``int32 [W + 1]``) of ``codes`` (``int32 [K]``, position
        times ``BOND_WORDS`` plus bond word) and ``weights`` (``float32 [K]``), which sum to 1.
    """
    batch = len(atom_ptr) - 1
    pair = np.full((batch, width, width), -1, np.int32)
    out_distance = np.empty(256, np.int32)
    out_ptr = np.zeros(257, np.int32)
    out_codes = np.empty(1024, np.int32)
    out_weights = np.empty(1024, np.float32)
    num_walks, num_entries = 0, 0
    table = np.full(1024, -1, np.int32)  # open addressing: hash of a walk -> its number
    hashes = np.empty(256, np.uint64)
    codes = np.empty(max_path * BOND_WORDS, np.int32)
    weights = np.empty(max_path * BOND_WORDS, np.float32)
    share = np.zeros(BOND_WORDS, np.float64)

    for b in range(batch):
        n = atom_ptr[b + 1] - atom_ptr[b]
        own_bonds = bonds[bond_ptr[b] : bond_ptr[b + 1]]
        start, to, word = _neighbours(n, own_bonds, words[bond_ptr[b] : bond_ptr[b + 1]])
        if rule == MEAN:
            distance, count = _breadth_first(n, start, to)
            via = np.empty((0, 0), np.int32)
        else:
            distance, via = _floyd_warshall(n, own_bonds)
            count = np.empty((0, 0), np.float64)
        scratch = (np.zeros(n, np.float64), np.empty(n, np.int32), np.empty(n, np.int32), share)
        stack = np.empty((n + 1, 2), np.int32)
        for i in range(n):
            for j in range(n):
                d = distance[i, j]
                entries = 0
                if i != j and d != UNREACHABLE:
                    length = min(d, max_path)
                    if rule == MEAN:
                        entries = _mean_walk(i, j, length, distance, count, start, to, word, codes, weights, scratch)
                    else:
                        entries = _floyd_warshall_walk(i, j, length, via, start, to, word, codes, weights, stack)
                    d = min(d, MAX_DISTANCE)

                key = np.uint64(d + 1) * np.uint64(0x9E3779B97F4A7C15)
                for e in range(entries):
                    scaled = np.uint64(weights[e] * 2.0**20)
                    key = (key ^ (np.uint64(codes[e]) + (scaled << np.uint64(12)))) * np.uint64(0xBF58476D1CE4E5B9)
                    key ^= key >> np.uint64(31)
                slot = key & np.uint64(len(table) - 1)
                found = -1
                while table[slot] >= 0:
                    w = table[slot]
                    if hashes[w] == key and out_distance[w] == d and out_ptr[w + 1] - out_ptr[w] == entries:
                        same = True
                        for e in range(entries):
                            at = out_ptr[w] + e
                            if out_codes[at] != codes[e] or out_weights[at] != weights[e]:
                                same = False
                                break
                        if same:
                            found = w
                            break
                    slot = (slot + np.uint64(1)) & np.uint64(len(table) - 1)
                if found < 0:
                    if num_walks == len(out_distance):
                        out_distance = np.concatenate((out_distance, np.empty_like(out_distance)))
                        hashes = np.concatenate((hashes, np.empty_like(hashes)))
                        out_ptr = np.concatenate((out_ptr, np.zeros(num_walks, np.int32)))
                    while num_entries + entries > len(out_codes):
                        out_codes = np.concatenate((out_codes, np.empty_like(out_codes)))
                        out_weights = np.concatenate((out_weights, np.empty_like(out_weights)))
                    out_codes[num_entries : num_entries + entries] = codes[:entries]
                    out_weights[num_entries : num_entries + entries] = weights[:entries]
                    num_entries += entries
                    found = num_walks
                    out_distance[found] = d
                    hashes[found] = key
                    table[slot] = found
                    num_walks += 1
                    out_ptr[num_walks] = num_entries
                    if 2 * num_walks > len(table):
                        table = np.full(2 * len(table), -1, np.int32)
                        for w in range(num_walks):
                            slot = hashes[w] & np.uint64(len(table) - 1)
                            while table[slot] >= 0:
                                slot = (slot + np.uint64(1)) & np.uint64(len(table) - 1)
                            table[slot] = w
                pair[b, i, j] = found
    return (
        pair,
        out_distance[:num_walks].copy(),
        out_ptr[: num_walks + 1].copy(),
        out_codes[:num_entries].copy(),
        out_weights[:num_entries].copy(),
    )
