"""Embeddings of atoms and messages along bonds; C is a multiple of 16."""

from __future__ import annotations

from numba import njit

from graphslice.program.kernels.operands import length_at
from graphslice.program.run import kernel
from graphslice.program.simd.lanes import float32x16, load, load_byte, load_long, load_short, maximum, select_ge, store


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
    """Graph token, and sums of the embeddings of the features and of the degree of every atom.

    ``starts`` are the first rows of the features in ``table``, ``count`` and ``degree_count`` the rows of the tables.
    """
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
