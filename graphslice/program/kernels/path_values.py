"""Attention bias ``S + E`` of path types: see :func:`graphslice.ops.path_values`.

These functions run once per batch, not once per sample, so they are no kernels of programs.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.feature_dims import UNREACHABLE
from graphslice.program.simd.lanes import (
    address_of,
    float32x8,
    keep_alive,
    load,
    load_float,
    load_int,
    load_long,
    reduce_sum,
    splat,
    store,
    store_scalar,
)


@njit(inline="always")
def _distance_row(distance, count):
    return count - 1 if distance == UNREACHABLE else min(distance + 1, count - 2)


@njit(inline="always")
def _path_end(offsets, path, paths, entries):
    return load_int(offsets, path + 1) if path + 1 < paths else entries


@njit(cache=True, nogil=True)
def valid(addresses, features, rows, paths, entries, bonds):
    """True if all indices are in range and the offsets ascend from 0."""
    bond_rows, distances, offsets, codes = addresses
    for i in range(features):
        if not 0 <= load_long(bond_rows, i) < rows:
            return False
    before = 0
    for w in range(paths):
        first = load_int(offsets, w)
        if load_int(distances, w) < 0 or first < before or (w == 0 and first != 0):
            return False
        before = first
    for e in range(entries):
        if not 0 <= load_int(codes, e) < bonds:
            return False
    return before <= entries and (paths > 0 or entries == 0)


@njit(inline="always")
def _fill_table(bonds, matrices, table, types, positions, heads):
    """Fill the table of the bias that each bond type adds at each position."""
    lanes = float32x8()
    for m in range(positions):
        for t in range(types):
            for c in range(0, heads, 8):
                total = float32x8()
                for j in range(heads):
                    factor = splat(lanes, load_float(bonds, t * heads + j))
                    total = total + factor * load(lanes, matrices, (m * heads + j) * heads + c)
                store(table, (m * types + t) * heads + c, total)


@njit(cache=True, nogil=True)
def values(addresses, sizes):
    """Compute the biases and the mean embedding of each bond type, ``[T, H]``.

    Args:
        addresses: of the arguments of :func:`graphslice.ops.path_values` in order, of the embeddings and of the biases.
        sizes: T, F, M, D, W, K, H.
    """
    token, spatial, bond, matrices, bond_rows, distances, offsets, codes, weights, bonds, out = addresses
    types, features, positions, count, paths, entries, heads = sizes
    lanes, scratch = float32x8(), np.empty(types * positions * heads, np.float32)
    table = address_of(scratch)
    for t in range(types):
        for c in range(0, heads, 8):
            total = float32x8()
            for f in range(features):
                total = total + load(lanes, bond, load_long(bond_rows, t * features + f) * heads + c)
            store(bonds, t * heads + c, total / splat(lanes, np.float32(features)))
    _fill_table(bonds, matrices, table, types, positions, heads)
    for c in range(0, heads, 8):
        store(out, c, load(lanes, token, c))
    for w in range(paths):
        first, last = load_int(offsets, w), _path_end(offsets, w, paths, entries)
        distance = _distance_row(load_int(distances, w), count) * heads
        for c in range(0, heads, 8):
            total = float32x8()
            for e in range(first, last):
                weight = splat(lanes, load_float(weights, e))
                total = total + load(lanes, table, load_int(codes, e) * heads + c) * weight
            store(out, (w + 1) * heads + c, load(lanes, spatial, distance + c) + total)
    keep_alive(scratch)


@njit(cache=True, nogil=True)
def gradients(addresses, sizes):
    """Compute gradients; ``addresses``: upstream gradient, those of :func:`values` but the last, and the gradients."""
    grad, _, _, _, matrices, bond_rows, distances, offsets, codes, weights, bonds = addresses[:11]
    grad_token, grad_spatial, grad_bond_table, grad_matrices = addresses[11:]
    types, features, positions, count, paths, entries, heads = sizes
    lanes, scratch = float32x8(), np.zeros(types * positions * heads, np.float32)
    table = address_of(scratch)
    for c in range(0, heads, 8):
        store(grad_token, c, load(lanes, grad, c))
    for w in range(paths):
        first, last = load_int(offsets, w), _path_end(offsets, w, paths, entries)
        distance = _distance_row(load_int(distances, w), count) * heads
        for c in range(0, heads, 8):
            upstream = load(lanes, grad, (w + 1) * heads + c)
            store(grad_spatial, distance + c, load(lanes, grad_spatial, distance + c) + upstream)
            for e in range(first, last):
                at = load_int(codes, e) * heads + c
                weight = splat(lanes, load_float(weights, e))
                store(table, at, load(lanes, table, at) + upstream * weight)
    for t in range(types):
        for j in range(heads):
            grad_bond, factor = float32x8(), splat(lanes, load_float(bonds, t * heads + j))
            for m in range(positions):
                for c in range(0, heads, 8):
                    at, upstream = (m * heads + j) * heads + c, load(lanes, table, (m * types + t) * heads + c)
                    store(grad_matrices, at, load(lanes, grad_matrices, at) + upstream * factor)
                    grad_bond = grad_bond + upstream * load(lanes, matrices, at)
            value = reduce_sum(grad_bond) / np.float32(features)
            for f in range(features):
                at = load_long(bond_rows, t * features + f) * heads + j
                store_scalar(grad_bond_table, at, load_float(grad_bond_table, at) + value)
    keep_alive(scratch)
