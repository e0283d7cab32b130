"""Sorting networks for the columns of small samples; for compiled kernels.

The comparisons of a network do not depend on the values, so each one processes 8 channels in a register. Up to 32 rows
stay in registers from the first comparison to the last, in code that is made for each number of rows.

Keys are float64, since every machine has minima and maxima of them: the bits of the value above, the number of its row
below. That makes the keys distinct and the sort stable.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.program.simd.lanes import (
    deinterleave,
    exchanges_in_registers,
    float64x8,
    int32x16,
    interleave,
    load,
    maximum,
    minimum,
    prefetch,
    select_ge,
    splat,
    store,
    store_bytes,
)

# Rows that are sorted in registers, and keys in a register.
_REGISTERS, _KEYS = 32, 8

_MAGNITUDE, _SIGN = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
_INFINITY, _NAN = np.int32(0x7F800000), np.int32(0x7FC00000)
# Added to the bits of a value, so that the float64 that begins with the sum is never denormal, which processors may
# be set to treat as 0; none becomes infinite or nan either.
_OFFSET = np.int32(0x00100000)


def _merge_exchange(rows: int) -> list[tuple[int, int]]:
    """Return the comparisons of Batcher's merge exchange (Knuth, The Art of Computer Programming 3, 5.2.2M)."""
    half = 1 << ((rows - 1).bit_length() - 1)
    pairs, p = [], half
    while p > 0:
        q, r, d = half, 0, p
        while True:
            pairs += [(i, i + d) for i in range(rows - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return pairs


def _half_cleaners(rows: int) -> list[tuple[int, int]]:
    """Return the comparisons that sort a bitonic sequence of ``rows``, a power of 2."""
    distances = [rows >> level for level in range(1, rows.bit_length())]
    return [(i, i + distance) for distance in distances for i in range(rows) if not i & distance]


@njit(cache=True, inline="always")
def padded_rows(rows):
    """Return the number of rows of keys that are in memory: a multiple of 32."""
    return -(-rows // _REGISTERS) * _REGISTERS


# An odd number of rows is sorted with one more row, which halves the code.
_sort_registers = exchanges_in_registers({rows: _merge_exchange(rows) for rows in range(2, _REGISTERS + 1, 2)})
_merge_registers = exchanges_in_registers({1 << level: _half_cleaners(1 << level) for level in range(1, 6)})


@njit(cache=True)
def _exchange(keys, low, high):
    x, y = load(float64x8(), keys, low * _KEYS), load(float64x8(), keys, high * _KEYS)
    store(keys, low * _KEYS, minimum(x, y))
    store(keys, high * _KEYS, maximum(x, y))


@njit(cache=True)
def _sort_keys(keys, rows):
    """Sort ``rows`` rows of keys at an address, which has room for a multiple of 32.

    More than 32 rows are sorted in blocks of 32, then merged by bitonic merges. All comparisons put the smaller key
    first, so those with a row beyond the last do nothing and are left out.
    """
    for i in range(rows, rows + rows % 2 if rows <= _REGISTERS else padded_rows(rows)):
        store(keys, i * _KEYS, splat(float64x8(), np.inf))
    for first in range(0, rows, _REGISTERS):
        _sort_registers(float64x8(), keys + 8 * first * _KEYS, min(rows + rows % 2 - first, _REGISTERS))
    size = _REGISTERS
    while size < rows:
        for middle in range(size, rows, 2 * size):
            for i in range(min(size, rows - middle)):
                _exchange(keys, middle - 1 - i, middle + i)
        distance = size // 2
        while distance >= _REGISTERS:
            for i in range(rows - distance):
                if not i & distance:
                    _exchange(keys, i, i + distance)
            distance //= 2
        for first in range(0, rows, _REGISTERS):
            merged = _REGISTERS
            while first + merged // 2 >= rows:
                merged //= 2
            _merge_registers(float64x8(), keys + 8 * first * _KEYS, merged)
        size *= 2


@njit(cache=True, inline="always")
def _canonical(bits):
    """Return the bits of floats with those of 0.0 for -0.0 and of one nan for every nan."""
    magnitude = bits & splat(bits, _MAGNITUDE)
    bits = select_ge(magnitude, splat(bits, np.int32(1)), bits, int32x16())
    return select_ge(magnitude, splat(bits, _INFINITY + np.int32(1)), splat(bits, _NAN), bits)


@njit(cache=True, inline="always")
def _store_rows(address, offset, rows, size):
    """Store row numbers in ``size`` bytes each; nothing if the address is 0."""
    if address and size == 1:
        store_bytes(address, offset, rows)
    elif address:
        store(address, offset, rows)


@njit(cache=True)
def sort_strip(x, order, out, origins, size, stride, rows, width, ahead, keys):
    """Sort 16 channels of a sample, and copy the rows behind the valid ones.

    nan is the largest value, and -0.0 equals 0.0; of each there is one form in the result.

    Args:
        x, out: addresses of the first float32 value and of its result.
        order: address of the int32 order of each channel, -1 for descending, else 0.
        origins: address of the source rows, or 0 if they are not wanted.
        size: bytes of a source row, 1 or 4.
        stride: elements from row to row.
        rows, width: number of valid rows and of all.
        ahead: elements from here to the next sample, which is loaded into the cache meanwhile.
        keys: address of memory for ``16 padded_rows(rows)`` float64.
    """
    lanes, none = int32x16(), int32x16()
    inverse, sign = splat(lanes, np.int32(-1)), load(lanes, order, 0) & splat(lanes, _SIGN)
    half = padded_rows(rows) * _KEYS
    for i in range(rows):
        later = i * stride + ahead
        prefetch(x + 4 * later)
        prefetch(out + 4 * later)
        if origins:
            prefetch(origins + size * later)
        upper, row = _canonical(load(lanes, x, i * stride)) + splat(lanes, _OFFSET), splat(lanes, np.int32(i))
        upper = upper ^ sign
        # Of two negative floats the smaller has the larger lower bits.
        first, second = interleave(select_ge(upper, none, row, row ^ inverse), upper)
        store(keys, i * _KEYS, first)
        store(keys, half + i * _KEYS, second)
    _sort_keys(keys, rows)
    _sort_keys(keys + 8 * half, rows)
    for i in range(rows):
        row, upper = deinterleave(load(float64x8(), keys, i * _KEYS), load(float64x8(), keys, half + i * _KEYS))
        store(out, i * stride, (upper ^ sign) - splat(lanes, _OFFSET))
        _store_rows(origins, i * stride, select_ge(upper, none, row, row ^ inverse), size)
    for i in range(rows, width):
        store(out, i * stride, load(lanes, x, i * stride))
        _store_rows(origins, i * stride, splat(lanes, np.int32(i)), size)
