"""Sorting networks for the columns of small samples; for compiled kernels.

The comparisons of a network do not depend on the values, so each one processes 8 or 16 channels in a register. Up to 32
rows stay in registers from the first comparison to the last, in code that is made for each number of rows.

Keys are floats, since every machine has minima and maxima of them. With row numbers they are float64: the bits of the
value above, the number of its row below. That makes the keys distinct and the sort stable.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.program.simd.lanes import (
    address_of,
    as_float32,
    as_int32,
    deinterleave,
    exchanges_in_registers,
    float32x16,
    float64x8,
    int32x16,
    interleave,
    keep_alive,
    load,
    load_byte,
    load_scalar,
    maximum,
    minimum,
    prefetch_read,
    prefetch_write,
    select_ge,
    splat,
    store,
    store_bytes,
    store_scalar,
)

# Channels that are sorted at once, rows that are sorted in registers, and bytes of a row of keys.
_STRIP, _REGISTERS, _KEY_BYTES = 16, 32, 64
# Larger samples, in bytes, are not loaded ahead: they may leave the cache before their turn.
_MAX_AHEAD = 1 << 18

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


# An odd number of rows is sorted with one more row, which halves the code.
_sort_registers = exchanges_in_registers({rows: _merge_exchange(rows) for rows in range(2, _REGISTERS + 1, 2)})
_merge_registers = exchanges_in_registers({1 << level: _half_cleaners(1 << level) for level in range(1, 6)})


@njit(cache=True)
def _exchange(lane_type, keys, low, high):
    low, high = low * len(lane_type), high * len(lane_type)
    x, y = load(lane_type, keys, low), load(lane_type, keys, high)
    store(keys, low, minimum(x, y))
    store(keys, high, maximum(x, y))


@njit(cache=True)
def _sort_keys(lane_type, keys, rows):
    """Sort ``rows`` rows of lanes at address ``keys``, which has room for a multiple of 32.

    More than 32 rows are sorted in blocks of 32, then merged by bitonic merges. All comparisons put the smaller key
    first, so those with a row beyond the last do nothing and are left out.
    """
    padded = rows + rows % 2 if rows <= _REGISTERS else -(-rows // _REGISTERS) * _REGISTERS
    for i in range(rows, padded):
        store(keys, i * len(lane_type), splat(lane_type, np.inf))
    for first in range(0, rows, _REGISTERS):
        _sort_registers(lane_type, keys + first * _KEY_BYTES, min(rows + rows % 2 - first, _REGISTERS))
    size = _REGISTERS
    while size < rows:
        for middle in range(size, rows, 2 * size):
            for i in range(min(size, rows - middle)):
                _exchange(lane_type, keys, middle - 1 - i, middle + i)
        distance = size // 2
        while distance >= _REGISTERS:
            for i in range(rows - distance):
                if not i & distance:
                    _exchange(lane_type, keys, i, i + distance)
            distance //= 2
        for first in range(0, rows, _REGISTERS):
            merged = _REGISTERS
            while first + merged // 2 >= rows:
                merged //= 2
            _merge_registers(lane_type, keys + first * _KEY_BYTES, merged)
        size *= 2


@njit(cache=True, inline="always")
def _load(lane_type, address, offset, count, spare):
    """Load the first ``count`` of 16 lanes; ``spare`` is the address of memory for the others."""
    if count == _STRIP:
        return load(lane_type, address, offset)
    for c in range(count):
        store_scalar(spare, c, load_scalar(lane_type, address, offset + c))
    return load(lane_type, spare, 0)


@njit(cache=True, inline="always")
def _store(address, offset, value, count, spare):
    """Store the first ``count`` of 16 lanes."""
    if count == _STRIP:
        store(address, offset, value)
        return
    store(spare, 0, value)
    for c in range(count):
        store_scalar(address, offset + c, load_scalar(value, spare, c))


@njit(cache=True, inline="always")
def _store_rows(rows, offset, value, size, count, spare):
    if size == 4:
        _store(rows, offset, value, count, spare)
    elif count == _STRIP:
        store_bytes(rows, offset, value)
    else:
        store(spare, 0, value)
        for c in range(count):
            store_scalar(rows, offset + c, np.uint8(load_scalar(value, spare, c)))


@njit(cache=True, inline="always")
def _canonical(bits, nan):
    """Return the bits of floats with those of 0.0 for -0.0 and ``nan`` for every nan."""
    magnitude = bits & splat(bits, _MAGNITUDE)
    bits = select_ge(magnitude, splat(bits, np.int32(1)), bits, int32x16())
    return select_ge(magnitude, splat(bits, _INFINITY + np.int32(1)), splat(bits, nan), bits)


@njit(cache=True)
def _sort_strip(addresses, stride, count, rows, ahead, memory):
    """Sort up to 16 channels of a sample.

    Args:
        addresses: of the first value, the order of its channel, and the first result.
        stride: elements from row to row.
        count, rows: numbers of channels and of rows.
        ahead: distance in elements of the memory that is loaded into the cache meanwhile.
        memory: addresses of memory for the keys and of ``spare`` memory for :func:`_load`.
    """
    bits, flip, out = addresses
    keys, spare = memory
    lanes, key_lanes, none = int32x16(), float32x16(), int32x16()
    order, nans = _load(lanes, flip, 0, count, spare), none
    sign = order & splat(lanes, _SIGN)
    for i in range(rows):
        prefetch_read(bits + 4 * (i * stride + ahead))
        prefetch_write(out + 4 * (i * stride + ahead))
        value = _load(lanes, bits, i * stride, count, spare)
        magnitude = value & splat(lanes, _MAGNITUDE)
        nans = nans + select_ge(magnitude, splat(lanes, _INFINITY + np.int32(1)), splat(lanes, np.int32(1)), none)
        store(keys, i * _STRIP, as_float32(_canonical(value, _INFINITY) ^ sign))
    _sort_keys(key_lanes, keys, rows)
    # As many of the last rows as there were nan are nan, in descending channels of the first.
    ends = (splat(lanes, np.int32(rows)) & (order ^ splat(lanes, np.int32(-1)))) - nans
    for i in range(rows):
        value = as_int32(load(key_lanes, keys, i * _STRIP)) ^ sign
        value = select_ge(splat(lanes, np.int32(i)) ^ order, ends, splat(lanes, _NAN), value)
        _store(out, i * stride, value, count, spare)


@njit(cache=True)
def _sort_strip_with_rows(addresses, size, stride, count, rows, ahead, memory):
    """As :func:`_sort_strip`; the last address is that of the source rows, of ``size`` bytes."""
    bits, flip, out, origins = addresses
    keys, spare = memory
    lanes, key_lanes, none = int32x16(), float64x8(), int32x16()
    inverse, sign = splat(lanes, np.int32(-1)), _load(lanes, flip, 0, count, spare) & splat(lanes, _SIGN)
    half = -(-rows // _REGISTERS) * _REGISTERS * len(key_lanes)
    for i in range(rows):
        prefetch_read(bits + 4 * (i * stride + ahead))
        prefetch_write(out + 4 * (i * stride + ahead))
        prefetch_write(origins + size * (i * stride + ahead))
        upper = _canonical(_load(lanes, bits, i * stride, count, spare), _NAN) + splat(lanes, _OFFSET)
        upper, row = upper ^ sign, splat(lanes, np.int32(i))
        # Of two negative floats the smaller has the larger lower bits.
        first, second = interleave(select_ge(upper, none, row, row ^ inverse), upper)
        store(keys, i * len(key_lanes), first)
        store(keys, half + i * len(key_lanes), second)
    _sort_keys(key_lanes, keys, rows)
    _sort_keys(key_lanes, keys + 8 * half, rows)
    for i in range(rows):
        at = i * len(key_lanes)
        row, upper = deinterleave(load(key_lanes, keys, at), load(key_lanes, keys, half + at))
        _store(out, i * stride, (upper ^ sign) - splat(lanes, _OFFSET), count, spare)
        _store_rows(origins, i * stride, select_ge(upper, none, row, row ^ inverse), size, count, spare)


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


@njit(cache=True, inline="always")
def _memory_of(scratch):
    """Return the addresses of the keys, which begin a cache line, and of the 16 spare lanes before them."""
    keys = (address_of(scratch) + 2 * _KEY_BYTES - 1) // _KEY_BYTES * _KEY_BYTES
    return keys, keys - _KEY_BYTES


@njit(cache=True, inline="always")
def _scratch(width):
    """Allocate memory for the float64 keys of 16 channels of a sample, and for :func:`_memory_of`."""
    return np.empty(-(-width // _REGISTERS) * _REGISTERS * _STRIP + 2 * _STRIP)


@njit(cache=True, inline="always")
def _ahead(b, samples, width, channels):
    """Return the distance to the next sample if there is one, or else 0, in elements."""
    size = width * channels
    return size if b + 1 < samples and 4 * size <= _MAX_AHEAD else 0


@njit(cache=True, nogil=True)
def sort_values(bits, lengths, flip, out, block):
    """Sort the columns of ``int32 [B, N, C]``, the bits of floats, into ``out``.

    nan is the largest value, and -0.0 equals 0.0; of each there is one form in ``out``.

    Args:
        bits: ``[B, N, C]``.
        lengths: int64 ``[B]``, from 0 to N; later rows are copied.
        flip: int32 ``[C]``, -1 for descending channels, else 0.
        out: as ``bits``.
        block: number of channels of a part, a multiple of 16.
    """
    samples, width, channels = bits.shape
    scratch = _scratch(width)
    for part in range(samples * parts_of(channels, block)):
        b, first, last = _part(part, channels, block)
        ahead = _ahead(b, samples, width, channels)
        for c in range(first, last, _STRIP):
            at = 4 * (b * width * channels + c)
            addresses = (address_of(bits) + at, address_of(flip) + 4 * c, address_of(out) + at)
            _sort_strip(addresses, channels, min(last - c, _STRIP), lengths[b], ahead, _memory_of(scratch))
        for i in range(lengths[b], width):
            for c in range(first, last):
                out[b, i, c] = bits[b, i, c]
    keep_alive(scratch)


@njit(cache=True, nogil=True)
def sort_with_rows(bits, lengths, flip, out, origins, block):
    """Sort as :func:`sort_values`, and write the source row of each value to ``origins``, uint8 or int32."""
    samples, width, channels = bits.shape
    scratch, size = _scratch(width), origins.itemsize
    for part in range(samples * parts_of(channels, block)):
        b, first, last = _part(part, channels, block)
        ahead = _ahead(b, samples, width, channels)
        for c in range(first, last, _STRIP):
            at = b * width * channels + c
            addresses = (
                address_of(bits) + 4 * at,
                address_of(flip) + 4 * c,
                address_of(out) + 4 * at,
                address_of(origins) + size * at,
            )
            count = min(last - c, _STRIP)
            _sort_strip_with_rows(addresses, size, channels, count, lengths[b], ahead, _memory_of(scratch))
        for i in range(lengths[b], width):
            for c in range(first, last):
                out[b, i, c], origins[b, i, c] = bits[b, i, c], i
    keep_alive(scratch)


@njit(cache=True, nogil=True)
def unsort(addresses, wide, samples, width, channels, block):
    """Compute ``result[rows[i]] = grad[i]`` in every channel.

    By address, because for arrays the compiler emits scatter instructions, which take nearly three times as long as
    single stores.

    Args:
        addresses: of the gradient, the rows and the result, each ``[B, N, C]``; gradient and result have 4-byte values.
        wide: True if the rows are int32, False if they are uint8.
        samples, width, channels: B, N and C.
        block: as for :func:`sort_values`.
    """
    grad, rows, result = addresses
    lanes = int32x16()
    for part in range(samples * parts_of(channels, block)):
        b, first, last = _part(part, channels, block)
        sample, ahead = b * width * channels, _ahead(b, samples, width, channels)
        for at in range(sample, sample + width * channels, channels):
            for c in range(first, last, _STRIP):
                prefetch_write(result + 4 * (at + ahead + c))
            for c in range(first, last):
                row = np.int64(load_scalar(lanes, rows, at + c)) if wide else load_byte(rows, at + c)
                store_scalar(result, sample + row * channels + c, load_scalar(lanes, grad, at + c))
