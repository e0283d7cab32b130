"""Embeddings of atoms, messages along bonds, and the bias of path types."""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.feature_dims import UNREACHABLE
from graphslice.program.run import kernel
from graphslice.program.simd.lanes import (
    address_of,
    float32x8,
    float32x16,
    keep_alive,
    length_at,
    load,
    load_byte,
    load_float,
    load_int,
    load_long,
    load_short,
    maximum,
    reduce_sum,
    select_ge,
    splat,
    store,
    store_scalar,
)

# --- atoms and bonds; C is a multiple of 16 -----------------------------------------------------------------------


@njit(inline="always")
def _add(table, row, source, at, channels):
    """Add the vector at an offset of ``source`` to a row of a table."""
    for c in range(0, channels, 16):
        store(table, row + c, load(float32x16(), table, row + c) + load(float32x16(), source, at + c))


@njit(inline="always")
def _feature_row(atoms, atom, feature, starts, count):
    return min(max(load_byte(atoms, 9 * atom + feature) + load_long(starts, feature), 0), count - 1)


@kernel
def embed_atoms(
    samples, atoms, degrees, starts, table, in_degree, out_degree, token, out, count, degree_count, width, channels
):
    """Graph token, and sums of the embeddings of the features and of the degree of every atom; ``starts``: the first
    rows of the features in ``table``; ``count``, ``degree_count``: numbers of rows of the tables."""
    lanes = float32x16()
    for b in range(samples):
        for c in range(0, channels, 16):
            store(out, b * width * channels + c, load(lanes, token, c))
        for i in range(width - 1):
            atom, first = b * (width - 1) + i, (b * width + i + 1) * channels
            degree = min(load_byte(degrees, atom) + 1, degree_count - 1) * channels
            for c in range(0, channels, 16):
                total = float32x16()
                for f in range(9):
                    total = total + load(lanes, table, _feature_row(atoms, atom, f, starts, count) * channels + c)
                of_degrees = load(lanes, in_degree, degree + c) + load(lanes, out_degree, degree + c)
                store(out, first + c, total + of_degrees)


@kernel
def embed_atoms_gradients(
    samples, atoms, degrees, starts, lengths, grad, table, in_degree, out_degree, token, count, degree_count, width,
    channels,
):  # fmt: skip
    """Gradients of the tables of :func:`embed_atoms`, accumulated; the padding is skipped."""
    for b in range(samples):
        _add(token, 0, grad, b * width * channels, channels)
        for i in range(length_at(lengths, b, width) - 1):
            atom, first = b * (width - 1) + i, (b * width + i + 1) * channels
            degree = min(load_byte(degrees, atom) + 1, degree_count - 1) * channels
            for f in range(9):
                _add(table, _feature_row(atoms, atom, f, starts, count) * channels, grad, first, channels)
            _add(in_degree, degree, grad, first, channels)
            _add(out_degree, degree, grad, first, channels)


@njit(inline="always")
def _bond(bonds, at, types, count):
    """Return the bond type and the ring class of a bond code, or -1 and -1 if there is no (known) bond."""
    code = load_short(bonds, at) - 1
    return (code % types, code // types) if 0 <= code < count else (-1, -1)


@kernel
def bond_messages(samples, x, bonds, types, rings, out, num_types, num_rings, width, channels):
    """Sums of ``relu(x_j + types_b + rings_r)`` over the bonded rows j; ``bonds`` are codes, int16 ``[B, N, N]``."""
    lanes, zero = float32x16(), float32x16()
    for i in range(samples * width):
        first, row = i // width * width, i * channels
        for c in range(0, channels, 16):
            store(out, row + c, zero)
        for j in range(width):
            kind, ring = _bond(bonds, i * width + j, num_types, num_types * num_rings)
            if kind >= 0:
                source, kind, ring = (first + j) * channels, kind * channels, ring * channels
                for c in range(0, channels, 16):
                    edge = load(lanes, types, kind + c) + load(lanes, rings, ring + c)
                    message = maximum(zero, load(lanes, x, source + c) + edge)
                    store(out, row + c, load(lanes, out, row + c) + message)


@kernel
def bond_messages_gradients(
    samples, x, bonds, types, rings, grad, grad_x, grad_types, grad_rings, num_types, num_rings, width, channels
):
    """Gradients of :func:`bond_messages`; those of the tables are accumulated."""
    lanes, zero = float32x16(), float32x16()
    for j in range(samples * width):
        first, row = j // width * width, j * channels
        for c in range(0, channels, 16):
            store(grad_x, row + c, zero)
        for i in range(width):
            kind, ring = _bond(bonds, (first + i) * width + j - first, num_types, num_types * num_rings)
            if kind >= 0:
                target, kind, ring = (first + i) * channels, kind * channels, ring * channels
                for c in range(0, channels, 16):
                    edge = load(lanes, types, kind + c) + load(lanes, rings, ring + c)
                    upstream = select_ge(zero, load(lanes, x, row + c) + edge, zero, load(lanes, grad, target + c))
                    store(grad_x, row + c, load(lanes, grad_x, row + c) + upstream)
                    store(grad_types, kind + c, load(lanes, grad_types, kind + c) + upstream)
                    store(grad_rings, ring + c, load(lanes, grad_rings, ring + c) + upstream)


# --- S + E of path types: once per batch, not once per sample, so these are no kernels of programs ----------------


@njit(inline="always")
def _distance_row(distance, count):
    return count - 1 if distance == UNREACHABLE else min(distance + 1, count - 2)


@njit(inline="always")
def _path_end(offsets, path, paths, entries):
    return load_int(offsets, path + 1) if path + 1 < paths else entries


@njit(cache=True, nogil=True)
def path_values_valid(addresses, features, rows, paths, entries, bonds):
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
def path_values(addresses, sizes):
    """Compute the biases and the mean embedding of each bond type, ``[T, H]``, of :func:`graphslice.ops.path_values`;
    ``addresses``: of its arguments in order, of the embeddings and of the biases; ``sizes``: T, F, M, D, W, K, H."""
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
def path_values_gradients(addresses, sizes):
    """Compute gradients; ``addresses``: of the upstream gradient, those of :func:`path_values` but the last, and of the
    gradients."""
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
