"""One block of the transformer: a mixer and a feed-forward network, each behind a sum and a layer norm."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.config import ModelConfig
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import build_mixer
from graphslice.ops import add_norm, gelu


class AddNorm(nn.LayerNorm):
    """``x + dropout(y)`` and the layer norm of it: a residual connection and the norm after it, as one operation.

    Args:
        dim: C.
        dropout: of ``y``, while training.
    """

    def __init__(self, dim: int, dropout: float = 0.0) -> None:
        super().__init__(dim)
        self.dropout = dropout

    def forward(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The sum and its norm, ``[..., C]`` both; without ``y`` the sum is ``x``."""
        if y is None:
            return x, F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return add_norm(x, y, self.weight, self.bias, self.dropout if self.training else 0.0, self.eps)


class GELU(nn.Module):
    """:func:`graphslice.ops.gelu`."""

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x)


class FeedForward(nn.Module):
    """``GELU(x W1 + b1) W2 + b2``."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden)
        self.activation = GELU()
        self.contract = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(self.activation(self.expand(x)))


class Block(nn.Module):
    """``x += drop(y); y = Mixer(LN(x))``, then ``x += drop(y); y = FFN(LN(x))``.

    That is the pre-norm block ``x += drop(Mixer(LN(x))); x += drop(FFN(LN(x)))``, each sum taken where it is
    read: ``y`` is what the half before has still to add, so that a sum and the norm after it are one operation.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.mixer_norm = AddNorm(config.dim, config.dropout)
        self.mixer = build_mixer(
            config.mixer,
            config.dim,
            config.heads,
            layer=layer,
            layers=config.layers,
            dropout=config.attention_dropout,
            **(config.mixer_settings or {}),
        )
        self.ffn_norm = AddNorm(config.dim, config.dropout)
        self.ffn = FeedForward(config.dim, config.ffn_dim)

    def forward(self, x: Tensor, y: Tensor | None, context: AttentionContext) -> tuple[Tensor, Tensor]:
        """``x`` and ``y`` after the block, ``[B, N, C]`` both, given those before it (None: nothing to add)."""
        x, normed = self.mixer_norm(x, y)
        y = self.mixer(normed, context)
        x, normed = self.ffn_norm(x, y)
        return x, self.ffn(normed)
