"""Columns of a sample over its valid rows: sorting, maxima, their exchange, and readouts; C is a multiple of 16."""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.program.run import kernel
from graphslice.program.simd.lanes import (
    address_of,
    as_float,
    float32x16,
    keep_alive,
    length_at,
    load,
    load_byte,
    load_float,
    load_int,
    maximum,
    minimum,
    prefetch,
    select_ge,
    splat,
    store,
    store_scalar,
)
from graphslice.program.simd.sorting_network import padded_rows, sort_strip

# Larger samples, in bytes, are not loaded into the cache ahead: they may have left it when their turn comes.
_MAX_AHEAD = 1 << 18

# --- sorting, by the network of :mod:`graphslice.program.simd.sorting_network`, and ties --------------------------


@njit(inline="always")
def _ahead(sample, samples, width, channels):
    """Return the number of elements to the next sample, or 0 if there is none or it is large."""
    size = width * channels
    return size if sample + 1 < samples and 4 * size <= _MAX_AHEAD else 0


@kernel
def column_sort(samples, x, lengths, descending, out, rows, width, channels):
    """Sort every channel; ``rows``: the source row of each value, or 0; ``lengths`` of 0 are N; ``descending``: 0 for
    no channel, 1 for all, or the address of a flag per channel."""
    order, scratch = np.zeros(channels, np.int32), np.empty(16 * padded_rows(width) + 8)
    for c in range(channels):
        order[c] = -load_byte(descending, c) if descending > 1 else -descending
    orders, keys = address_of(order), -(-address_of(scratch) // 64) * 64  # a register of keys is a cache line
    size = 1 if width <= 256 else 4
    for b in range(samples):
        valid = length_at(lengths, b, width) if lengths else width
        ahead = _ahead(b, samples, width, channels)
        for c in range(0, channels, 16):
            at = b * width * channels + c
            origins = rows + size * at if rows else rows
            x_at, out_at, order_at = x + 4 * at, out + 4 * at, orders + 4 * c
            sort_strip(x_at, order_at, out_at, origins, size, channels, valid, width, ahead, keys)
    keep_alive(scratch)
    keep_alive(order)


@njit(inline="always")
def _source_row(rows, at, width):
    """Return the source row of a sorted value."""
    return load_byte(rows, at) if width <= 256 else load_int(rows, at)


@kernel
def column_sort_gradient(samples, grad, rows, grad_x, width, channels):
    """Gradient of :func:`column_sort`: the inverse permutation."""
    # By address: for arrays the compiler emits scatter instructions, which take three times as long as single stores.
    for b in range(samples):
        sample, ahead = b * width * channels, _ahead(b, samples, width, channels)
        for first in range(0, channels, 64):  # so few that all rows stay in the cache
            for at in range(sample, sample + width * channels, channels):
                for c in range(first, min(first + 64, channels), 16):
                    prefetch(grad_x + 4 * (at + ahead + c))
                for c in range(first, min(first + 64, channels)):
                    row = _source_row(rows, at + c, width)
                    store_scalar(grad_x, sample + row * channels + c, load_float(grad, at + c))


@njit(inline="always")
def _end_of_run(ordered, sample, begin, rows, tie, channels):
    """Return the end of the run of sorted rows that tie in the first channel and begin with a row."""
    smallest = abs(load_float(ordered, sample))
    largest = abs(load_float(ordered, sample + (rows - 1) * channels))
    tolerance = tie * (smallest if smallest > largest else largest)  # nan if there is a nan, which is sorted last
    end = begin + 1
    while end < rows:
        at = sample + end * channels
        if not load_float(ordered, at) - load_float(ordered, at - channels) <= tolerance:
            break
        end += 1
    return end


@kernel
def average_ties(samples, values, ordered, rows, lengths, out, inverse, tie, width, channels):
    """Move the sorted channels ``values`` to the source rows of the first channel; where that has ties, to all of them
    their mean. For the gradient, with ``inverse``, ``values`` are the upstream gradient. ``ordered, rows``: the sorted
    channels and their source rows; ``tie``: relative tolerance of ties."""
    lanes = float32x16()
    for b in range(samples):
        sample, valid, begin = b * width * channels, length_at(lengths, b, width), 0
        while begin < valid:
            end = _end_of_run(ordered, sample, begin, valid, as_float(tie), channels)
            for c in range(0, channels, 16):
                total = float32x16()
                for i in range(begin, end):
                    row = _source_row(rows, sample + i * channels, width) if inverse else i
                    total = total + load(lanes, values, sample + row * channels + c)
                mean = total / splat(lanes, np.float32(end - begin))
                for i in range(begin, end):
                    row = i if inverse else _source_row(rows, sample + i * channels, width)
                    store(out, sample + row * channels + c, mean)
            begin = end
        for at in range(sample + valid * channels, sample + width * channels, 16):
            store(out, at, load(lanes, values, at))


@kernel
def exchange_in_pairs(samples, v, values, lengths, out, tie, width, channels):
    """Sort every channel of rows 2i and 2i + 1 in the order of the first channel, or give both rows the mean if they
    tie there. The order is that of ``v``: the map of a pair is symmetric, so that it is also the gradient's, and
    ``values`` are ``v`` or the upstream gradient."""
    lanes, half = float32x16(), splat(float32x16(), np.float32(0.5))
    for b in range(samples):
        sample, end = b * width * channels, (b * width + length_at(lengths, b, width) // 2 * 2) * channels
        for at in range(sample, end, 2 * channels):
            first, second = load_float(v, at), load_float(v, at + channels)
            ties = abs(first - second) <= as_float(tie) * max(abs(first), abs(second))
            falls = not first <= second and second == second  # nan is sorted last
            of_smaller, of_larger = (channels, 0) if falls else (0, channels)
            for c in range(at, at + channels, 16):
                x, y = load(lanes, values, c), load(lanes, values, c + channels)
                one, other = load(lanes, v, c), load(lanes, v, c + channels)
                smaller = select_ge(other, other, select_ge(other, one, x, y), x)
                larger = select_ge(other, other, select_ge(other, one, y, x), y)
                if ties:
                    smaller = larger = (x + y) * half
                store(out, c + of_smaller, smaller)
                store(out, c + of_larger, larger)
        for at in range(end, sample + width * channels, 16):
            store(out, at, load(lanes, values, at))


# --- maxima and readouts ------------------------------------------------------------------------------------------


@njit(inline="always")
def _maximum_of_rows(x, first, begin, end, channels):
    """Return the maxima of 16 channels from an offset on over rows ``begin`` to ``end``; nan if one is nan."""
    lanes, zeros = float32x16(), float32x16()
    largest, nans, nan = splat(lanes, np.float32(-np.inf)), float32x16(), splat(lanes, np.float32(np.nan))
    for n in range(begin, end):
        value = load(lanes, x, first + n * channels)
        largest = maximum(largest, value)
        nans = nans + select_ge(value, value, zeros, nan)  # maximum() drops nan
    return largest + nans


@njit(inline="always")
def _ties(x, first, begin, end, channels, largest):
    """Return the number of rows that have the maximum, at least 1."""
    lanes, one, count = float32x16(), splat(float32x16(), np.float32(1)), float32x16()
    for n in range(begin, end):
        count = count + select_ge(load(lanes, x, first + n * channels), largest, one, float32x16())
    return maximum(count, one)


@kernel
def broadcast_max(samples, v, lengths, local, out, maxima, width, channels):
    """Replace the channels without a flag in ``local`` (bytes) by their maxima, ``[B, C]``, in every row."""
    lanes, local_array = float32x16(), _as_floats(local, channels)
    flags = address_of(local_array)
    for b in range(samples):
        rows = length_at(lengths, b, width)
        for c in range(0, channels, 16):
            first, is_local = b * width * channels + c, load(lanes, flags, c)
            largest = _maximum_of_rows(v, first, 0, rows, channels)
            store(maxima, b * channels + c, largest)
            for n in range(width):
                at = first + n * channels
                store(out, at, _where(is_local, load(lanes, v, at), largest))
    keep_alive(local_array)


@kernel
def broadcast_max_gradient(samples, v, lengths, local, maxima, grad, grad_v, width, channels):
    """Gradient of :func:`broadcast_max`; that of a maximum is split equally between the rows that attain it."""
    lanes, zeros, local_array = float32x16(), float32x16(), _as_floats(local, channels)
    flags = address_of(local_array)
    for b in range(samples):
        rows = length_at(lengths, b, width)
        for c in range(0, channels, 16):
            first, is_local, total = b * width * channels + c, load(lanes, flags, c), zeros
            largest = load(lanes, maxima, b * channels + c)
            for n in range(width):
                total = total + load(lanes, grad, first + n * channels)
            share = total / _ties(v, first, 0, rows, channels, largest)
            for n in range(width):
                at = first + n * channels
                of_maximum = select_ge(load(lanes, v, at), largest, share, zeros) if n < rows else zeros
                store(grad_v, at, _where(is_local, load(lanes, grad, at), of_maximum))
    keep_alive(local_array)


@njit(inline="always")
def _as_floats(flags, channels):
    """Return bytes as an array of float32."""
    values = np.empty(channels, np.float32)
    for c in range(channels):
        values[c] = load_byte(flags, c)
    return values


@njit(inline="always")
def _where(flags, x, y):
    return select_ge(flags, splat(float32x16(), np.float32(0.5)), x, y)


@kernel
def max_exchange(samples, v, lengths, out, weights, width, channels, low, high):
    """Exchange the maximum of every channel with the value of the first row, shared by ``weights`` among ties; the
    weight of a row falls from 1 to 0 between the distances ``low`` and ``high`` from the maximum."""
    lanes, zeros, one = float32x16(), float32x16(), splat(float32x16(), np.float32(1))
    high_lanes, span = splat(lanes, as_float(high)), splat(lanes, as_float(high) - as_float(low))
    tiny = splat(lanes, np.float32(1.17549435e-38))
    for b in range(samples):
        rows = length_at(lengths, b, width)
        for c in range(0, channels, 16):
            first = b * width * channels + c
            of_token, largest = load(lanes, v, first), _maximum_of_rows(v, first, 1, rows, channels)
            exchange = maximum(largest - of_token, zeros)  # 0 if the first row already has the maximum
            steepness, total = one / maximum(span * exchange, tiny), zeros
            store(weights, first, zeros)
            for n in range(1, width):
                at, weight = first + n * channels, zeros
                if n < rows:
                    weight = (load(lanes, v, at) - largest + high_lanes * exchange) * steepness
                    weight = minimum(maximum(weight, zeros), one)
                store(weights, at, weight)
                total = total + weight
            total, moved = maximum(total, one), zeros
            for n in range(1, width):
                at = first + n * channels
                value, weight = load(lanes, v, at), load(lanes, weights, at) / total
                step = weight * (of_token - value)
                store(weights, at, weight)
                store(out, at, value + step if n < rows else value)
                moved = moved + step if n < rows else moved
            store(out, first, of_token - moved)


@kernel
def swap_maximum(samples, v, lengths, out, weights, width, channels):
    """Swap the first of the maxima of every channel with the value of the first row; ``weights``: 1 in its row."""
    lanes, zeros = float32x16(), float32x16()
    half, one = splat(lanes, np.float32(0.5)), splat(lanes, np.float32(1))
    for b in range(samples):
        rows = length_at(lengths, b, width)
        for c in range(0, channels, 16):
            first = b * width * channels + c
            of_token = load(lanes, v, first)
            largest = _maximum_of_rows(v, first, 0, rows, channels)
            free = select_ge(of_token, largest, zeros, one)  # 1 until the maximum is found
            store(out, first, largest)
            store(weights, first, zeros)
            for n in range(1, width):
                at, weight = first + n * channels, zeros
                value = load(lanes, v, at)
                if n < rows:
                    weight = select_ge(value, largest, free, zeros)
                    free = free - weight
                store(weights, at, weight)
                store(out, at, select_ge(weight, half, of_token, value))


@kernel
def max_exchange_gradient(samples, weights, grad, grad_v, width, channels):
    """Gradient of :func:`max_exchange` and :func:`swap_maximum`; the weights count as constants."""
    lanes = float32x16()
    for b in range(samples):
        for c in range(0, channels, 16):
            first = b * width * channels + c
            of_token = load(lanes, grad, first)
            total = of_token
            for n in range(1, width):
                at = first + n * channels
                step = load(lanes, weights, at) * (of_token - load(lanes, grad, at))
                store(grad_v, at, load(lanes, grad, at) + step)
                total = total - step
            store(grad_v, first, total)


@kernel
def read_out(samples, x, lengths, out, kind, index, kinds, width, channels):
    """Readout ``index`` of ``kinds``, concatenated in ``out``; kind is 0 for token, 1 max, 2 sum, 3 mean of atoms."""
    lanes = float32x16()
    for b in range(samples):
        rows = max(length_at(lengths, b, width), 1)
        for c in range(0, channels, 16):
            first = b * width * channels + c
            result = load(lanes, x, first)
            if kind == 1:
                result = _maximum_of_rows(x, first, 1, rows, channels)
            elif kind > 1:
                result = float32x16()
                for n in range(1, rows):
                    result = result + load(lanes, x, first + n * channels)
                if kind == 3:
                    result = result / splat(lanes, np.float32(max(rows - 1, 1)))
            store(out, (b * kinds + index) * channels + c, result)


@kernel
def read_out_gradient(samples, x, lengths, grad, grad_x, kind, index, kinds, width, channels):
    """Gradient of :func:`read_out`, accumulated."""
    lanes = float32x16()
    for b in range(samples):
        rows = max(length_at(lengths, b, width), 1)
        for c in range(0, channels, 16):
            first, upstream = b * width * channels + c, load(lanes, grad, (b * kinds + index) * channels + c)
            if kind == 0:
                store(grad_x, first, load(lanes, grad_x, first) + upstream)
                continue
            largest = splat(lanes, np.float32(-np.inf))
            if kind == 1:
                largest = _maximum_of_rows(x, first, 1, rows, channels)
                upstream = upstream / _ties(x, first, 1, rows, channels, largest)
            elif kind == 3:
                upstream = upstream / splat(lanes, np.float32(max(rows - 1, 1)))
            for n in range(1, rows):
                at, part = first + n * channels, upstream
                if kind == 1:
                    part = select_ge(load(lanes, x, at), largest, upstream, float32x16())
                store(grad_x, at, load(lanes, grad_x, at) + part)
