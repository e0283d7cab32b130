"""Structural attention weights, aggregation, softmax attention and linear attention, head by head.

``heads``, ``width`` and ``channels`` are H, N and C; pairs are ``[B, H, N, N]``, values ``[B, N, C]``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.program.kernels.layers import DropoutKeys, apply_dropout, dropped_weights
from graphslice.program.run import kernel
from graphslice.program.simd.lanes import (
    address_of,
    exp,
    float32x16,
    keep_alive,
    length_at,
    load,
    load_float,
    load_int,
    maximum,
    reduce_max,
    reduce_sum,
    splat,
    store,
    store_scalar,
)
from graphslice.program.simd.small_product import NO_START, Matrix, small_product, small_product_transposed, transpose

# --- softmax of rows ----------------------------------------------------------------------------------------------


@njit(inline="always")
def _padded(width):
    """Return the row stride of a matrix whose rows end at a multiple of 16 columns."""
    return -(-width // 16) * 16


@njit(inline="always", error_model="numpy")
def _exponentiate(scores, stride, rows, factors):
    """Replace the ``rows`` rows at ``scores`` by their exponentials relative to the maximum, and write the normalising
    factor of each to the array ``factors``. Rows have ``stride`` columns, a multiple of 16; -inf beyond the last."""
    # Each step is a separate pass over all rows: the rows of one pass are independent, which fills the pipeline.
    lanes = float32x16()
    for i in range(rows):
        maxima = load(lanes, scores, i * stride)
        for at in range(i * stride + 16, (i + 1) * stride, 16):
            maxima = maximum(maxima, load(lanes, scores, at))
        factors[i] = reduce_max(maxima)
    for i in range(rows):
        row_max, sums = splat(lanes, factors[i]), float32x16()
        for at in range(i * stride, (i + 1) * stride, 16):
            value = exp(load(lanes, scores, at) - row_max)
            store(scores, at, value)
            sums = sums + value
        factors[i] = np.float32(1) / reduce_sum(sums)


@njit(inline="always")
def _write_scaled(row, factor, width, out, at):
    """Write ``factor`` times a row of ``width`` numbers to ``out`` from the index ``at`` on."""
    lanes, aligned = float32x16(), width // 16 * 16
    for block in range(0, aligned, 16):
        store(out, at + block, load(lanes, row, block) * splat(lanes, factor))
    for j in range(aligned, width):
        store_scalar(out, at + j, load_float(row, j) * factor)


@njit(inline="always")
def _scores_gradient(grad, weights, width, out):
    """Write the gradient of the scores of a row of attention weights from that of the weights; all are addresses."""
    lanes, aligned, sums = float32x16(), width // 16 * 16, float32x16()
    for j in range(0, aligned, 16):
        sums = sums + load(lanes, grad, j) * load(lanes, weights, j)
    dot = reduce_sum(sums)
    for j in range(aligned, width):
        dot += load_float(grad, j) * load_float(weights, j)
    for j in range(0, aligned, 16):
        store(out, j, load(lanes, weights, j) * (load(lanes, grad, j) - splat(lanes, dot)))
    for j in range(aligned, width):
        store_scalar(out, j, load_float(weights, j) * (load_float(grad, j) - dot))


# --- path types ----------------------------------------------------------------------------------------------------


@njit(inline="always")
def _type_row(path_types, b, i, j, width, count):
    """Return the row of the biases of path types of a pair of rows: 0 for the graph token."""
    if i == 0 or j == 0:
        return np.int64(0)
    path = load_int(path_types, (b * (width - 1) + i - 1) * (width - 1) + j - 1)
    return min(max(path, 0) + 1, count - 1)


@njit(inline="always")
def _gather(values, path_types, b, i, columns, count, heads, width, out, stride):
    """Write the biases of row i up to a column to ``out``, ``[heads, stride]``."""
    for j in range(columns):
        row = _type_row(path_types, b, i, j, width, count) * heads
        for h in range(heads):
            store_scalar(out, h * stride + j, load_float(values, row + h))


@njit(inline="always")
def _scatter(grad, stride, path_types, b, i, columns, count, heads, width, grad_values):
    """Add the gradients ``[heads, stride]`` of row i up to a column to those of the biases."""
    for j in range(columns):
        row = _type_row(path_types, b, i, j, width, count) * heads
        for h in range(heads):
            store_scalar(grad_values, row + h, load_float(grad_values, row + h) + load_float(grad, h * stride + j))


@kernel
def path_softmax(samples, values, path_types, lengths, out, count, heads, width):
    """``P = Softmax(S + E)`` from biases ``[count, H]`` of path types, int32 ``[B, N - 1, N - 1]``; 0 in padding."""
    stride = _padded(width)
    scratch, factors = np.full(heads * stride, -np.inf, np.float32), np.empty(heads, np.float32)
    scores, lanes = address_of(scratch), float32x16()
    for b in range(samples):
        rows = length_at(lengths, b, width)
        for i in range(width):
            if i >= rows:
                for h in range(heads):
                    at = ((b * heads + h) * width + i) * width
                    for j in range(width):
                        store_scalar(out, at + j, np.float32(0))
                continue
            for h in range(heads):
                for j in range(0, stride, 16):
                    store(scores, h * stride + j, splat(lanes, np.float32(-np.inf)))
            _gather(values, path_types, b, i, rows, count, heads, width, scores, stride)
            _exponentiate(scores, stride, heads, factors)
            for h in range(heads):
                _write_scaled(scores + 4 * h * stride, factors[h], width, out, ((b * heads + h) * width + i) * width)
    keep_alive(scratch)


@kernel
def path_softmax_gradient(samples, path_types, lengths, weights, grad, grad_values, count, heads, width):
    """Gradient of :func:`path_softmax` for the biases, accumulated."""
    scratch = np.empty(heads * width, np.float32)
    gradients = address_of(scratch)
    for b in range(samples):
        rows = length_at(lengths, b, width)
        for i in range(rows):
            for h in range(heads):
                at = 4 * ((b * heads + h) * width + i) * width
                _scores_gradient(grad + at, weights + at, rows, gradients + 4 * h * width)
            _scatter(gradients, width, path_types, b, i, rows, count, heads, width, grad_values)
    keep_alive(scratch)


@kernel
def path_bias(samples, values, path_types, lengths, out, count, heads, width):
    """``S + E`` from the biases ``[count, H]`` of path types; -inf in the columns of the padding."""
    for b in range(samples):
        rows = length_at(lengths, b, width)
        for i in range(width):
            first = (b * heads * width + i) * width
            _gather(values, path_types, b, i, rows, count, heads, width, out + 4 * first, width * width)
            for h in range(heads):
                for j in range(rows, width):
                    store_scalar(out, first + h * width * width + j, np.float32(-np.inf))


@kernel
def path_bias_gradient(samples, path_types, lengths, grad, grad_values, count, heads, width):
    """Gradient of :func:`path_bias` for the biases, accumulated."""
    for b in range(samples):
        rows = length_at(lengths, b, width)
        for i in range(width):
            first = grad + 4 * (b * heads * width + i) * width
            _scatter(first, width * width, path_types, b, i, rows, count, heads, width, grad_values)


# --- aggregation -----------------------------------------------------------------------------------------------


@kernel
def aggregate(samples, attn_weights, v, out, heads, width, channels, dropped, first, second):
    """``dropout(P) V``."""
    keys, head_dim, pairs = DropoutKeys(dropped, first, second), channels // heads, width * width
    scratch = np.empty(pairs, np.float32)
    for b in range(samples):
        for h in range(heads):
            at, offset = (b * heads + h) * pairs, 4 * (b * width * channels + h * head_dim)
            weights = Matrix(dropped_weights(attn_weights, at, pairs, keys, address_of(scratch)), width)
            v_of_head, target = Matrix(v + offset, channels), Matrix(out + offset, channels)
            small_product(weights, v_of_head, NO_START, target, width, width, head_dim)
    keep_alive(scratch)


@njit(inline="always")
def _weights_gradient(grad_of_head, v_of_head, square, flat, keys, at, width, head_dim, out):
    """Write the gradient of the attention weights of a head: the upstream gradient times V transposed, then dropout
    with the mask at the offset ``at``. Scratch: Matrix ``square [width, padded width]``, ``flat [width, width]``."""
    lanes, aligned = float32x16(), width // 16 * 16
    small_product(grad_of_head, v_of_head, NO_START, square, width, head_dim, square.stride)
    target = flat if keys.dropped else out
    for i in range(width):
        row = square.address + 4 * i * square.stride
        for j in range(0, aligned, 16):
            store(target, i * width + j, load(lanes, row, j))
        for j in range(aligned, width):
            store_scalar(target, i * width + j, load_float(row, j))
    if keys.dropped:
        apply_dropout(flat, 0, width * width, keys, at, out)


@kernel
def aggregate_gradients(
    samples, attn_weights, v, grad, grad_v, grad_weights, heads, width, channels, dropped, first, second
):
    """Gradients of V and of P (unless 0)."""
    keys, head_dim, pairs = DropoutKeys(dropped, first, second), channels // heads, width * width
    stride, flat = _padded(width), np.empty(pairs, np.float32)
    v_scratch, square_scratch = np.zeros(channels * stride, np.float32), np.empty(width * stride, np.float32)
    v_transposed, square = address_of(v_scratch), Matrix(address_of(square_scratch), stride)
    for b in range(samples):
        if grad_weights:
            transpose(Matrix(v + 4 * b * width * channels, channels), width, channels, Matrix(v_transposed, stride))
        for h in range(heads):
            at, offset = (b * heads + h) * pairs, 4 * (b * width * channels + h * head_dim)
            weights = Matrix(dropped_weights(attn_weights, at, pairs, keys, address_of(flat)), width)
            grad_of_head, target = Matrix(grad + offset, channels), Matrix(grad_v + offset, channels)
            small_product_transposed(weights, grad_of_head, NO_START, target, width, width, head_dim)
            if grad_weights:
                v_of_head = Matrix(v_transposed + 4 * h * head_dim * stride, stride)
                out = grad_weights + 4 * at
                _weights_gradient(grad_of_head, v_of_head, square, address_of(flat), keys, at, width, head_dim, out)
    keep_alive(v_scratch)
    keep_alive(square_scratch)
    keep_alive(flat)


# --- softmax attention -----------------------------------------------------------------------------------------


@kernel
def attention(samples, q, k, v, attn_bias, weights, out, heads, width, channels, dropped, first, second):
    """``dropout(Softmax(Q K^T / sqrt(d) + bias)) V``; ``weights`` are those before dropout."""
    keys, head_dim, pairs = DropoutKeys(dropped, first, second), channels // heads, width * width
    stride, aligned, lanes = _padded(width), width // 16 * 16, float32x16()
    factor = np.float32(1 / np.sqrt(head_dim))
    k_scratch, scores_scratch = np.zeros(channels * stride, np.float32), np.zeros(width * stride, np.float32)
    factors, flat = np.empty(width, np.float32), np.empty(pairs, np.float32)
    k_transposed, scores = address_of(k_scratch), address_of(scores_scratch)
    for b in range(samples):
        transpose(Matrix(k + 4 * b * width * channels, channels), width, channels, Matrix(k_transposed, stride))
        for h in range(heads):
            at, offset = (b * heads + h) * pairs, 4 * (b * width * channels + h * head_dim)
            k_of_head = Matrix(k_transposed + 4 * h * head_dim * stride, stride)
            q_of_head = Matrix(q + offset, channels)
            small_product(q_of_head, k_of_head, NO_START, Matrix(scores, stride), width, head_dim, stride)
            for i in range(width):
                row, bias = scores + 4 * i * stride, at + i * width
                for j in range(0, aligned, 16):
                    store(row, j, load(lanes, row, j) * splat(lanes, factor) + load(lanes, attn_bias, bias + j))
                for j in range(aligned, width):
                    store_scalar(row, j, load_float(row, j) * factor + load_float(attn_bias, bias + j))
                for j in range(width, stride):
                    store_scalar(row, j, np.float32(-np.inf))
            _exponentiate(scores, stride, width, factors)
            for i in range(width):
                _write_scaled(scores + 4 * i * stride, factors[i], width, weights, at + i * width)
            mixed = Matrix(dropped_weights(weights, at, pairs, keys, address_of(flat)), width)
            v_of_head, target = Matrix(v + offset, channels), Matrix(out + offset, channels)
            small_product(mixed, v_of_head, NO_START, target, width, width, head_dim)
    keep_alive(k_scratch)
    keep_alive(scores_scratch)
    keep_alive(flat)


@kernel
def attention_gradients(
    samples, q, k, v, weights, grad, grad_q, grad_k, grad_v, grad_bias, heads, width, channels, dropped, first, second
):
    """Gradients of :func:`attention`."""
    keys, head_dim, pairs = DropoutKeys(dropped, first, second), channels // heads, width * width
    stride, factor = _padded(width), np.float32(1 / np.sqrt(head_dim))
    v_scratch, square_scratch = np.zeros(channels * stride, np.float32), np.empty(width * stride, np.float32)
    flat_scratch, scores_scratch = np.empty(pairs, np.float32), np.empty(pairs, np.float32)
    v_transposed, square = address_of(v_scratch), Matrix(address_of(square_scratch), stride)
    flat, scores = address_of(flat_scratch), address_of(scores_scratch)
    for b in range(samples):
        transpose(Matrix(v + 4 * b * width * channels, channels), width, channels, Matrix(v_transposed, stride))
        for h in range(heads):
            at, offset = (b * heads + h) * pairs, 4 * (b * width * channels + h * head_dim)
            grad_of_head = Matrix(grad + offset, channels)
            mixed = Matrix(dropped_weights(weights, at, pairs, keys, flat), width)
            target = Matrix(grad_v + offset, channels)
            small_product_transposed(mixed, grad_of_head, NO_START, target, width, width, head_dim)
            v_of_head = Matrix(v_transposed + 4 * h * head_dim * stride, stride)
            _weights_gradient(grad_of_head, v_of_head, square, flat, keys, at, width, head_dim, scores)
            for i in range(width):
                row, out = 4 * i * width, grad_bias + 4 * (at + i * width)
                _scores_gradient(scores + row, weights + 4 * at + row, width, out)
            for i in range(width):
                _write_scaled(grad_bias + 4 * (at + i * width), factor, width, scores, i * width)
            of_scores, k_of_head = Matrix(scores, width), Matrix(k + offset, channels)
            small_product(of_scores, k_of_head, NO_START, Matrix(grad_q + offset, channels), width, width, head_dim)
            q_of_head, target = Matrix(q + offset, channels), Matrix(grad_k + offset, channels)
            small_product_transposed(of_scores, q_of_head, NO_START, target, width, width, head_dim)
    keep_alive(v_scratch)
    keep_alive(square_scratch)
    keep_alive(flat_scratch)
    keep_alive(scores_scratch)


# --- linear attention ------------------------------------------------------------------------------------------


@njit(inline="always")
def _mean_product(a, b, channels, head_dim, rows, out):
    """Write ``A^T B / rows`` of one head, ``[head_dim, head_dim]``, from the addresses of A and B."""
    target = Matrix(address_of(out), head_dim)
    small_product_transposed(Matrix(a, channels), Matrix(b, channels), NO_START, target, head_dim, rows, head_dim)
    out /= np.float32(max(1, rows))


@njit(inline="always")
def _zero_rows(out, b, first, width, channels):
    for i in range((b * width + first) * channels, (b + 1) * width * channels):
        store_scalar(out, i, np.float32(0))


@kernel
def linear_attention(samples, q, k, v, lengths, out, heads, width, channels):
    """``Q (K^T V) / n`` for n valid rows; 0 in the padding."""
    head_dim = channels // heads
    scratch = np.empty(head_dim * head_dim, np.float32)
    square = Matrix(address_of(scratch), head_dim)
    for b in range(samples):
        rows = length_at(lengths, b, width)
        _zero_rows(out, b, rows, width, channels)
        for h in range(heads if rows else 0):
            offset = 4 * (b * width * channels + h * head_dim)
            _mean_product(k + offset, v + offset, channels, head_dim, rows, scratch)
            q_of_head, target = Matrix(q + offset, channels), Matrix(out + offset, channels)
            small_product(q_of_head, square, NO_START, target, rows, head_dim, head_dim)
    keep_alive(scratch)


@kernel
def linear_attention_gradients(samples, q, k, v, lengths, grad, grad_q, grad_k, grad_v, heads, width, channels):
    """Gradients of :func:`linear_attention`."""
    head_dim = channels // heads
    scratch = np.empty(head_dim * head_dim, np.float32)
    square = Matrix(address_of(scratch), head_dim)
    for b in range(samples):
        rows = length_at(lengths, b, width)
        for out in (grad_q, grad_k, grad_v):
            _zero_rows(out, b, rows, width, channels)
        for h in range(heads if rows else 0):
            offset = 4 * (b * width * channels + h * head_dim)
            # For out = Q S with S = K^T V / n: grad Q = grad S^T; with D = Q^T grad / n: grad K = V D^T, grad V = K D.
            for left, right, a, out in ((v, k, grad, grad_q), (grad, q, v, grad_k), (q, grad, k, grad_v)):
                _mean_product(left + offset, right + offset, channels, head_dim, rows, scratch)
                target = Matrix(out + offset, channels)
                small_product(Matrix(a + offset, channels), square, NO_START, target, rows, head_dim, head_dim)
    keep_alive(scratch)
