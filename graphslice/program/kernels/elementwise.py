"""Sums, products, GELU and dropout; ``size`` is the number of elements per sample, a multiple of 16 unless noted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from graphslice.program.kernels.operands import as_float
from graphslice.program.run import kernel
from graphslice.program.simd.lanes import (
    address_of,
    as_float32,
    as_int32,
    exp,
    float32x16,
    int32x16,
    iota,
    keep_alive,
    load,
    load_float,
    select_ge,
    splat,
    store,
    store_scalar,
)


@kernel
def add(samples, a, b, out, size):
    """``out = a + b`` for any size; ``out`` may be one of them."""
    size *= samples
    aligned = size // 16 * 16
    for i in range(0, aligned, 16):
        store(out, i, load(float32x16(), a, i) + load(float32x16(), b, i))
    for i in range(aligned, size):
        store_scalar(out, i, load_float(a, i) + load_float(b, i))


@kernel
def zero(samples, out, size):
    """``out = 0`` for any size."""
    size *= samples
    aligned = size // 16 * 16
    for i in range(0, aligned, 16):
        store(out, i, float32x16())
    for i in range(aligned, size):
        store_scalar(out, i, np.float32(0))


@kernel
def multiply(samples, a, b, out, size):
    """``out = a b``, element by element."""
    for i in range(0, samples * size, 16):
        store(out, i, load(float32x16(), a, i) * load(float32x16(), b, i))


@kernel
def scale(samples, a, factor, out, size):
    """``out = factor a``."""
    for i in range(0, samples * size, 16):
        store(out, i, load(float32x16(), a, i) * splat(float32x16(), as_float(factor)))


# --- GELU -------------------------------------------------------------------------------------------------


@njit(inline="always")
def _normal_cdf(x):
    """Return the normal CDF of lanes, with an error below 1e-7, and ``e^(-x^2 / 2)``.

    The error function is that of Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
    """
    sign = as_int32(x) & splat(int32x16(), -(2**31))
    z = as_float32(as_int32(x) ^ sign) * splat(x, 0.7071067811865476)
    gaussian = exp(z * z * splat(x, -1.0))
    t = splat(x, 1.0) / (z * splat(x, 0.3275911) + splat(x, 1.0))
    series = splat(x, 1.061405429) * t + splat(x, -1.453152027)
    series = series * t + splat(x, 1.421413741)
    series = series * t + splat(x, -0.284496736)
    series = series * t + splat(x, 0.254829592)
    erf = as_float32(as_int32(splat(x, 1.0) - series * t * gaussian) ^ sign)
    return (erf + splat(x, 1.0)) * splat(x, 0.5), gaussian


@kernel
def gelu(samples, x, out, size):
    """``out = GELU(x)``."""
    for i in range(0, samples * size, 16):
        value = load(float32x16(), x, i)
        store(out, i, value * _normal_cdf(value)[0])


@kernel
def gelu_gradient(samples, x, grad, grad_x, size):
    """Gradient of :func:`gelu`."""
    density = splat(float32x16(), 0.3989422804014327)  # 1 / sqrt(2 pi)
    for i in range(0, samples * size, 16):
        value = load(float32x16(), x, i)
        cdf, gaussian = _normal_cdf(value)
        store(grad_x, i, load(float32x16(), grad, i) * (cdf + value * gaussian * density))


# --- dropout ----------------------------------------------------------------------------------------------


class DropoutKeys(NamedTuple):
    """Operands of a dropout mask.

    Attributes:
        dropped: dropout probability p as the integer ``p 2^32``; 0 drops nothing.
        first, second: 32-bit keys of the hash; the first one is advanced by the index of the first value.
    """

    dropped: int
    first: int
    second: int


@njit(inline="always")
def dropout_factors(keys, offset):
    """Return 16 lanes of dropout factors, ``1 / (1 - p)`` or 0, for the values from index ``offset`` on.

    The hash has three rounds of multiplication and shift (constants of C. Wellons' triple32); the second key is mixed
    in before the third.
    """
    lane_type = int32x16()
    threshold = keys.dropped - 2**31  # a uniform signed hash reaches it with probability 1 - p
    x = iota(lane_type) + splat(lane_type, np.int32(offset)) + splat(lane_type, np.int32(keys.first))
    x = (x ^ (x >> splat(lane_type, np.int32(17)))) * splat(lane_type, np.int32(-312814405))
    x = (x ^ (x >> splat(lane_type, np.int32(11)))) * splat(lane_type, np.int32(-1404298415))
    x = x ^ splat(lane_type, np.int32(keys.second))
    x = (x ^ (x >> splat(lane_type, np.int32(15)))) * splat(lane_type, np.int32(830770091))
    x = x ^ (x >> splat(lane_type, np.int32(14)))
    factor = splat(float32x16(), np.float32(1 / (1 - keys.dropped / 2.0**32)))
    return select_ge(x, splat(lane_type, np.int32(threshold)), factor, float32x16())


@njit(inline="always")
def apply_dropout(source, first, size, keys, offset, out):
    """Write ``dropout(source[first : first + size])`` to ``out`` with the mask of the values from ``offset`` on.

    ``source`` and ``out`` are addresses.
    """
    lane_type = float32x16()
    if size < 16:
        factors = np.empty(16, np.float32)
        store(address_of(factors), 0, dropout_factors(keys, offset))
        for i in range(size):
            store_scalar(out, i, load_float(source, first + i) * factors[i])
        keep_alive(factors)
        return
    for block in range(0, size, 16):
        i = min(block, size - 16)
        store(out, i, load(lane_type, source, first + i) * dropout_factors(keys, offset + i))


@njit(inline="always")
def dropped_weights(attn_weights, first, size, keys, scratch):
    """Return the address of ``dropout(attn_weights[first : first + size])``, in ``scratch``.

    If nothing is dropped, it is the address of the weights themselves.
    """
    if keys.dropped:
        apply_dropout(attn_weights, first, size, keys, first, scratch)
        return scratch
    return attn_weights + 4 * first


@kernel
def dropout(samples, x, out, size, dropped, first, second):
    """``out = dropout(x)``, for values or for their gradients."""
    apply_dropout(x, 0, samples * size, DropoutKeys(dropped, first, second), 0, out)
