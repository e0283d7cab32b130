"""Kernels of traced programs for the operations of mixers, as in :mod:`graphslice.ops.kernels`."""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.ops.aggregate import aggregate_gradients, aggregate_samples
from graphslice.ops.attention import attention_gradients, attention_samples
from graphslice.ops.linear_attention import linear_attention_gradients, linear_attention_samples
from graphslice.ops.max_exchange import TIE, exchange_gradients, exchange_rows
from graphslice.ops.operands import bytes_at, float_operand, floats_at, ints_at, keys_at, lengths_at, operand
from graphslice.ops.program import kernel
from graphslice.ops.simd.lanes import (
    float32x8,
    float32x16,
    load,
    maximum,
    reduce_sum,
    select_ge,
    splat,
    store,
)
from graphslice.ops.simd.small_product import (
    AttnShape,
)
from graphslice.ops.simd.sorting_network import parts_of, sort_values, sort_with_rows, unsort

# Channels that are sorted at once.
_SORTED = 256


@kernel
def aggregate(at, samples):
    """``dropout(P) V``: P, V, out, heads, N, C, keys."""
    shape = AttnShape(operand(at, 3), operand(at, 4), operand(at, 5))
    aggregate_samples((operand(at, 0), operand(at, 1), operand(at, 2)), shape, keys_at(at, 6), 0, samples)


@kernel
def aggregate_gradient(at, samples):
    """Gradients of :func:`aggregate`: P, V, upstream gradient, gradients of V and P, heads, N, C, keys."""
    addresses = (operand(at, 0), operand(at, 1), operand(at, 2), operand(at, 3), operand(at, 4))
    shape = AttnShape(operand(at, 5), operand(at, 6), operand(at, 7))
    aggregate_gradients(addresses, shape, keys_at(at, 8), True, 0, samples)


@kernel
def broadcast_max(at, samples):
    """Broadcast maximum: V, lengths, local channels (1.0 or 0.0), out, maxima, N, C."""
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
                nans = nans + value * float32x16()  # nan if the value is nan or infinite, as maximum() drops nan
            largest = largest + nans
            store(maxima, b * channels + c, largest)
            is_local = load(lanes, local, c)
            for n in range(width):
                at_row = first + n * channels + c
                store(out, at_row, select_ge(is_local, half, load(lanes, v, at_row), largest))


@kernel
def broadcast_max_gradient(at, samples):
    """Gradient of :func:`broadcast_max`: V, lengths, local channels, maxima, upstream gradient, gradient of V, N, C."""
    v, local, maxima, grad, grad_v = operand(at, 0), operand(at, 2), operand(at, 3), operand(at, 4), operand(at, 5)
    width, channels = operand(at, 6), operand(at, 7)
    lanes, zeros = float32x16(), float32x16()
    one, half = splat(float32x16(), np.float32(1)), splat(float32x16(), np.float32(0.5))
    for b in range(samples):
        rows = min(max(operand(operand(at, 1), b), 0), width)
        first = b * width * channels
        for c in range(0, channels, 16):
            largest, is_local = load(lanes, maxima, b * channels + c), load(lanes, local, c)
            total, count = float32x16(), float32x16()
            for n in range(width):
                total = total + load(lanes, grad, first + n * channels + c)
            for n in range(rows):
                count = count + select_ge(load(lanes, v, first + n * channels + c), largest, one, zeros)
            part = total / maximum(count, one)
            for n in range(rows):
                at_row = first + n * channels + c
                of_maximum = select_ge(load(lanes, v, at_row), largest, part, zeros)
                store(grad_v, at_row, select_ge(is_local, half, load(lanes, grad, at_row), of_maximum))
            for n in range(rows, width):
                at_row = first + n * channels + c
                store(grad_v, at_row, select_ge(is_local, half, load(lanes, grad, at_row), zeros))


@kernel
def max_exchange(at, samples):
    """Exchange of maxima: V, lengths, out, weights, N, C."""
    width, channels = operand(at, 4), operand(at, 5)
    shape = (samples, width, channels)
    mask = np.zeros((samples, width), np.bool_)
    for b in range(samples):
        mask[b, : min(max(operand(operand(at, 1), b), 0), width)] = True
    constants = np.array([0.0, 1.0, TIE[1], TIE[1] - TIE[0], 1.17549435e-38], np.float32)
    v, out = floats_at(operand(at, 0), shape), floats_at(operand(at, 2), shape)
    weights = floats_at(operand(at, 3), shape)
    exchange_rows(v, mask, out, weights, constants)


@kernel
def max_exchange_gradient(at, samples):
    """Gradient of :func:`max_exchange`: weights, upstream gradient, gradient of V, N, C."""
    shape = (samples, operand(at, 3), operand(at, 4))
    exchange_gradients(
        floats_at(operand(at, 1), shape), floats_at(operand(at, 0), shape), floats_at(operand(at, 2), shape)
    )


@kernel
def column_sort(at, samples):
    """Column sort: x, lengths, -1 for descending channels else 0, out, source rows or 0, N, C."""
    width, channels = operand(at, 5), operand(at, 6)
    shape, lengths = (samples, width, channels), lengths_at(operand(at, 1), samples, width)
    bits, flip = ints_at(operand(at, 0), shape), ints_at(operand(at, 2), channels)
    out, parts = ints_at(operand(at, 3), shape), samples * parts_of(channels, _SORTED)
    if operand(at, 4):
        sort_with_rows(bits, lengths, flip, out, bytes_at(operand(at, 4), shape), _SORTED, 0, parts)
    else:
        sort_values(bits, lengths, flip, out, _SORTED, 0, parts)


@kernel
def column_sort_gradient(at, samples):
    """Gradient of :func:`column_sort`: upstream gradient, source rows, gradient of x, N, C."""
    addresses, width, channels = (operand(at, 0), operand(at, 1), operand(at, 2)), operand(at, 3), operand(at, 4)
    unsort(addresses, False, width, channels, _SORTED, 0, samples * parts_of(channels, _SORTED))


@kernel
def attention(at, samples):
    """Softmax attention: q, k, v, bias, weights, out, heads, N, C, keys."""
    addresses = (
        operand(at, 0),
        operand(at, 1),
        operand(at, 2),
        operand(at, 3),
        operand(at, 4),
        operand(at, 5),
    )
    shape = AttnShape(operand(at, 6), operand(at, 7), operand(at, 8))
    attention_samples(addresses, shape, keys_at(at, 9), 0, samples)


@kernel
def attention_gradient(at, samples):
    """Gradients of :func:`attention`: q, k, v, weights, upstream, gradients of q, k, v and bias, heads, N, C, keys."""
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
    attention_gradients(addresses, shape, keys_at(at, 12), 0, samples)


@kernel
def linear_attention(at, samples):
    """Linear attention: q, k, v, lengths, out, heads, N, C."""
    addresses = (operand(at, 0), operand(at, 1), operand(at, 2), operand(at, 4))
    width, channels = operand(at, 6), operand(at, 7)
    out = floats_at(operand(at, 4), (samples, width, channels))
    lengths, shape = lengths_at(operand(at, 3), samples, width), AttnShape(operand(at, 5), width, channels)
    linear_attention_samples(addresses, lengths, out, shape, 0, samples)


@kernel
def linear_attention_gradient(at, samples):
    """Gradients of :func:`linear_attention`: q, k, v, lengths, upstream, gradients of q, k and v, heads, N, C."""
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
    grads = (floats_at(operand(at, 5), shape), floats_at(operand(at, 6), shape), floats_at(operand(at, 7), shape))
    lengths, sizes = lengths_at(operand(at, 3), samples, width), AttnShape(operand(at, 8), width, channels)
    linear_attention_gradients(addresses, lengths, grads, sizes, 0, samples)


@njit(inline="always")
def _moments(x, first, size):
    """Return the mean and inverse standard deviation of ``size`` values, a multiple of 8."""
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
    """Layer norm of each head: x, scales and shifts of two norms, out, index of the norm, heads, N, C."""
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
    """Gradients of :func:`head_norm`: x, scales, upstream, gradients of x, scales and shifts, index, heads, N, C."""
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
    """Number the runs of ties in the first channel of a sample, write the rank of each row, and return their count."""
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
    """Sort by the first channel: v, lengths, sorted v, source rows, out, relative tie tolerance, N, C."""
    width, channels = operand(at, 6), operand(at, 7)
    shape, lengths = (samples, width, channels), lengths_at(operand(at, 1), samples, width)
    v, sorted_v, out = (
        floats_at(operand(at, 0), shape),
        floats_at(operand(at, 2), shape),
        floats_at(operand(at, 4), shape),
    )
    bits = ints_at(operand(at, 0), shape)
    sorted_bits = ints_at(operand(at, 2), shape)
    origins = bytes_at(operand(at, 3), shape)
    parts = samples * parts_of(channels, _SORTED)
    sort_with_rows(bits, lengths, np.zeros(channels, np.int32), sorted_bits, origins, _SORTED, 0, parts)
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
                total[run[i], c] += sorted_v[b, i, c]
        for i in range(runs):
            for c in range(channels):
                total[i, c] /= count[i]
        for i in range(rows):
            out[b, i] = total[run[rank[i]]]
        out[b, rows:] = v[b, rows:]


@kernel
def sort_by_first_gradient(at, samples):
    """Gradient of :func:`sort_by_first`: v, lengths, source rows, upstream, gradient of v, tie tolerance, N, C."""
    width, channels = operand(at, 6), operand(at, 7)
    shape, lengths = (samples, width, channels), lengths_at(operand(at, 1), samples, width)
    v, grad, grad_v = (
        floats_at(operand(at, 0), shape),
        floats_at(operand(at, 3), shape),
        floats_at(operand(at, 4), shape),
    )
    origins = bytes_at(operand(at, 2), shape)
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
