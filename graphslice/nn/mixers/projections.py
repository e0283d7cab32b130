"""Attention without a softmax: Galerkin and Fourier (Cao, Choose a Transformer, 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.nn.mixers.base import Mixer, Structure, register


class _Projection(Mixer):
    """Query, key and value, two of them normalised head by head; on molecules ``P V`` takes the place of V."""

    reads = ("map",)
    equivariant = True

    def __init__(self, dim: int, heads: int, **settings) -> None:
        super().__init__(dim, heads, **settings)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.scales = nn.Parameter(torch.ones(2, heads, 1, dim // heads))
        self.shifts = nn.Parameter(torch.zeros(2, heads, 1, dim // heads))

    def _by_head(self, x: Tensor, structure: Structure) -> Tensor:
        """``[B, H, N, d]``, 0 in the padding."""
        valid = structure.mask[:, :, None]
        return x.masked_fill(~valid, 0).view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def _normed(self, x: Tensor, which: int, structure: Structure) -> Tensor:
        normed = F.layer_norm(x, x.shape[-1:]) * self.scales[which] + self.shifts[which]
        return normed.masked_fill(~structure.mask[:, None, :, None], 0)

    def _parts(self, x: Tensor, structure: Structure) -> tuple[Tensor, Tensor, Tensor]:
        mixed = structure.mix(self.value(x), self.active_dropout)
        return tuple(self._by_head(part, structure) for part in (self.query(x), self.key(x), mixed))

    @staticmethod
    def _joined(x: Tensor, structure: Structure) -> Tensor:
        """Heads side by side again, over the true number of rows."""
        count = structure.lengths.clamp_min(1)[:, None, None].to(x.dtype)
        return x.transpose(1, 2).flatten(2) / count


@register("galerkin")
class Galerkin(_Projection):
    """``Q (LN(K)^T LN(V)) / n``: a Petrov-Galerkin projection, linear in n."""

    def mixed(self, x: Tensor, structure: Structure) -> Tensor:
        q, k, v = self._parts(x, structure)
        k, v = self._normed(k, 0, structure), self._normed(v, 1, structure)
        return self._joined(q @ (k.transpose(2, 3) @ v), structure)


@register("fourier")
class Fourier(_Projection):
    """``(LN(Q) LN(K)^T) V / n``."""

    def mixed(self, x: Tensor, structure: Structure) -> Tensor:
        q, k, v = self._parts(x, structure)
        q, k = self._normed(q, 0, structure), self._normed(k, 1, structure)
        return self._joined((q @ k.transpose(2, 3)) @ v, structure)
