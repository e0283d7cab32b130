"""Dropout with a counter-based random generator.

On the CPU, torch draws one random number per value, on a single core. The kernels draw two keys per call; the mask is a
hash of the keys and the index of each value. Any number of threads compute it in registers, and the backward pass
recomputes the mask instead of storing it.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.ops.dispatch import operator
from graphslice.program.trace import RULES


@operator
def dropout(x: Tensor, p: float) -> Tensor:
    """Set each value to zero with probability ``p`` and scale the others by ``1 / (1 - p)`` (Srivastava et al. 2014).

    The numba backend supports float32 with a multiple of 16 values.

    Args:
        x: floating-point tensor of any shape.
        p: dropout probability, in [0, 1).

    Returns:
        Tensor of the shape and dtype of ``x``; ``x`` itself if ``p`` is 0.
    """
    return F.dropout(x, p) if p else x


dropout.kernels(x="...")(RULES[F.dropout])


class Dropout(nn.Module):
    """Dropout layer: :func:`dropout` in training mode, the identity in evaluation mode.

    Args:
        p: dropout probability, in [0, 1).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"
