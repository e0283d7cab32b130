"""Linear layers."""

from __future__ import annotations

from graphslice.program.run import kernel
from graphslice.program.simd.lanes import float32x16, load, store
from graphslice.program.simd.small_product import (
    Matrix,
    small_product,
    small_product_of_rows,
    small_product_transposed,
)


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
