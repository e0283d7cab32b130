"""The kernels of programs: what each instruction does with its operands, forward and backward.

Each is that of an operator beside it, for some samples, given as :mod:`graphslice.ops.program` says. They believe what
they are given: :mod:`graphslice.ops.tape` makes their operands of shapes that it has compared.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

from graphslice.ops.add_norm import norm_rows, row_gradients
from graphslice.ops.aggregate import aggregate_gradients, aggregate_samples
from graphslice.ops.attention import attention_gradients, attention_samples
from graphslice.ops.dropout import DropoutKeys, apply_dropout
from graphslice.ops.gelu import gelu_gradients, gelu_values
from graphslice.ops.linear_attention import linear_attention_gradients, linear_attention_samples
from graphslice.ops.max_exchange import TIE, exchange_gradients, exchange_rows
from graphslice.ops.program import float_operand, kernel, operand
from graphslice.ops.simd.lanes import (
    float32x8,
    float32x16,
    load,
    load_scalar,
    maximum,
    reduce_sum,
    select_ge,
    splat,
    store,
    store_scalar,
)
from graphslice.ops.simd.small_product import (
    AttnShape,
    Matrix,
    product_onto,
    product_onto_transposed,
)
from graphslice.ops.simd.sorting_network import sort_values, sort_with_rows, unsort


@intrinsic
def _pointer(typing, address, kind):
    """An address as :func:`numba.carray` takes it."""

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(kind.dtype)(types.intp, kind), generate


@njit(inline="always")
def _floats(address, shape):
    return carray(_pointer(address, np.float32), shape)


@njit(inline="always")
def _keys(at, number):
    """Five operands: whether any are dropped, two keys, a threshold, and the scale of those that stay."""
    return DropoutKeys(
        operand(at, number) != 0,
        operand(at, number + 1),
        operand(at, number + 2),
        operand(at, number + 3),
        np.float64(float_operand(at, number + 4)),
    )


# --- sums and maps --------------------------------------------------------------------------------


@kernel
def add(at, samples):
    """``out = a + b``: a, b, out, N, C."""
    a, b, out = operand(at, 0), operand(at, 1), operand(at, 2)
    for i in range(0, samples * operand(at, 3) * operand(at, 4), 16):
        store(out, i, load(float32x16(), a, i) + load(float32x16(), b, i))


@kernel
def accumulate(at, samples):
    """``out += a``: a, out, and how many numbers of 4 bytes a sample has."""
    a, out, size = operand(at, 0), operand(at, 1), samples * operand(at, 2)
    whole = size // 16 * 16
    for i in range(0, whole, 16):
        store(out, i, load(float32x16(), out, i) + load(float32x16(), a, i))
    for i in range(whole, size):
        store_scalar(out, i, load_scalar(float32x16(), out, i) + load_scalar(float32x16(), a, i))


@kernel
def zero(at, samples):
    """``out = 0``: out, N, C."""
    for i in range(0, samples * operand(at, 1) * operand(at, 2), 16):
        store(operand(at, 0), i, float32x16())


@kernel
def drop(at, samples):
    """Dropout of x, or of a gradient: x, out, N, C, keys."""
    size = samples * operand(at, 2) * operand(at, 3)
    apply_dropout(operand(at, 0), 0, size, _keys(at, 4), 0, operand(at, 1))


@kernel
def transposed(at, samples):
    """The transpose of a weight: weight, out, rows, columns."""
    weight, out, rows, columns = operand(at, 0), operand(at, 1), operand(at, 2), operand(at, 3)
    lanes = float32x16()
    for block in range(0, columns, 16):  # so few lines are written that they stay in the nearest cache
        for j in range(rows):
            for c in range(block, block + 16):
                store_scalar(out, c * rows + j, load_scalar(lanes, weight, j * columns + c))


@kernel
def linear(at, samples):
    """``out = x W^T + b``: x, W transposed, b, out, N, inputs, outputs."""
    rows, inputs, outputs = samples * operand(at, 4), operand(at, 5), operand(at, 6)
    x, weight, out = Matrix(operand(at, 0), inputs), Matrix(operand(at, 1), outputs), Matrix(operand(at, 3), outputs)
    product_onto(x, weight, Matrix(operand(at, 2), 0), out, rows, inputs, outputs)


@kernel
def linear_gradients(at, samples):
    """Of x, onto another where there is one; of W and b, onto what stands there.

    x, W, the upstream gradient, that of x, of W and of b, what that of x is added to or 0, N, inputs, outputs.
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
    into = Matrix(grad_weight, inputs)
    product_onto_transposed(Matrix(grad, outputs), Matrix(x, inputs), into, into, outputs, rows, inputs)
    for c in range(0, outputs, 16):
        total = load(float32x16(), grad_bias, c)
        for row in range(rows):
            total = total + load(float32x16(), grad, row * outputs + c)
        store(grad_bias, c, total)


@kernel
def gelu_forward(at, samples):
    """x, out, N, C."""
    gelu_values((operand(at, 0), operand(at, 1)), 0, samples * operand(at, 2) * operand(at, 3) // 16)


@kernel
def gelu_gradient(at, samples):
    """x, the upstream gradient, that of x, N, C."""
    addresses = (operand(at, 0), operand(at, 1), operand(at, 2))
    gelu_gradients(addresses, 0, samples * operand(at, 3) * operand(at, 4) // 16)


@kernel
def add_norm(at, samples):
    """x, y, weight, bias, sum, norm, moments, N, C, eps, keys."""
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
    norm_rows(addresses, operand(at, 8), rows, _keys(at, 10), np.float64(float_operand(at, 9)), 0, rows)


@kernel
def add_norm_gradients(at, samples):
    """The gradients of sum and norm, sum, weight, the gradients of x and y, moments, those of weight and bias, N, C,
    keys."""
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
    row_gradients(addresses, operand(at, 10), rows, _keys(at, 11), 0, rows)


# --- the ends ------------------------------------------------------------------------------------


@njit(inline="always")
def _byte(address, offset):
    return carray(_pointer(address + offset, np.uint8), 1)[0]


@njit(inline="always")
def _degree_row(degrees, atom, count):
    return min(np.int64(_byte(degrees, atom)) + 1, count - 1)


@njit(inline="always")
def _feature_row(atoms, atom, feature, starts, count):
    return min(np.int64(_byte(atoms, 9 * atom + feature)) + operand(starts, feature), count - 1)


@kernel
def embed(at, samples):
    """Atoms, degrees, lengths, the tables of features, of degrees in and out and of the token, out, where the rows of
    each feature begin, how many rows the tables of features and of degrees have, N, C."""
    atoms, degrees, table = operand(at, 0), operand(at, 1), operand(at, 3)
    into, outof, token, out, starts = operand(at, 4), operand(at, 5), operand(at, 6), operand(at, 7), operand(at, 8)
    count, known, width, channels = operand(at, 9), operand(at, 10), operand(at, 11), operand(at, 12)
    lanes = float32x16()
    for b in range(samples):
        for c in range(0, channels, 16):
            store(out, b * width * channels + c, load(lanes, token, c))
        for i in range(width - 1):
            atom, first = b * (width - 1) + i, (b * width + i + 1) * channels
            degree = _degree_row(degrees, atom, known) * channels
            for c in range(0, channels, 16):
                total = float32x16()
                for f in range(9):
                    total = total + load(lanes, table, _feature_row(atoms, atom, f, starts, count) * channels + c)
                of_degrees = load(lanes, into, degree + c) + load(lanes, outof, degree + c)
                store(out, first + c, total + of_degrees)


@kernel
def embed_gradient(at, samples):
    """Atoms, degrees, lengths, the gradients of the four tables, the upstream one; the rest as of :func:`embed`."""
    atoms, degrees, table = operand(at, 0), operand(at, 1), operand(at, 3)
    into, outof, token, grad, starts = operand(at, 4), operand(at, 5), operand(at, 6), operand(at, 7), operand(at, 8)
    count, known, width, channels = operand(at, 9), operand(at, 10), operand(at, 11), operand(at, 12)
    lanes = float32x16()
    for b in range(samples):
        for c in range(0, channels, 16):
            store(token, c, load(lanes, token, c) + load(lanes, grad, b * width * channels + c))
        for i in range(min(max(operand(operand(at, 2), b) - 1, 0), width - 1)):
            atom, first = b * (width - 1) + i, (b * width + i + 1) * channels
            degree = _degree_row(degrees, atom, known) * channels
            for f in range(11):
                row = _feature_row(atoms, atom, f, starts, count) * channels if f < 9 else degree
                address = table if f < 9 else into if f == 9 else outof
                for c in range(0, channels, 16):
                    store(address, row + c, load(lanes, address, row + c) + load(lanes, grad, first + c))


@kernel
def read_out(at, samples):
    """x, lengths, out, 0 to 3 for the token, the largest, the sum or the mean of the atoms, which of how many that is,
    N, C."""
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
    """x, lengths, the upstream gradient, that of x, to which it is added; the rest as of :func:`read_out`."""
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
                    more = select_ge(load(lanes, x, row), largest, upstream, float32x16())
                    store(grad_x, row, load(lanes, grad_x, row) + more)
            else:
                if kind == 3:
                    upstream = upstream / splat(lanes, np.float32(max(rows - 1, 1)))
                for n in range(1, rows):
                    row = first + n * channels
                    store(grad_x, row, load(lanes, grad_x, row) + upstream)


# --- mixers ---------------------------------------------------------------------------------------


@kernel
def aggregate(at, samples):
    """P, V, out, heads, N, C, keys."""
    shape = AttnShape(operand(at, 3), operand(at, 4), operand(at, 5))
    aggregate_samples((operand(at, 0), operand(at, 1), operand(at, 2)), shape, _keys(at, 6), 0, samples)


@kernel
def aggregate_gradient(at, samples):
    """P, V, the upstream gradient, that of V, that of P, heads, N, C, keys."""
    addresses = (operand(at, 0), operand(at, 1), operand(at, 2), operand(at, 3), operand(at, 4))
    shape = AttnShape(operand(at, 5), operand(at, 6), operand(at, 7))
    aggregate_gradients(addresses, shape, _keys(at, 8), True, 0, samples)


@kernel
def broadcast_max(at, samples):
    """V, lengths, which channels are local (1.0 or 0.0), out, maxima, N, C."""
    v, local, out, maxima = operand(at, 0), operand(at, 2), operand(at, 3), operand(at, 4)
    width, channels = operand(at, 5), operand(at, 6)
    lanes, half = float32x16(), splat(float32x16(), np.float32(0.5))
    for b in range(samples):
        rows = min(max(operand(operand(at, 1), b), 0), width)
        first = b * width * channels
        for c in range(0, channels, 16):
            largest, nans = splat(lanes, np.float32(-np.inf)), float32x16()
            for n in range(rows):
                value = load(lanes, v, first + n * channels + c)
                largest = maximum(largest, value)
                nans = nans + value * float32x16()  # nan where the value is nan or infinite: it must not get lost
            largest = largest + nans
            store(maxima, b * channels + c, largest)
            kept = load(lanes, local, c)
            for n in range(width):
                at_row = first + n * channels + c
                store(out, at_row, select_ge(kept, half, load(lanes, v, at_row), largest))


@kernel
def broadcast_max_gradient(at, samples):
    """V, lengths, which channels are local, maxima, the upstream gradient, that of V, N, C."""
    v, local, maxima, grad, grad_v = operand(at, 0), operand(at, 2), operand(at, 3), operand(at, 4), operand(at, 5)
    width, channels = operand(at, 6), operand(at, 7)
    lanes, nothing = float32x16(), float32x16()
    one, half = splat(float32x16(), np.float32(1)), splat(float32x16(), np.float32(0.5))
    for b in range(samples):
        rows = min(max(operand(operand(at, 1), b), 0), width)
        first = b * width * channels
        for c in range(0, channels, 16):
            largest, kept = load(lanes, maxima, b * channels + c), load(lanes, local, c)
            total, count = float32x16(), float32x16()
            for n in range(width):
                total = total + load(lanes, grad, first + n * channels + c)
            for n in range(rows):
                count = count + select_ge(load(lanes, v, first + n * channels + c), largest, one, nothing)
            share = total / maximum(count, one)
            for n in range(rows):
                at_row = first + n * channels + c
                of_maximum = select_ge(load(lanes, v, at_row), largest, share, nothing)
                store(grad_v, at_row, select_ge(kept, half, load(lanes, grad, at_row), of_maximum))
            for n in range(rows, width):
                at_row = first + n * channels + c
                store(grad_v, at_row, select_ge(kept, half, load(lanes, grad, at_row), nothing))


@kernel
def max_exchange(at, samples):
    """V, lengths, out, weights, N, C."""
    width, channels = operand(at, 4), operand(at, 5)
    shape = (samples, width, channels)
    mask = np.zeros((samples, width), np.bool_)
    for b in range(samples):
        mask[b, : min(max(operand(operand(at, 1), b), 0), width)] = True
    constants = np.array([0.0, 1.0, TIE[1], TIE[1] - TIE[0], 1.17549435e-38], np.float32)
    v, out, weights = _floats(operand(at, 0), shape), _floats(operand(at, 2), shape), _floats(operand(at, 3), shape)
    exchange_rows(v, mask, out, weights, constants)


@kernel
def max_exchange_gradient(at, samples):
    """The weights, the upstream gradient, that of V, N, C."""
    shape = (samples, operand(at, 3), operand(at, 4))
    exchange_gradients(_floats(operand(at, 1), shape), _floats(operand(at, 0), shape), _floats(operand(at, 2), shape))


@njit(inline="always")
def _lengths(address, samples, width):
    lengths = np.empty(samples, np.int64)
    for b in range(samples):
        lengths[b] = min(max(operand(address, b), 0), width)
    return lengths


@kernel
def column_sort(at, samples):
    """x, lengths, -1 or 0 of each channel, out, the rows that the values came from or 0, N, C."""
    width, channels = operand(at, 5), operand(at, 6)
    shape, lengths = (samples, width, channels), _lengths(operand(at, 1), samples, width)
    bits, flip = carray(_pointer(operand(at, 0), np.int32), shape), carray(_pointer(operand(at, 2), np.int32), channels)
    out = carray(_pointer(operand(at, 3), np.int32), shape)
    if operand(at, 4):
        sort_with_rows(bits, lengths, flip, out, carray(_pointer(operand(at, 4), np.uint8), shape), 256, 0, samples)
    else:
        sort_values(bits, lengths, flip, out, 256, 0, samples)


@kernel
def column_sort_gradient(at, samples):
    """The upstream gradient, the rows, the gradient of x, N, C."""
    shape = (samples, operand(at, 3), operand(at, 4))
    rows = carray(_pointer(operand(at, 1), np.uint8), shape)
    unsort(_floats(operand(at, 0), shape), rows, _floats(operand(at, 2), shape), 0, samples)


@kernel
def attention(at, samples):
    """q, k, v, the bias, the weights, out, heads, N, C, keys."""
    addresses = (
        operand(at, 0),
        operand(at, 1),
        operand(at, 2),
        operand(at, 3),
        operand(at, 4),
        operand(at, 5),
    )
    shape = AttnShape(operand(at, 6), operand(at, 7), operand(at, 8))
    attention_samples(addresses, shape, _keys(at, 9), 0, samples)


@kernel
def attention_gradient(at, samples):
    """q, k, v, the weights, the upstream gradient, those of q, k, v and the bias, heads, N, C, keys."""
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
    shape = AttnShape(operand(at, 9), operand(at, 10), operand(at, 11))
    attention_gradients(addresses, shape, _keys(at, 12), 0, samples)


@kernel
def linear_attention(at, samples):
    """q, k, v, lengths, out, heads, N, C."""
    addresses = (operand(at, 0), operand(at, 1), operand(at, 2), operand(at, 4))
    width, channels = operand(at, 6), operand(at, 7)
    out = _floats(operand(at, 4), (samples, width, channels))
    lengths, shape = _lengths(operand(at, 3), samples, width), AttnShape(operand(at, 5), width, channels)
    linear_attention_samples(addresses, lengths, out, shape, 0, samples)


@kernel
def linear_attention_gradient(at, samples):
    """q, k, v, lengths, the upstream gradient, those of q, k and v, heads, N, C."""
    addresses = (
        operand(at, 0),
        operand(at, 1),
        operand(at, 2),
        operand(at, 4),
        operand(at, 5),
        operand(at, 6),
        operand(at, 7),
    )
    width, channels = operand(at, 9), operand(at, 10)
    shape = (samples, width, channels)
    grads = (_floats(operand(at, 5), shape), _floats(operand(at, 6), shape), _floats(operand(at, 7), shape))
    lengths, sizes = _lengths(operand(at, 3), samples, width), AttnShape(operand(at, 8), width, channels)
    linear_attention_gradients(addresses, lengths, grads, sizes, 0, samples)


@njit(inline="always")
def _moments(x, first, size):
    """The mean and the inverse deviation of some numbers, 8 dividing their number."""
    lanes, count = float32x8(), np.float32(size)
    sums = float32x8()
    for c in range(0, size, 8):
        sums = sums + load(lanes, x, first + c)
    mean = reduce_sum(sums) / count
    squares = float32x8()
    for c in range(0, size, 8):
        centered = load(lanes, x, first + c) - splat(lanes, mean)
        squares = squares + centered * centered
    return mean, np.float32(1) / np.sqrt(reduce_sum(squares) / count + np.float32(1e-5))


@kernel
def head_norm(at, samples):
    """x, scales and shifts of two norms, out, which of the two, heads, N, C."""
    x, scales, shifts, out = operand(at, 0), operand(at, 1), operand(at, 2), operand(at, 3)
    heads, channels = operand(at, 5), operand(at, 7)
    which, size, lanes = operand(at, 4) * channels, channels // heads, float32x8()
    for row in range(samples * operand(at, 6)):
        for h in range(heads):
            first = row * channels + h * size
            mean, scale = _moments(x, first, size)
            for c in range(0, size, 8):
                normed = (load(lanes, x, first + c) - splat(lanes, mean)) * splat(lanes, scale)
                at_channel = which + h * size + c
                value = normed * load(lanes, scales, at_channel) + load(lanes, shifts, at_channel)
                store(out, first + c, value)


@kernel
def head_norm_gradient(at, samples):
    """x, scales, the upstream gradient, that of x, of the scales and of the shifts, which, heads, N, C."""
    x, scales, grad, grad_x = operand(at, 0), operand(at, 1), operand(at, 2), operand(at, 3)
    grad_scales, grad_shifts = operand(at, 4), operand(at, 5)
    heads, channels = operand(at, 7), operand(at, 9)
    which, size, lanes = operand(at, 6) * channels, channels // heads, float32x8()
    for row in range(samples * operand(at, 8)):
        for h in range(heads):
            first = row * channels + h * size
            mean, scale = _moments(x, first, size)
            sums, products = float32x8(), float32x8()
            for c in range(0, size, 8):
                normed = (load(lanes, x, first + c) - splat(lanes, mean)) * splat(lanes, scale)
                at_channel, upstream = which + h * size + c, load(lanes, grad, first + c)
                store(grad_shifts, at_channel, load(lanes, grad_shifts, at_channel) + upstream)
                store(grad_scales, at_channel, load(lanes, grad_scales, at_channel) + upstream * normed)
                upstream = upstream * load(lanes, scales, at_channel)
                sums = sums + upstream
                products = products + upstream * normed
            mean_grad = splat(lanes, reduce_sum(sums) / np.float32(size))
            mean_product = splat(lanes, reduce_sum(products) / np.float32(size))
            for c in range(0, size, 8):
                normed = (load(lanes, x, first + c) - splat(lanes, mean)) * splat(lanes, scale)
                upstream = load(lanes, grad, first + c) * load(lanes, scales, which + h * size + c)
                store(grad_x, first + c, (upstream - mean_grad - normed * mean_product) * splat(lanes, scale))


@njit(inline="always")
def _runs_of_first(v, origins, b, rows, tie, run, rank):
    """Number the runs of ranks that tie in channel 1 of a sample, and say which rank each row has there."""
    largest = np.float32(0)
    for i in range(rows):
        rank[origins[b, i, 0]] = i
        largest = max(largest, abs(v[b, i, 0]))
    number = 0
    for i in range(rows):
        if i > 0 and not (v[b, origins[b, i, 0], 0] - v[b, origins[b, i - 1, 0], 0] <= tie * largest):
            number += 1
        run[i] = number
    return number + 1


@kernel
def sort_by_first(at, samples):
    """v, lengths, sorted v, the rows it came from, out, what tie is a share, N, C."""
    width, channels = operand(at, 6), operand(at, 7)
    shape, lengths = (samples, width, channels), _lengths(operand(at, 1), samples, width)
    v, ordered, out = _floats(operand(at, 0), shape), _floats(operand(at, 2), shape), _floats(operand(at, 4), shape)
    bits = carray(_pointer(operand(at, 0), np.int32), shape)
    ordered_bits = carray(_pointer(operand(at, 2), np.int32), shape)
    origins = carray(_pointer(operand(at, 3), np.uint8), shape)
    sort_with_rows(bits, lengths, np.zeros(channels, np.int32), ordered_bits, origins, 256, 0, samples)
    run, rank = np.empty(width, np.int64), np.empty(width, np.int64)
    total, count = np.empty((width, channels), np.float32), np.empty(width, np.float32)
    for b in range(samples):
        rows = lengths[b]
        runs = _runs_of_first(v, origins, b, rows, float_operand(at, 5), run, rank)
        total[:runs] = 0
        count[:runs] = 0
        for i in range(rows):
            count[run[i]] += np.float32(1)
            for c in range(channels):
                total[run[i], c] += ordered[b, i, c]
        for i in range(runs):
            for c in range(channels):
                total[i, c] /= count[i]
        for i in range(rows):
            out[b, i] = total[run[rank[i]]]
        out[b, rows:] = v[b, rows:]


@kernel
def sort_by_first_gradient(at, samples):
    """v, lengths, the rows that its sorted values came from, the upstream gradient, that of v, what tie is a share, N,
    C."""
    width, channels = operand(at, 6), operand(at, 7)
    shape, lengths = (samples, width, channels), _lengths(operand(at, 1), samples, width)
    v, grad, grad_v = _floats(operand(at, 0), shape), _floats(operand(at, 3), shape), _floats(operand(at, 4), shape)
    origins = carray(_pointer(operand(at, 2), np.uint8), shape)
    run, rank = np.empty(width, np.int64), np.empty(width, np.int64)
    total, count = np.empty((width, channels), np.float32), np.empty(width, np.float32)
    for b in range(samples):
        rows = lengths[b]
        runs = _runs_of_first(v, origins, b, rows, float_operand(at, 5), run, rank)
        total[:runs] = 0
        count[:runs] = 0
        for i in range(rows):
            count[run[rank[i]]] += np.float32(1)
            for c in range(channels):
                total[run[rank[i]], c] += grad[b, i, c]
        for i in range(runs):
            for c in range(channels):
                total[i, c] /= count[i]
        for i in range(rows):
            for c in range(channels):
                grad_v[b, origins[b, i, c], c] = total[run[i], c]
        grad_v[b, rows:] = grad[b, rows:]
