"""Sorting network for the columns of small samples; for compiled kernels.

Its comparisons do not depend on the values, so each one processes a contiguous row of channels with SIMD instructions.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.program.simd.lanes import (
    address_of,
    int32x16,
    int64x8,
    keep_alive,
    load,
    load_byte,
    load_scalar,
    maximum,
    minimum,
    store,
    store_scalar,
)


@njit(cache=True, inline="always")
def _to_key(bits):
    """Map the bits of a float to an integer with the same order; nan is the largest, and -0.0 equals 0.0."""
    magnitude = bits & np.int32(0x7FFFFFFF)
    bits = np.int32(0x7FFFFFFF) if magnitude > np.int32(0x7F800000) else bits
    bits = np.int32(0) if magnitude == 0 else bits
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@njit(cache=True, inline="always")
def _from_key(key):
    return key ^ ((key >> np.int32(31)) & np.int32(0x7FFFFFFF))


# The compiler vectorises a loop over slices that are arguments, but not a loop over rows of one array, since it cannot
# prove that they do not overlap.


@njit(cache=True)
def _read(bits, flip, keys):
    for c in range(len(bits)):
        keys[c] = _to_key(bits[c]) ^ flip[c]


@njit(cache=True)
def _write(keys, flip, bits):
    for c in range(len(bits)):
        bits[c] = _from_key(keys[c] ^ flip[c])


@njit(cache=True)
def _read_with_row(bits, flip, row, keys):
    for c in range(len(bits)):
        keys[c] = (np.int64(_to_key(bits[c]) ^ flip[c]) << np.int64(32)) | row


@njit(cache=True)
def _write_with_row(keys, flip, bits, rows):
    for c in range(len(bits)):
        bits[c] = _from_key(np.int32(keys[c] >> np.int64(32)) ^ flip[c])
    for c in range(len(bits)):
        rows[c] = keys[c] & np.int64(0xFFFFFFFF)


@njit(cache=True)
def _network(lane_type, keys, rows, width, channels):
    """Sort by Batcher's merge exchange (Knuth, The Art of Computer Programming 3, algorithm 5.2.2M).

    ``keys`` is an address with row stride ``width``, a multiple of the number of lanes.
    """
    count = len(lane_type)
    half = 1
    while 2 * half < rows:
        half *= 2
    p = half if rows > 1 else 0
    while p > 0:
        q, r, d = half, 0, p
        while True:
            for i in range(rows - d):
                if i & p == r:
                    low, high = i * width, (i + d) * width
                    for c in range(0, channels, count):
                        x, y = load(lane_type, keys, low + c), load(lane_type, keys, high + c)
                        store(keys, low + c, minimum(x, y))
                        store(keys, high + c, maximum(x, y))
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1


@njit(cache=True, inline="always")
def parts_of(channels, block):
    """Return the number of parts of ``block`` channels per sample; parts are distributed over the cores."""
    return (channels + block - 1) // block


@njit(cache=True, inline="always")
def _part(part, channels, block):
    """Return the sample of a part and its first and last channel."""
    parts = parts_of(channels, block)
    first = part % parts * block
    return part // parts, first, min(first + block, channels)


@njit(cache=True, nogil=True)
def sort_values(bits, lengths, flip, out, block, begin, end):
    """Sort parts ``begin`` to ``end`` of ``int32 [B, N, C]``, the bits of floats, into ``out``.

    Args:
        bits: ``[B, N, C]``.
        lengths: int64 ``[B]``, from 0 to N; later rows are copied.
        flip: int32 ``[C]``, -1 for descending channels, else 0.
        out: as ``bits``.
        block: number of channels that are sorted at once, a multiple of 16.
        begin, end: range of parts, out of ``B * parts_of(C, block)``.
    """
    width, channels = bits.shape[1:]
    keys = np.empty((width, block), np.int32)
    address = address_of(keys)
    for part in range(begin, end):
        b, first, last = _part(part, channels, block)
        rows = lengths[b]
        for i in range(rows):
            _read(bits[b, i, first:last], flip[first:last], keys[i, : last - first])
        _network(int32x16(), address, rows, block, last - first)
        for i in range(rows):
            _write(keys[i, : last - first], flip[first:last], out[b, i, first:last])
        out[b, rows:, first:last] = bits[b, rows:, first:last]
    keep_alive(keys)


@njit(cache=True, nogil=True)
def sort_with_rows(bits, lengths, flip, out, origins, block, begin, end):
    """Sort as :func:`sort_values`, and write the source row of each value to ``origins``."""
    width, channels = bits.shape[1:]
    # The row number in the low bits makes the keys distinct and the sort stable.
    keys = np.empty((width, block), np.int64)
    address = address_of(keys)
    for part in range(begin, end):
        b, first, last = _part(part, channels, block)
        rows = lengths[b]
        for i in range(rows):
            _read_with_row(bits[b, i, first:last], flip[first:last], np.int64(i), keys[i, : last - first])
        _network(int64x8(), address, rows, block, last - first)
        for i in range(rows):
            row_keys = keys[i, : last - first]
            _write_with_row(row_keys, flip[first:last], out[b, i, first:last], origins[b, i, first:last])
        out[b, rows:, first:last] = bits[b, rows:, first:last]
        for i in range(rows, width):
            origins[b, i, first:last] = i
    keep_alive(keys)


@njit(cache=True, nogil=True)
def unsort(addresses, wide, width, channels, block, begin, end):
    """Compute ``result[rows[i]] = grad[i]`` in every channel of parts ``begin`` to ``end``, as in :func:`sort_values`.

    Uses addresses because for arrays the compiler emits scatter instructions, which take nearly three times as long as
    single stores.

    Args:
        addresses: of the gradient, the rows and the result, each ``[B, N, C]``; gradient and result have 4-byte values.
        wide: True if the rows are int32, False if they are uint8.
        width, channels: N and C.
        block, begin, end: as for :func:`sort_values`.
    """
    grad, rows, result = addresses
    lanes = int32x16()
    for part in range(begin, end):
        b, first, last = _part(part, channels, block)
        sample = b * width * channels
        for i in range(width):
            at = sample + i * channels
            if wide:
                for c in range(first, last):
                    row = np.int64(load_scalar(lanes, rows, at + c))
                    store_scalar(result, sample + row * channels + c, load_scalar(lanes, grad, at + c))
            else:
                for c in range(first, last):
                    row = np.int64(load_byte(rows, at + c))
                    store_scalar(result, sample + row * channels + c, load_scalar(lanes, grad, at + c))
