"""Sorting of columns, ``[B, N, C]``, by the network of :mod:`graphslice.program.simd.sorting_network`; and ties."""

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
    load_float,
    load_int,
    prefetch,
    splat,
    store,
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


@kernel
def column_sort(samples, x, lengths, descending, out, rows, width, channels):
    """Sort every channel; ``rows`` are the source row of each value, or 0.

    ``lengths`` of 0 are N; ``descending`` is 0 for no channel, 1 for all, or the address of a flag per channel.
    """
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
    """Gradient of :func:`column_sort`: the inverse permutation.

    By address, because for arrays the compiler emits scatter instructions, which take nearly three times as long as
    single stores.
    """
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
    """Move sorted values to the source rows of the first channel; where that has ties, to all of them their mean.

    Args:
        values: the sorted channels, or for the gradient, with ``inverse``, the upstream gradient.
        ordered, rows: the sorted channels and their source rows.
        tie: relative tolerance of ties.
    """
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
