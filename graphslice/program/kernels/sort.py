"""Sorting of columns, ``[B, N, C]``, by the network of :mod:`graphslice.program.simd.sorting_network`."""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.program.kernels.operands import as_float, bytes_at, floats_at, length_at
from graphslice.program.run import kernel
from graphslice.program.simd.lanes import (
    address_of,
    int32x16,
    keep_alive,
    load_byte,
    load_int,
    load_scalar,
    prefetch,
    store_scalar,
)
from graphslice.program.simd.sorting_network import padded_rows, sort_strip

# Larger samples, in bytes, are not loaded into the cache ahead: they may have left it when their turn comes.
_MAX_AHEAD = 1 << 18


@njit(inline="always")
def _ahead(sample, samples, width, channels):
    """Return the number of elements to the next sample, or 0 if there is none or it is large."""
    size = width * channels
    return size if sample + 1 < samples and 4 * size <= _MAX_AHEAD else 0


@njit(inline="always")
def _sort(x, lengths, order, out, rows, samples, width, channels):
    """Sort every channel in the order of an array ``[C]``, and write the source rows unless their address is 0."""
    orders, scratch = address_of(order), np.empty(16 * padded_rows(width) + 8)
    keys = -(-address_of(scratch) // 64) * 64  # a register of keys is a cache line
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


@kernel
def column_sort(samples, x, lengths, descending, out, rows, width, channels):
    """Sort every channel; ``rows`` are the source row of each value, or 0.

    ``lengths`` of 0 are N; ``descending`` is 0 for no channel, 1 for all, or the address of a flag per channel.
    """
    order = np.zeros(channels, np.int32)
    for c in range(channels):
        order[c] = -load_byte(descending, c) if descending > 1 else -descending
    _sort(x, lengths, order, out, rows, samples, width, channels)


@kernel
def column_sort_gradient(samples, grad, rows, grad_x, width, channels):
    """Gradient of :func:`column_sort`: the inverse permutation.

    By address, because for arrays the compiler emits scatter instructions, which take nearly three times as long as
    single stores.
    """
    lanes = int32x16()
    for b in range(samples):
        sample, ahead = b * width * channels, _ahead(b, samples, width, channels)
        for first in range(0, channels, 64):  # so few that all rows stay in the cache
            for at in range(sample, sample + width * channels, channels):
                for c in range(first, min(first + 64, channels), 16):
                    prefetch(grad_x + 4 * (at + ahead + c))
                for c in range(first, min(first + 64, channels)):
                    row = load_byte(rows, at + c) if width <= 256 else load_int(rows, at + c)
                    store_scalar(grad_x, sample + row * channels + c, load_scalar(lanes, grad, at + c))


@njit(inline="always")
def _runs_of_first(v, origins, b, rows, tie, run, run_of_row):
    """Number the runs of ties in the first channel of a sample, by rank and by row, and return their count."""
    largest = np.float32(0)
    for i in range(rows):
        largest = max(largest, abs(v[b, i, 0]))
    if rows > 0 and np.isnan(v[b, origins[b, rows - 1, 0], 0]):  # nan is sorted last, and max() drops it
        largest = np.float32(np.nan)
    number = 0
    for i in range(rows):
        if i > 0 and not (v[b, origins[b, i, 0], 0] - v[b, origins[b, i - 1, 0], 0] <= tie * largest):
            number += 1
        run[i] = number
        run_of_row[origins[b, i, 0]] = number
    return number + 1


@njit(inline="always")
def _mean_of_runs(values, b, run_of_row, rows, runs, total, count):
    """Average the first ``rows`` rows of a sample by run, into ``total``."""
    total[:runs] = 0
    count[:runs] = 0
    for i in range(rows):
        count[run_of_row[i]] += np.float32(1)
        for c in range(values.shape[2]):
            total[run_of_row[i], c] += values[b, i, c]
    for i in range(runs):
        for c in range(values.shape[2]):
            total[i, c] /= count[i]


@kernel
def sort_by_first(samples, v, lengths, sorted_v, rows, out, tie, width, channels):
    """Sort every channel by the ranks of the first, for at most 256 rows; rows that tie there share their mean.

    ``sorted_v`` are the sorted channels, ``rows`` the source row of each, and ``tie`` the relative tolerance.
    """
    _sort(v, lengths, np.zeros(channels, np.int32), sorted_v, rows, samples, width, channels)
    shape = samples, width, channels
    values, ordered = floats_at(v, shape), floats_at(sorted_v, shape)
    result, origins = floats_at(out, shape), bytes_at(rows, shape)
    run, run_of_row = np.empty(width, np.int64), np.empty(width, np.int64)
    total, count = np.empty((width, channels), np.float32), np.empty(width, np.float32)
    for b in range(samples):
        valid = length_at(lengths, b, width)
        runs = _runs_of_first(values, origins, b, valid, as_float(tie), run, run_of_row)
        _mean_of_runs(ordered, b, run, valid, runs, total, count)
        for i in range(valid):
            result[b, i] = total[run_of_row[i]]
        result[b, valid:] = values[b, valid:]


@kernel
def sort_by_first_gradient(samples, v, lengths, rows, grad, grad_v, tie, width, channels):
    """Gradient of :func:`sort_by_first`."""
    shape = samples, width, channels
    values, upstream = floats_at(v, shape), floats_at(grad, shape)
    result, origins = floats_at(grad_v, shape), bytes_at(rows, shape)
    run, run_of_row = np.empty(width, np.int64), np.empty(width, np.int64)
    total, count = np.empty((width, channels), np.float32), np.empty(width, np.float32)
    for b in range(samples):
        valid = length_at(lengths, b, width)
        runs = _runs_of_first(values, origins, b, valid, as_float(tie), run, run_of_row)
        _mean_of_runs(upstream, b, run_of_row, valid, runs, total, count)
        for i in range(valid):
            for c in range(channels):
                result[b, origins[b, i, c], c] = total[run[i], c]
        result[b, valid:] = upstream[b, valid:]
