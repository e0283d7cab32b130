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
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from graphslice.feature_dims import BOND_WORDS, MAX_DISTANCE, UNREACHABLE

MEAN, FLOYD_WARSHALL = 0, 1

# Walks every batch begins with: nothing, and the pair of two fragments.
_EMPTY, _APART = 0, 1


@njit(cache=True)
def _grown(array):
    """The array with room for twice as many values."""
    larger = np.zeros(2 * len(array), array.dtype)
    larger[: len(array)] = array
    return larger


@njit(cache=True)
def _slot(keys, ids, key):
    """Where a key stands in the open-addressed table, or the free place where it would."""
    mask = np.uint64(len(keys) - 1)
    slot = (key >> np.uint64(20)) & mask
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


@intrinsic
def _lowest(typingctx, bits):
    """The number of the lowest bit that is set, of an uint64 that is not 0: one machine instruction."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@njit(cache=True)
def _floyd_warshall(num_atoms, bonds):
    """For each pair (i, j) the atom before j on the path that Floyd-Warshall finds from i.

    Every beginning of such a path is itself the path to where it ends: the intermediate atom kept
    is the smallest that can be the largest of a shortest path, and so it is for the beginnings.
    """
    distance = np.full((num_atoms, num_atoms), 1 << 20, np.int32)
    before = np.zeros((num_atoms, num_atoms), np.int32)
    for i in range(num_atoms):
        distance[i, i] = 0
    for m in range(len(bonds)):
        a, b = bonds[m, 0], bonds[m, 1]
        distance[a, b] = distance[b, a] = 1
        before[a, b], before[b, a] = a, b
    for k in range(num_atoms):
        for i in range(num_atoms):
            to_k = distance[i, k]
            for j in range(num_atoms):
                shorter = to_k + distance[k, j] < distance[i, j]
                distance[i, j] = to_k + distance[k, j] if shorter else distance[i, j]
                before[i, j] = before[k, j] if shorter else before[i, j]
    return before


@njit(cache=True)
def _by_bits(
    first, num_atoms, bonds, code, near, rule, max_path, chosen, row, count, parents, following, keys, ids,
    word_of, distances, ptr, codes, shares, share_of, found, used, spare,
):  # fmt: skip
    """Name the walks from atoms ``first``... of a molecule of at most 64 atoms to all its atoms.

    Sets of atoms are the bits of a number, in a register: on molecules, the branches of an ordinary
    search, which no processor can foresee, cost more than all else.

    Returns:
        The first atom whose walks the lists have no more room for; ``num_atoms`` when all are done.
    """
    one = np.uint64(1)
    near[:num_atoms] = 0
    for m in range(len(bonds)):
        near[bonds[m, 0]] |= one << np.uint64(bonds[m, 1])
        near[bonds[m, 1]] |= one << np.uint64(bonds[m, 0])
    for i in range(first, num_atoms):
        if used[0] + num_atoms > len(distances) or used[1] + spare > len(codes):
            return i
        for j in range(num_atoms):
            row[i, j] = _APART
        row[i, i], count[i] = _EMPTY, 1.0
        front = one << np.uint64(i)
        unseen = ~front
        steps = 0
        while front != 0:
            steps += 1
            ahead = np.uint64(0)
            bits = front
            while bits != 0:
                ahead |= near[_lowest(bits)]
                bits &= bits - one
            ahead &= unseen
            unseen &= ~ahead
            bits = ahead
            while bits != 0:
                j = _lowest(bits)
                bits &= bits - one
                before = near[j] & front
                if rule == FLOYD_WARSHALL:
                    before = one << np.uint64(chosen[i, j])
                u = _lowest(before)
                if before & (before - one) == 0:
                    count[j] = count[u]
                    last = code[j, u] if steps <= max_path else len(word_of)
                    name = following[row[i, u], last]
                    if name < 0:
                        name = _extended(
                            row[i, u], last, steps, following, word_of, distances, ptr, codes, shares, used
                        )
                    row[i, j] = name
                else:
                    several = 0
                    while before != 0:
                        parents[several] = _lowest(before)
                        before &= before - one
                        several += 1
                    key = _key_of(i, j, parents, several, steps, max_path, code, row, count)
                    slot = _slot(keys, ids, key)
                    if ids[slot] < 0:
                        keys[slot] = key
                        ids[slot] = _joined(
                            i, j, parents, several, steps, max_path, code, row, count,
                            word_of, distances, ptr, codes, shares, share_of, found, used,
                        )  # fmt: skip
                    row[i, j] = ids[slot]
            front = ahead
    return num_atoms


@njit(cache=True)
def _by_queue(
    first, num_atoms, bonds, code, start, to, steps, queue, rule, max_path, chosen, row, count, parents, following,
    keys, ids, word_of, distances, ptr, codes, shares, share_of, found, used, spare,
):  # fmt: skip
    """What :func:`_by_bits` does, for molecules of any size."""
    start[: num_atoms + 1] = 0
    for m in range(len(bonds)):
        start[bonds[m, 0] + 1] += 1
        start[bonds[m, 1] + 1] += 1
    for i in range(num_atoms):
        start[i + 1] += start[i]
    steps[:num_atoms] = 0  # how many neighbours are in their places
    for m in range(len(bonds)):
        for side in range(2):
            a = bonds[m, side]
            to[start[a] + steps[a]] = bonds[m, 1 - side]
            steps[a] += 1
    for i in range(first, num_atoms):
        if used[0] + num_atoms > len(distances) or used[1] + spare > len(codes):
            return i
        for j in range(num_atoms):
            row[i, j] = _APART
            steps[j] = -1
        row[i, i], count[i], steps[i], queue[0] = _EMPTY, 1.0, 0, i
        head, tail = 0, 1
        while head < tail:
            j = queue[head]
            head += 1
            several = 0
            for e in range(start[j], start[j + 1]):
                u = to[e]
                if steps[u] < 0:
                    steps[u] = steps[j] + 1
                    queue[tail] = u
                    tail += 1
                elif steps[u] == steps[j] - 1 and (rule == MEAN or u == chosen[i, j]):
                    parents[several] = u
                    several += 1
            if several == 1:
                u = parents[0]
                count[j] = count[u]
                last = code[j, u] if steps[j] <= max_path else len(word_of)
                name = following[row[i, u], last]
                if steps[j] > MAX_DISTANCE:
                    name = row[i, u]
                elif name < 0:
                    name = _extended(row[i, u], last, steps[j], following, word_of, distances, ptr, codes, shares, used)
                row[i, j] = name
            elif several > 1:
                key = _key_of(i, j, parents, several, steps[j], max_path, code, row, count)
                slot = _slot(keys, ids, key)
                if ids[slot] < 0:
                    keys[slot] = key
                    ids[slot] = _joined(
                        i, j, parents, several, steps[j], max_path, code, row, count,
                        word_of, distances, ptr, codes, shares, share_of, found, used,
                    )  # fmt: skip
                row[i, j] = ids[slot]
    return num_atoms


@njit(cache=True)
def _extended(parent, last, steps, following, word_of, distances, ptr, codes, shares, used):
    """Name the walk of one more bond after another walk."""
    name, end = used[0], used[1]
    for at in range(ptr[parent], ptr[parent + 1]):
        codes[end], shares[end] = codes[at], shares[at]
        end += 1
    if last < len(word_of):
        codes[end], shares[end] = (steps - 1) * BOND_WORDS + word_of[last], 1.0
        end += 1
    distances[name], ptr[name + 1] = steps, end
    following[parent, last] = name
    used[0], used[1] = name + 1, end
    return name


@njit(cache=True)
def _key_of(i, j, parents, several, steps, max_path, code, row, count):
    """A hash of the walks to the atoms before j, their last bonds and their shares of the paths; sets ``count[j]``."""
    paths = 0.0
    for a in range(several):
        paths += count[parents[a]]
    count[j] = paths
    key = np.uint64(min(steps, MAX_DISTANCE))
    for a in range(several):
        u = parents[a]
        last = np.uint64(code[j, u]) if steps <= max_path else np.uint64(255)
        part = (np.uint64(row[i, u]) << np.uint64(8) | last) * np.uint64(0x9E3779B97F4A7C15)
        share = np.uint64(count[u] / paths * 2.0**32)
        part = (part ^ (part >> np.uint64(29)) ^ share) * np.uint64(0xBF58476D1CE4E5B9)
        part = (part ^ (part >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
        key += part ^ (part >> np.uint64(31))  # a sum: the order of the atoms must not matter
    # Two of a batch's thousands of walks share one of 2^64 keys with a chance below 1e-10.
    return key * np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True)
def _joined(
    i, j, parents, several, steps, max_path, code, row, count,
    word_of, distances, ptr, codes, shares, share_of, found, used,
):  # fmt: skip
    """Name the walk to an atom with several atoms before it: the mean over all its shortest paths."""
    entries = 0
    for a in range(several):
        u = parents[a]
        share = count[u] / count[j]
        for at in range(ptr[row[i, u]], ptr[row[i, u] + 1]):
            if share_of[codes[at]] == 0.0:
                found[entries] = codes[at]
                entries += 1
            share_of[codes[at]] += share * shares[at]
        if steps <= max_path:
            entry = (steps - 1) * BOND_WORDS + word_of[code[j, u]]
            if share_of[entry] == 0.0:
                found[entries] = entry
                entries += 1
            share_of[entry] += share
    name, end = used[0], used[1]
    for a in range(entries):
        # Rounded far above the noise of the sums, far below anything that matters.
        codes[end], shares[end] = found[a], round(share_of[found[a]] * 2.0**20) / 2.0**20
        share_of[found[a]] = 0.0
        end += 1
    distances[name], ptr[name + 1] = min(steps, MAX_DISTANCE), end
    used[0], used[1] = name + 1, end
    return name


@njit(cache=True, nogil=True)
def pair_walks(atom_ptr, bond_ptr, bonds, words, rule, max_path, width):
    """Name the walk of every ordered pair of atoms of a batch of molecules.

    From each atom the walks grow along its breadth-first search: the walk to j is the walk to the
    atom before j and one more bond, or, where several atoms are before j, their mean weighted with
    the numbers of shortest paths to them.

    Args:
        atom_ptr: ``int64 [B + 1]``, molecule b has atoms ``atom_ptr[b]:atom_ptr[b + 1]``.
        bond_ptr: ``int64 [B + 1]``, the same for bonds.
        bonds: ``int32 [M, 2]``, atoms numbered from 0 within their molecule.
        words: ``uint8 [M]``, each below ``BOND_WORDS``.
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
    # The bonds of a batch are of few kinds; numbered from 0, their table stays small.
    code_of, word_of = np.full(BOND_WORDS, -1, np.int64), np.empty(BOND_WORDS, np.int64)
    kinds = 0
    for word in words:
        if code_of[word] < 0:
            code_of[word], word_of[kinds] = kinds, word
            kinds += 1
    word_of = word_of[:kinds]
    code = np.empty((most_atoms, most_atoms), np.uint8)  # of the bond between two atoms
    near = np.empty(64, np.uint64)
    start, to = np.empty(most_atoms + 1, np.int64), np.empty(2 * most_bonds, np.int32)
    steps, queue = np.empty(most_atoms, np.int64), np.empty(most_atoms, np.int32)
    count, parents = np.empty(most_atoms, np.float64), np.empty(most_atoms, np.int32)
    share_of, found = np.zeros(max_path * BOND_WORDS, np.float64), np.empty(max_path * BOND_WORDS, np.int32)
    chosen = np.empty((0, 0), np.int32)

    distances, ptr = np.empty(4096, np.int32), np.zeros(4097, np.int32)
    codes, shares = np.empty(32768, np.int32), np.empty(32768, np.float32)
    distances[_EMPTY], distances[_APART] = 0, UNREACHABLE
    used = np.array([2, 0])  # walks and entries so far
    # The walk that one more bond (or, last, one that no longer counts) makes of a walk.
    following = np.full((4096, kinds + 1), -1, np.int32)
    keys, ids = np.empty(8192, np.uint64), np.full(8192, -1, np.int32)

    for b in range(batch):
        n = atom_ptr[b + 1] - atom_ptr[b]
        its = bonds[bond_ptr[b] : bond_ptr[b + 1]]
        for m in range(len(its)):
            code[its[m, 0], its[m, 1]] = code[its[m, 1], its[m, 0]] = code_of[words[bond_ptr[b] + m]]
        if rule == FLOYD_WARSHALL:
            chosen = _floyd_warshall(n, its)
        spare = n * max_path * kinds  # the most entries that the walks from one atom can have
        i = 0
        while True:
            if n <= 64:
                i = _by_bits(
                    i, n, its, code, near, rule, max_path, chosen, pairs[b], count, parents, following, keys, ids,
                    word_of, distances, ptr, codes, shares, share_of, found, used, spare,
                )  # fmt: skip
            else:
                i = _by_queue(
                    i, n, its, code, start, to, steps, queue, rule, max_path, chosen, pairs[b], count, parents,
                    following, keys, ids, word_of, distances, ptr, codes, shares, share_of, found, used, spare,
                )  # fmt: skip
            if i == n:
                break
            if used[0] + n > len(distances):
                distances, ptr = _grown(distances), _grown(ptr)
                following = np.concatenate((following, np.full_like(following, -1)))
                keys, ids = _rehashed(keys, ids)
            if used[1] + spare > len(codes):
                codes, shares = _grown(codes), _grown(shares)
    walks, entries = used
    weights = shares[:entries].copy()
    for w in range(walks):
        for at in range(ptr[w], ptr[w + 1]):
            weights[at] /= min(distances[w], max_path)
    return pairs, distances[:walks].copy(), ptr[: walks + 1].copy(), codes[:entries].copy(), weights
