"""AttentionContext: what a mixer reads of a batch beside its rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphslice.ops import aggregate, aggregate_sort, column_sort

#: What a mixer can declare to read of the graph.
GRAPH_TENSORS = ("attn_weights", "attn_bias")


class AttentionContext:
    """What a batch says about its samples, computed once and read by every layer.

    A mixer declares in :attr:`Mixer.reads` which tensors of the graph it needs; only these are computed, and
    asking for another one is an error. Without a graph (plain sequences) there is nothing to declare:
    the weights are the identity and the bias only masks the padding.

    Args:
        lengths: int64 ``[B]``, the number of valid rows of each sample.
        width: N, the number of rows, padding included.
        attn_weights: ``P = Softmax(S + E)``, ``[B, H, N, N]``, one for all layers; 0 in the columns of the padding.
        attn_bias: ``S + E``, ``[B, H, N, N]``, -inf in the columns of the padding.
        bonds: int16 ``[B, N, N]``, the bonds of a batch, where blocks read them.
        has_graph: whether the samples are graphs; True where a tensor is given.
        reader: the name of the mixer, for messages.

    Attributes:
        lengths: as given.
        mask: bool ``[B, N]``, True for the valid rows.
        bonds, has_graph: as given.
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
        self.mask = torch.arange(width, device=lengths.device) < lengths[:, None]
        self.has_graph = has_graph or attn_weights is not None or attn_bias is not None
        self._attn_weights, self._attn_bias, self.bonds = attn_weights, attn_bias, bonds
        self._cast: dict[tuple[bool, torch.dtype], Tensor] = {}  # by whether it is the bias

    @classmethod
    def from_bias(cls, lengths: Tensor, attn_bias: Tensor, reads: Sequence[str] = GRAPH_TENSORS) -> AttentionContext:
        """The context of a bias ``[B, H, N, N]`` of one's own, which need not be masked."""
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
        """``P = Softmax(S + E)``, ``[B, H, N, N]``; None without a graph."""
        if self._attn_weights is None and self.has_graph:
            raise self._undeclared("attn_weights")
        return self._attn_weights

    @property
    def attn_bias(self) -> Tensor:
        """``S + E``, ``[B, H, N, N]``; without a graph 0, ``[B, 1, 1, N]``. -inf in the columns of the padding."""
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
        """``P V`` head by head for V ``[B, N, C]``, with dropout on P; V itself without a graph."""
        weights = self.attn_weights
        return v if weights is None else aggregate(self.cast(weights, v.dtype), v, dropout)

    def aggregate_sort(self, v: Tensor, order: str | Tensor = "ascending", dropout: float = 0.0) -> Tensor:
        """``Sort_col(P V)``: :meth:`aggregate`, then :func:`~graphslice.ops.column_sort`."""
        weights = self.attn_weights
        if weights is None:
            return column_sort(v, self.lengths, order)
        return aggregate_sort(self.cast(weights, v.dtype), v, self.lengths, order, dropout)

    def cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The weights or the bias in the dtype of a layer's V, as mixed precision has it; no gradient is rounded.

        All layers share one copy, but each has a gradient of its own: these add up in the dtype of ``tensor``, where
        that of a shared copy would add up in ``dtype``.
        """
        if tensor.dtype == dtype:
            return tensor
        if torch.compiler.is_compiling():  # it makes one copy for all layers by itself
            return tensor.to(dtype)
        is_bias = tensor is self._attn_bias
        if not (is_bias or tensor is self._attn_weights):  # without a graph, where no gradient goes
            return tensor.to(dtype)
        key = (is_bias, dtype)
        if key not in self._cast:
            self._cast[key] = tensor.detach().to(dtype)
        return _Cast.apply(tensor, self._cast[key])

    # --- as plain tensors, which are cut into shares, cast and traced --------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """The lengths and what was declared, each ``[B, ...]``."""
        found = {
            "lengths": self.lengths,
            "attn_weights": self._attn_weights,
            "attn_bias": self._attn_bias,
            "bonds": self.bonds,
        }
        return {name: tensor for name, tensor in found.items() if tensor is not None}


class _Cast(torch.autograd.Function):
    """``tensor.to(dtype)``, given what comes out."""

    @staticmethod
    def forward(ctx, tensor: Tensor, cast: Tensor) -> Tensor:
        ctx.dtype = tensor.dtype
        return cast.detach()

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad.to(ctx.dtype), None
