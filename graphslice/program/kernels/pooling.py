"""Pooling over the valid rows of a sample: broadcast maxima, exchange of maxima and readouts; C is a multiple of 16."""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.program.kernels.operands import as_float, length_at
from graphslice.program.run import kernel
from graphslice.program.simd.lanes import (
    address_of,
    float32x16,
    keep_alive,
    load,
    load_byte,
    maximum,
    minimum,
    select_ge,
    splat,
    store,
)


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
    """Exchange the maximum of every channel with the value of the first row, shared by ``weights`` among ties.

    The weight of a row falls from 1 to 0 between the distances ``low`` and ``high`` from the maximum.
    """
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
def max_exchange_gradient(samples, weights, grad, grad_v, width, channels):
    """Gradient of :func:`max_exchange`; the weights count as constants."""
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
