"""Linear layers."""

from __future__ import annotations

from graphslice.program.run import kernel
from graphslice.program.simd.lanes import float32x16, load, store, transpose_block
from graphslice.program.simd.small_product import Matrix, small_product, small_product_transposed


@kernel
def transpose_matrix(samples, weight, out, rows, columns):
    """Transpose a weight ``[rows, columns]``; both are multiples of 16."""
    for c in range(0, columns, 16):  # few enough cache lines are written to stay in the L1 cache
        for j in range(0, rows, 16):
            source, target = weight + 4 * (j * columns + c), out + 4 * (c * rows + j)
            transpose_block(float32x16(), source, columns, target, rows)


@kernel
def linear(samples, x, transposed_weight, bias, out, rows, inputs, outputs):
    """``out = x W^T + b`` for ``rows`` rows per sample; a bias of 0 is none."""
    a, b, target = Matrix(x, inputs), Matrix(transposed_weight, outputs), Matrix(out, outputs)
    small_product(a, b, Matrix(bias, 0), target, samples * rows, inputs, outputs)


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
