"""Sorting of columns, ``[B, N, C]``, by the network of :mod:`graphslice.program.simd.sorting_network`."""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.program.kernels.operands import as_float, bytes_at, floats_at, ints_at, length_at
from graphslice.program.run import kernel
from graphslice.program.simd.sorting_network import sort_values, sort_with_rows, unsort


@njit(inline="always")
def _block(width):
    """Return the number of channels sorted at once: few enough that all their rows stay in the L1 or L2 cache."""
    return 256 if width <= 32 else 128 if width <= 128 else 64


@njit(inline="always")
def _lengths(address, samples, width):
    lengths = np.full(samples, width, np.int64)
    if address:
        for b in range(samples):
            lengths[b] = length_at(address, b, width)
    return lengths


@kernel
def column_sort(samples, x, lengths, descending, out, rows, width, channels):
    """Sort every channel; ``rows`` are the source row of each value, or 0.

    ``lengths`` of 0 are N; ``descending`` is 0 for no channel, 1 for all, or the address of a flag per channel.
    """
    shape, valid, block = (samples, width, channels), _lengths(lengths, samples, width), _block(width)
    bits, sorted_bits = ints_at(x, shape), ints_at(out, shape)
    flip = np.zeros(channels, np.int32)
    if descending == 1:
        flip -= np.int32(1)
    elif descending:
        flip -= bytes_at(descending, channels).astype(np.int32)
    if not rows:
        sort_values(bits, valid, flip, sorted_bits, block)
    elif width <= 256:
        sort_with_rows(bits, valid, flip, sorted_bits, bytes_at(rows, shape), block)
    else:
        sort_with_rows(bits, valid, flip, sorted_bits, ints_at(rows, shape), block)


@kernel
def column_sort_gradient(samples, grad, rows, grad_x, width, channels):
    """Gradient of :func:`column_sort`: the inverse permutation."""
    unsort((grad, rows, grad_x), width > 256, samples, width, channels, _block(width))


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
    shape, valid, block = (samples, width, channels), _lengths(lengths, samples, width), _block(width)
    values, ordered = floats_at(v, shape), floats_at(sorted_v, shape)
    result, origins = floats_at(out, shape), bytes_at(rows, shape)
    flip = np.zeros(channels, np.int32)
    sort_with_rows(ints_at(v, shape), valid, flip, ints_at(sorted_v, shape), origins, block)
    run, run_of_row = np.empty(width, np.int64), np.empty(width, np.int64)
    total, count = np.empty((width, channels), np.float32), np.empty(width, np.float32)
    for b in range(samples):
        valid_rows = valid[b]
        runs = _runs_of_first(values, origins, b, valid_rows, as_float(tie), run, run_of_row)
        _mean_of_runs(ordered, b, run, valid_rows, runs, total, count)
        for i in range(valid_rows):
            result[b, i] = total[run_of_row[i]]
        result[b, valid_rows:] = values[b, valid_rows:]


@kernel
def sort_by_first_gradient(samples, v, lengths, rows, grad, grad_v, tie, width, channels):
    """Gradient of :func:`sort_by_first`."""
    shape, valid = (samples, width, channels), _lengths(lengths, samples, width)
    values, upstream = floats_at(v, shape), floats_at(grad, shape)
    result, origins = floats_at(grad_v, shape), bytes_at(rows, shape)
    run, run_of_row = np.empty(width, np.int64), np.empty(width, np.int64)
    total, count = np.empty((width, channels), np.float32), np.empty(width, np.float32)
    for b in range(samples):
        valid_rows = valid[b]
        runs = _runs_of_first(values, origins, b, valid_rows, as_float(tie), run, run_of_row)
        _mean_of_runs(upstream, b, run_of_row, valid_rows, runs, total, count)
        for i in range(valid_rows):
            for c in range(channels):
                result[b, origins[b, i, c], c] = total[run[i], c]
        result[b, valid_rows:] = upstream[b, valid_rows:]
