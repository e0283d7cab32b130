"""Layer normalisation, fused with the residual sum before it, and of every head."""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.program.kernels.elementwise import DropoutKeys, dropout_factors
from graphslice.program.kernels.operands import as_float
from graphslice.program.run import kernel
from graphslice.program.simd.lanes import (
    float32x8,
    float32x16,
    load,
    load_float,
    reduce_sum,
    splat,
    store,
    store_scalar,
)


@kernel
def add_norm(samples, x, y, weight, bias, total, normed, moments, rows, channels, eps, dropped, first, second):
    """``total = x + dropout(y)`` and its layer norm; a y of 0 is no summand, then ``total`` is not written.

    ``moments`` are the mean and the inverse standard deviation of every row, ``[2, rows]``.
    """
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
    """Gradients of :func:`add_norm`; those of weight and bias are accumulated.

    ``grad_total`` is 0 if there is none; ``grad_y`` is written only if values are dropped, else it equals ``grad_x``.
    """
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
