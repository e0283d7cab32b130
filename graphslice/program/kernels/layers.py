"""Linear layers, layer norms, GELU, dropout, sums and products."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from graphslice.program.run import kernel
from graphslice.program.simd.lanes import (
    address_of,
    as_float,
    as_float32,
    as_int32,
    exp,
    float32x8,
    float32x16,
    int32x16,
    iota,
    keep_alive,
    load,
    load_float,
    reduce_sum,
    select_ge,
    splat,
    store,
    store_scalar,
)
from graphslice.program.simd.small_product import Matrix, small_product, small_product_of_rows, small_product_transposed

# --- sums and products: ``size`` is the number of elements per sample, a multiple of 16 unless noted --------------


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
    """Return the normal CDF of lanes, with an error below 1e-7 (Abramowitz and Stegun, Handbook of Mathematical
    Functions, 7.1.26), and ``e^(-x^2 / 2)``."""
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
    """Operands of a dropout mask."""

    dropped: int  # dropout probability p as the integer p 2^32; 0 drops nothing
    first: int  # 32-bit key of the hash, advanced by the index of the first value
    second: int  # 32-bit key


@njit(inline="always")
def dropout_factors(keys, offset):
    """Return 16 lanes of dropout factors, ``1 / (1 - p)`` or 0, for the values from index ``offset`` on. The hash has
    three rounds of multiplication and shift (constants of C. Wellons' triple32), the second key before the third."""
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
    """Write ``dropout(source[first : first + size])`` to ``out`` with the mask of the values from ``offset`` on."""
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
    """Return the address of ``dropout(attn_weights[first : first + size])``: ``scratch``, or that of the weights
    themselves if nothing is dropped."""
    if keys.dropped:
        apply_dropout(attn_weights, first, size, keys, first, scratch)
        return scratch
    return attn_weights + 4 * first


@kernel
def dropout(samples, x, out, size, dropped, first, second):
    """``out = dropout(x)``, for values or for their gradients."""
    apply_dropout(x, 0, samples * size, DropoutKeys(dropped, first, second), 0, out)


# --- linear layers ------------------------------------------------------------------------------------------------


@kernel
def linear(samples, x, weight, bias, out, rows, inputs, outputs):
    """``out = x W^T + b`` for ``rows`` rows per sample; a bias of 0 is none."""
    a, b, target = Matrix(x, inputs), Matrix(weight, inputs), Matrix(out, outputs)
    small_product_of_rows(a, b, Matrix(bias, 0), target, samples * rows, inputs, outputs)


@kernel
def linear_gradients(samples, x, weight, grad, grad_x, start, grad_weight, grad_bias, rows, inputs, outputs):
    """Gradients of x (to which ``start`` is added, unless 0), and of W and b (accumulated)."""
    rows *= samples
    upstream, target = Matrix(grad, outputs), Matrix(grad_weight, inputs)
    if grad_x:
        small_product(
            upstream, Matrix(weight, inputs), Matrix(start, inputs), Matrix(grad_x, inputs), rows, outputs, inputs
        )
    small_product_transposed(upstream, Matrix(x, inputs), target, target, outputs, rows, inputs)
    if grad_bias:
        for c in range(0, outputs, 16):
            total = load(float32x16(), grad_bias, c)
            for row in range(rows):
                total = total + load(float32x16(), grad, row * outputs + c)
            store(grad_bias, c, total)


# --- layer norms, fused with the residual sum before them, and of every head --------------------------------------


@kernel
def add_norm(samples, x, y, weight, bias, total, normed, moments, rows, channels, eps, dropped, first, second):
    """``total = x + dropout(y)`` and its layer norm; a y of 0 is no summand, then ``total`` is not written;
    ``moments``: the mean and the inverse standard deviation of every row, ``[2, rows]``."""
    lanes, count, keys = float32x16(), np.float32(channels), DropoutKeys(dropped, first, second)
    rows *= samples
    source = total if y else x
    for row in range(rows):
        at_row, sums = row * channels, float32x16()
        for at in range(at_row, at_row + channels, 16):
            value = load(lanes, x, at)
            if y:
                branch = load(lanes, y, at)
                if dropped:
                    branch = branch * dropout_factors(keys, at)
                value = value + branch
                store(total, at, value)
            sums = sums + value
        mean = reduce_sum(sums) / count
        means, squares = splat(lanes, mean), float32x16()
        for at in range(at_row, at_row + channels, 16):
            centered = load(lanes, source, at) - means
            squares = squares + centered * centered
        inverse_std = np.float32(1) / np.sqrt(reduce_sum(squares) / count + as_float(eps))
        store_scalar(moments, row, mean)
        store_scalar(moments, rows + row, inverse_std)
        factor = splat(lanes, inverse_std)
        for c in range(0, channels, 16):
            value = (load(lanes, source, at_row + c) - means) * factor
            store(normed, at_row + c, value * load(lanes, weight, c) + load(lanes, bias, c))


@kernel
def add_norm_gradients(
    samples, grad_total, grad_normed, total, weight, grad_x, grad_y, moments, grad_weight, grad_bias, rows, channels,
    dropped, first, second
):  # fmt: skip
    """Gradients of :func:`add_norm`; those of weight and bias are accumulated; ``grad_total`` is 0 if there is none;
    ``grad_y`` is written only if values are dropped, else it equals ``grad_x``."""
    lanes, count, keys = float32x16(), np.float32(channels), DropoutKeys(dropped, first, second)
    rows *= samples
    for row in range(rows):
        at_row = row * channels
        means = splat(lanes, load_float(moments, row))
        factor = splat(lanes, load_float(moments, rows + row))
        sums, products = float32x16(), float32x16()
        for c in range(0, channels, 16):
            normed = (load(lanes, total, at_row + c) - means) * factor
            grad = load(lanes, grad_normed, at_row + c)
            store(grad_bias, c, load(lanes, grad_bias, c) + grad)
            store(grad_weight, c, load(lanes, grad_weight, c) + grad * normed)
            grad = grad * load(lanes, weight, c)
            sums = sums + grad
            products = products + grad * normed
        mean_grad = splat(lanes, reduce_sum(sums) / count)
        mean_product = splat(lanes, reduce_sum(products) / count)
        for c in range(0, channels, 16):
            at = at_row + c
            normed = (load(lanes, total, at) - means) * factor
            grad = load(lanes, grad_normed, at) * load(lanes, weight, c)
            grad = (grad - mean_grad - normed * mean_product) * factor
            if grad_total:
                grad = load(lanes, grad_total, at) + grad
            store(grad_x, at, grad)
            if dropped:
                store(grad_y, at, grad * dropout_factors(keys, at))


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
def head_norm(samples, x, scales, shifts, out, index, heads, rows, channels):
    """Layer norm of each head with entry ``index`` of the scales and shifts, ``[K, C]``."""
    which, size, lanes = index * channels, channels // heads, float32x8()
    for row in range(samples * rows):
        for h in range(heads):
            first = row * channels + h * size
            mean, factor = _moments(x, first, size)
            for c in range(0, size, 8):
                normed = (load(lanes, x, first + c) - splat(lanes, mean)) * splat(lanes, factor)
                at = which + h * size + c
                store(out, first + c, normed * load(lanes, scales, at) + load(lanes, shifts, at))


@kernel
def head_norm_gradients(samples, x, scales, grad, grad_x, grad_scales, grad_shifts, index, heads, rows, channels):
    """Gradients of :func:`head_norm`; those of scales and shifts are accumulated."""
    which, size, lanes = index * channels, channels // heads, float32x8()
    for row in range(samples * rows):
        for h in range(heads):
            first = row * channels + h * size
            mean, factor = _moments(x, first, size)
            sums, products = float32x8(), float32x8()
            for c in range(0, size, 8):
                normed = (load(lanes, x, first + c) - splat(lanes, mean)) * splat(lanes, factor)
                at, upstream = which + h * size + c, load(lanes, grad, first + c)
                store(grad_shifts, at, load(lanes, grad_shifts, at) + upstream)
                store(grad_scales, at, load(lanes, grad_scales, at) + upstream * normed)
                upstream = upstream * load(lanes, scales, at)
                sums = sums + upstream
                products = products + upstream * normed
            mean_grad = splat(lanes, reduce_sum(sums) / np.float32(size))
            mean_product = splat(lanes, reduce_sum(products) / np.float32(size))
            for c in range(0, size, 8):
                normed = (load(lanes, x, first + c) - splat(lanes, mean)) * splat(lanes, factor)
                upstream = load(lanes, grad, first + c) * load(lanes, scales, which + h * size + c)
                store(grad_x, first + c, (upstream - mean_grad - normed * mean_product) * splat(lanes, factor))
