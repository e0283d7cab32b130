"""Graph tensors of a batch that the mixers of all layers share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from graphslice.ops import aggregate

#: Names that a mixer may declare in `reads`.
GRAPH_TENSORS = ("attn_weights", "attn_bias")


class AttentionContext:
    """Lengths, mask and structural attention tensors of a batch, computed once and shared by all layers.

    S is the spatial encoding and E the edge encoding of Graphormer (Ying et al. 2021, eqs. 6 and 7); both depend on the
    graph alone. A mixer declares in :attr:`Mixer.reads` which of the graph tensors it needs. Only these are computed;
    accessing another one raises RuntimeError. Without a graph (plain sequences) nothing need be declared: P is the
    identity and the bias is 0, or -inf in the padding.

    Args:
        lengths: int64 ``[B]``, number of valid rows of each sample.
        width: N, number of rows, padding included.
        attn_weights: ``P = Softmax(S + E)``, ``[B, H, N, N]``, the same for all layers; 0 in the columns of the
            padding.
        attn_bias: ``S + E``, ``[B, H, N, N]``; -inf in the columns of the padding.
        bonds: int16 ``[B, N, N]``, bond codes as in ``GraphBatch.bonds``, for message passing along bonds.
        has_graph: True if the samples are graphs; implied by ``attn_weights`` or ``attn_bias``.
        mixer_name: name of the mixer in error messages.
    """

    def __init__(
        self,
        lengths: Tensor,
        width: int,
        *,
        attn_weights: Tensor | None = None,
        attn_bias: Tensor | None = None,
        bonds: Tensor | None = None,
        has_graph: bool = False,
        mixer_name: str = "a mixer",
    ) -> None:
        self.lengths, self.width, self.mixer_name = lengths, width, mixer_name
        self.has_graph = has_graph or attn_weights is not None or attn_bias is not None
        self._attn_weights, self._attn_bias, self.bonds = attn_weights, attn_bias, bonds

    @cached_property
    def mask(self) -> Tensor:
        """Valid rows, bool ``[B, N]``."""
        return torch.arange(self.width, device=self.lengths.device) < self.lengths[:, None]

    @classmethod
    def from_bias(cls, lengths: Tensor, attn_bias: Tensor, reads: Sequence[str] = GRAPH_TENSORS) -> AttentionContext:
        """Create the context of samples with these ``lengths`` and an attention bias, ``[B, H, N, N]``, whose padding
        is masked here; ``reads``: names of the graph tensors to provide."""
        width = attn_bias.shape[-1]
        mask = torch.arange(width, device=lengths.device) < lengths[:, None]
        masked = attn_bias.masked_fill(~mask[:, None, None, :], -torch.inf)
        return cls(
            lengths,
            width,
            attn_weights=torch.softmax(masked, dim=-1) if "attn_weights" in reads else None,
            attn_bias=masked if "attn_bias" in reads else None,
            has_graph=True,
        )

    @property
    def attn_weights(self) -> Tensor | None:
        """Structural attention weights ``P = Softmax(S + E)``, ``[B, H, N, N]``; None without a graph."""
        if self._attn_weights is None and self.has_graph:
            raise self._undeclared("attn_weights")
        return self._attn_weights

    @property
    def attn_bias(self) -> Tensor:
        """Attention bias ``S + E``, ``[B, H, N, N]``, without a graph 0, ``[B, 1, 1, N]``; -inf in padded columns."""
        if self._attn_bias is not None:
            return self._attn_bias
        if self.has_graph:
            raise self._undeclared("attn_bias")
        padding = ~self.mask[:, None, None, :]
        return torch.zeros(padding.shape, device=padding.device).masked_fill(padding, -torch.inf)

    def _undeclared(self, name: str) -> RuntimeError:
        return RuntimeError(
            f"{self.mixer_name} reads {name} without declaring it: add {name!r} to `reads` of its class"
        )

    def aggregate(self, v: Tensor, dropout: float = 0.0) -> Tensor:
        """Aggregate values over the graph, ``P V`` head by head.

        Args:
            v: V, ``[B, N, C]``; head h multiplies its C / H channels by ``P[:, h]``.
            dropout: dropout rate of P.

        Returns:
            ``[B, N, C]``; V itself without a graph.
        """
        weights = self.attn_weights
        return v if weights is None else aggregate(weights.to(v.dtype), v, dropout)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the context by argument name, each ``[B, ...]``, for compiled functions."""
        names = "lengths", *GRAPH_TENSORS, "bonds"
        tensors = self.lengths, self._attn_weights, self._attn_bias, self.bonds
        return {name: tensor for name, tensor in zip(names, tensors, strict=True) if tensor is not None}
