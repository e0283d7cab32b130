"""Dropout that does not spend more time on random numbers than the layer on arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def dropout(x: Tensor, p: float) -> Tensor:
    """Set each value to zero with probability ``p`` and scale the others by ``1 / (1 - p)``.

    On the CPU, torch draws one number of its generator for each value, one core doing so; here
    each draw decides four values, by 16 bits each, so ``p`` is met to within 1/65,536.
    """
    if p == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
    keep = (bits < min(round((1 - p) * 2**16) - 2**15, 2**15 - 1)).to(x.dtype)
    return x * (keep / (1 - p))


class Dropout(nn.Module):
    """:func:`dropout` while training, nothing otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"
