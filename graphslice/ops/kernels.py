"""Kernels of traced programs, forward and backward.

Each kernel processes some samples with the code of the operator of that name; its docstring lists the operands.
Kernels do no bounds checks: :mod:`graphslice.ops.tracer` derives the operands from shapes that it has checked.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.ops.add_norm import norm_rows, row_gradients
from graphslice.ops.bond_messages import add_messages, message_gradients
from graphslice.ops.dropout import apply_dropout
from graphslice.ops.gelu import gelu_gradients, gelu_values
from graphslice.ops.operands import bytes_at, float_operand, keys_at, operand
from graphslice.ops.program import kernel
from graphslice.ops.simd.lanes import (
    float32x16,
    load,
    load_scalar,
    maximum,
    select_ge,
    splat,
    store,
    store_scalar,
    transpose_block,
)
from graphslice.ops.simd.small_product import (
    Matrix,
    product_onto,
    product_onto_transposed,
)

# --- sums and linear layers --------------------------------------------------------------------------------


@kernel
def add(at, samples):
    """``out = a + b``: a, b, out, N, C."""
    a, b, out = operand(at, 0), operand(at, 1), operand(at, 2)
    for i in range(0, samples * operand(at, 3) * operand(at, 4), 16):
        store(out, i, load(float32x16(), a, i) + load(float32x16(), b, i))


@kernel
def accumulate(at, samples):
    """``out += a``: a, out, number of 4-byte values per sample."""
    a, out, size = operand(at, 0), operand(at, 1), samples * operand(at, 2)
    aligned = size // 16 * 16
    for i in range(0, aligned, 16):
        store(out, i, load(float32x16(), out, i) + load(float32x16(), a, i))
    for i in range(aligned, size):
        store_scalar(out, i, load_scalar(float32x16(), out, i) + load_scalar(float32x16(), a, i))


@kernel
def zero(at, samples):
    """``out = 0``: out, N, C."""
    for i in range(0, samples * operand(at, 1) * operand(at, 2), 16):
        store(operand(at, 0), i, float32x16())


@kernel
def drop(at, samples):
    """Dropout of x or of a gradient: x, out, N, C, keys."""
    size = samples * operand(at, 2) * operand(at, 3)
    apply_dropout(operand(at, 0), 0, size, keys_at(at, 4), 0, operand(at, 1))


@kernel
def transposed(at, samples):
    """Transpose of a weight: weight, out, rows, columns."""
    weight, out, rows, columns = operand(at, 0), operand(at, 1), operand(at, 2), operand(at, 3)
    for c in range(0, columns, 16):  # few enough cache lines are written to stay in the L1 cache
        for j in range(0, rows, 16):
            source, target = weight + 4 * (j * columns + c), out + 4 * (c * rows + j)
            transpose_block(float32x16(), source, columns, target, rows)


@kernel
def linear(at, samples):
    """``out = x W^T + b``: x, W transposed, b, out, N, inputs, outputs."""
    rows, inputs, outputs = samples * operand(at, 4), operand(at, 5), operand(at, 6)
    x, weight, out = Matrix(operand(at, 0), inputs), Matrix(operand(at, 1), outputs), Matrix(operand(at, 3), outputs)
    product_onto(x, weight, Matrix(operand(at, 2), 0), out, rows, inputs, outputs)


@kernel
def linear_gradients(at, samples):
    """Gradients of x, and of W and b (accumulated).

    Operands: x, W, upstream gradient, gradients of x, W and b, summand of the gradient of x or 0, N, inputs, outputs.
    """
    x, weight, grad, grad_x = operand(at, 0), operand(at, 1), operand(at, 2), operand(at, 3)
    grad_weight, grad_bias, start = operand(at, 4), operand(at, 5), operand(at, 6)
    rows, inputs, outputs = samples * operand(at, 7), operand(at, 8), operand(at, 9)
    if grad_x:
        product_onto(
            Matrix(grad, outputs),
            Matrix(weight, inputs),
            Matrix(start, inputs),
            Matrix(grad_x, inputs),
            rows,
            outputs,
            inputs,
        )
    target = Matrix(grad_weight, inputs)
    product_onto_transposed(Matrix(grad, outputs), Matrix(x, inputs), target, target, outputs, rows, inputs)
    for c in range(0, outputs, 16):
        total = load(float32x16(), grad_bias, c)
        for row in range(rows):
            total = total + load(float32x16(), grad, row * outputs + c)
        store(grad_bias, c, total)


@kernel
def gelu_forward(at, samples):
    """GELU: x, out, N, C."""
    gelu_values((operand(at, 0), operand(at, 1)), 0, samples * operand(at, 2) * operand(at, 3) // 16)


@kernel
def gelu_gradient(at, samples):
    """Gradient of GELU: x, upstream gradient, gradient of x, N, C."""
    addresses = (operand(at, 0), operand(at, 1), operand(at, 2))
    gelu_gradients(addresses, 0, samples * operand(at, 3) * operand(at, 4) // 16)


@kernel
def add_norm(at, samples):
    """Residual sum and layer norm: x, y, weight, bias, sum, norm, moments, N, C, eps, keys."""
    rows = samples * operand(at, 7)
    addresses = (
        operand(at, 0),
        operand(at, 1),
        operand(at, 2),
        operand(at, 3),
        operand(at, 4),
        operand(at, 5),
        operand(at, 6),
    )
    norm_rows(addresses, operand(at, 8), rows, keys_at(at, 10), np.float64(float_operand(at, 9)), 0, rows)


@kernel
def add_norm_gradients(at, samples):
    """Gradients of :func:`add_norm`.

    Operands: gradients of sum and norm, sum, weight, gradients of x and y, moments, gradients of weight and bias, N, C,
    keys.
    """
    rows = samples * operand(at, 9)
    addresses = (
        operand(at, 0),
        operand(at, 1),
        operand(at, 2),
        operand(at, 3),
        operand(at, 4),
        operand(at, 5),
        operand(at, 6),
        operand(at, 7),
        operand(at, 8),
    )
    row_gradients(addresses, operand(at, 10), rows, keys_at(at, 11), 0, rows)


# --- embedding and readout ------------------------------------------------------------------------------------


@njit(inline="always")
def _byte(address, offset):
    return bytes_at(address + offset, 1)[0]


@njit(inline="always")
def _degree_row(degrees, atom, count):
    return min(np.int64(_byte(degrees, atom)) + 1, count - 1)


@njit(inline="always")
def _feature_row(atoms, atom, feature, starts, count):
    return min(np.int64(_byte(atoms, 9 * atom + feature)) + operand(starts, feature), count - 1)


@kernel
def embed(at, samples):
    """Token and atom embeddings.

    Operands: atoms, degrees, lengths, tables of atom features, in-degrees, out-degrees and token, out, first row of
    each feature, numbers of rows of the feature and degree tables, N, C.
    """
    atoms, degrees, table = operand(at, 0), operand(at, 1), operand(at, 3)
    in_degree, out_degree, token, out, starts = (
        operand(at, 4),
        operand(at, 5),
        operand(at, 6),
        operand(at, 7),
        operand(at, 8),
    )
    count, degree_count, width, channels = operand(at, 9), operand(at, 10), operand(at, 11), operand(at, 12)
    lanes = float32x16()
    for b in range(samples):
        for c in range(0, channels, 16):
            store(out, b * width * channels + c, load(lanes, token, c))
        for i in range(width - 1):
            atom, first = b * (width - 1) + i, (b * width + i + 1) * channels
            degree = _degree_row(degrees, atom, degree_count) * channels
            for c in range(0, channels, 16):
                total = float32x16()
                for f in range(9):
                    total = total + load(lanes, table, _feature_row(atoms, atom, f, starts, count) * channels + c)
                of_degrees = load(lanes, in_degree, degree + c) + load(lanes, out_degree, degree + c)
                store(out, first + c, total + of_degrees)


@kernel
def embed_gradient(at, samples):
    """Gradients of the embedding: atoms, degrees, lengths, gradients of the tables, upstream; then as :func:`embed`."""
    atoms, degrees, table = operand(at, 0), operand(at, 1), operand(at, 3)
    in_degree, out_degree, token, grad, starts = (
        operand(at, 4),
        operand(at, 5),
        operand(at, 6),
        operand(at, 7),
        operand(at, 8),
    )
    count, degree_count, width, channels = operand(at, 9), operand(at, 10), operand(at, 11), operand(at, 12)
    lanes = float32x16()
    for b in range(samples):
        for c in range(0, channels, 16):
            store(token, c, load(lanes, token, c) + load(lanes, grad, b * width * channels + c))
        for i in range(min(max(operand(operand(at, 2), b) - 1, 0), width - 1)):
            atom, first = b * (width - 1) + i, (b * width + i + 1) * channels
            degree = _degree_row(degrees, atom, degree_count) * channels
            for f in range(11):
                row = _feature_row(atoms, atom, f, starts, count) * channels if f < 9 else degree
                address = table if f < 9 else in_degree if f == 9 else out_degree
                for c in range(0, channels, 16):
                    store(address, row + c, load(lanes, address, row + c) + load(lanes, grad, first + c))


@kernel
def bond_messages(at, samples):
    """Message passing: x, bonds, tables of bond types and ring classes, out, number of types, N, C."""
    tables, shape = (operand(at, 2), operand(at, 3), operand(at, 5)), (samples, operand(at, 6), operand(at, 7))
    add_messages(operand(at, 0), operand(at, 1), tables, operand(at, 4), shape)


@kernel
def bond_messages_gradient(at, samples):
    """Gradients of :func:`bond_messages`; those of the tables are accumulated.

    Operands: x, bonds, both tables, upstream gradient, gradients of x and of the tables, number of types, N, C.
    """
    tables, shape = (operand(at, 2), operand(at, 3), operand(at, 8)), (samples, operand(at, 9), operand(at, 10))
    grads = operand(at, 5), operand(at, 6), operand(at, 7)
    message_gradients(operand(at, 0), operand(at, 1), tables, operand(at, 4), grads, shape)


@kernel
def read_out(at, samples):
    """Readout: x, lengths, out, kind (0 token, 1 max, 2 sum, 3 mean), its index, number of readouts, N, C."""
    x, out, kind, place, kinds = operand(at, 0), operand(at, 2), operand(at, 3), operand(at, 4), operand(at, 5)
    width, channels, lanes = operand(at, 6), operand(at, 7), float32x16()
    for b in range(samples):
        rows = min(max(operand(operand(at, 1), b), 1), width)
        for c in range(0, channels, 16):
            first, result = b * width * channels + c, load(lanes, x, b * width * channels + c)
            if kind == 1:
                result, nans = splat(lanes, np.float32(-np.inf)), float32x16()
                for n in range(1, rows):
                    value = load(lanes, x, first + n * channels)
                    result = maximum(result, value)
                    nans = nans + value * float32x16()
                result = result + nans
            elif kind > 1:
                result = float32x16()
                for n in range(1, rows):
                    result = result + load(lanes, x, first + n * channels)
                if kind == 3:
                    result = result / splat(lanes, np.float32(max(rows - 1, 1)))
            store(out, (b * kinds + place) * channels + c, result)


@kernel
def read_out_gradient(at, samples):
    """Gradient of the readout: x, lengths, upstream, gradient of x (accumulated); then as :func:`read_out`."""
    x, grad, grad_x, kind = operand(at, 0), operand(at, 2), operand(at, 3), operand(at, 4)
    place, kinds, width, channels = operand(at, 5), operand(at, 6), operand(at, 7), operand(at, 8)
    lanes, one = float32x16(), splat(float32x16(), np.float32(1))
    for b in range(samples):
        rows = min(max(operand(operand(at, 1), b), 1), width)
        for c in range(0, channels, 16):
            first, upstream = b * width * channels + c, load(lanes, grad, (b * kinds + place) * channels + c)
            if kind == 0:
                store(grad_x, first, load(lanes, grad_x, first) + upstream)
            elif kind == 1:
                largest, count = splat(lanes, np.float32(-np.inf)), float32x16()
                for n in range(1, rows):
                    largest = maximum(largest, load(lanes, x, first + n * channels))
                for n in range(1, rows):
                    count = count + select_ge(load(lanes, x, first + n * channels), largest, one, float32x16())
                upstream = upstream / maximum(count, one)
                for n in range(1, rows):
                    row = first + n * channels
                    part = select_ge(load(lanes, x, row), largest, upstream, float32x16())
                    store(grad_x, row, load(lanes, grad_x, row) + part)
            else:
                if kind == 3:
                    upstream = upstream / splat(lanes, np.float32(max(rows - 1, 1)))
                for n in range(1, rows):
                    row = first + n * channels
                    store(grad_x, row, load(lanes, grad_x, row) + upstream)
