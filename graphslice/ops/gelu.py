"""GELU activation, exact form."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dispatch import operator
from graphslice.program.trace import RULES


@operator
def gelu(x: Tensor) -> Tensor:
    """Compute ``GELU(x)`` in its exact form, with the error function (Hendrycks and Gimpel 2016).

    The numba backend supports float32 with a multiple of 16 values.

    Args:
        x: floating-point tensor of any shape.

    Returns:
        Tensor of the shape and dtype of ``x``.
    """
    return F.gelu(x)


gelu.kernels(x="...")(RULES[F.gelu])
