"""The parts of the transformer: a block (mixer, feed-forward network, sums and norms) and the heads."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.config import ModelConfig
from graphslice.feature_dims import NUM_BOND_TYPES, NUM_RING_CLASSES
from graphslice.nn.context import AttentionContext
from graphslice.nn.encodings import Table
from graphslice.nn.mixers import build_mixer
from graphslice.ops import Dropout, add_norm, bond_messages, gelu
from graphslice.ops.base_tracer import NotTraceable
from graphslice.ops.program import Value
from graphslice.ops.tracer import Tracer


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

    def trace(self, tracer: Tracer, x: Value, y: Value | None) -> tuple[Value, Value]:
        """:meth:`forward`, on a tape."""
        return tracer.add_norm(x, y, self, self.dropout if self.training else 0.0)


class Add(nn.Module):
    """``x + dropout(y)`` where no norm follows; takes and gives what :class:`AddNorm` does.

    Args:
        dropout: of ``y``, while training.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The sum, twice, ``[..., C]``; without ``y`` it is ``x``."""
        if y is not None:
            x = x + self.dropout(y)
        return x, x

    def trace(self, tracer: Tracer, x: Value, y: Value | None) -> tuple[Value, Value]:
        """:meth:`forward`, on a tape."""
        if y is not None:
            x = tracer.add(x, tracer.dropout(y, self.dropout.p if self.training else 0.0))
        return x, x


class GELU(nn.Module):
    """:func:`graphslice.ops.gelu`."""

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x)


class FeedForward(nn.Module):
    """``dropout(GELU(x W1 + b1)) W2 + b2``."""

    def __init__(self, dim: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden)
        self.activation = GELU()
        self.dropout = Dropout(dropout)
        self.contract = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(self.dropout(self.activation(self.expand(x))))

    def trace(self, tracer: Tracer, x: Value) -> Value:
        """:meth:`forward`, on a tape; raises NotTraceable for another activation."""
        if type(self.activation) is not GELU:
            raise NotTraceable
        hidden = tracer.gelu(tracer.linear(x, self.expand))
        return tracer.linear(tracer.dropout(hidden, self.dropout.p if self.training else 0.0), self.contract)


class BondMessages(nn.Module):
    """``W sum_j relu(V x_j + e_ij)`` over the atoms j bonded to i; e embeds the bond's type and smallest ring (GINE).

    Args:
        dim: C.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value = nn.Linear(dim, dim)
        self.bond = Table(NUM_BOND_TYPES, dim)
        self.ring = Table(NUM_RING_CLASSES, dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """``[B, N, C]`` of ``x``, of the same shape."""
        if context.bonds is None:
            raise ValueError("the model reads bonds, of which the context has none")
        v = self.value(x)
        return self.output(bond_messages(v, context.bonds, self.bond().to(v.dtype), self.ring().to(v.dtype)))

    def trace(self, tracer: Tracer, x: Value) -> Value:
        """:meth:`forward`, on a tape."""
        return tracer.linear(tracer.bond_messages(tracer.linear(x, self.value), self.bond, self.ring), self.output)


class Block(nn.Module):
    """A mixer and a feed-forward network, each in a residual branch, with the norms before them or behind the sums.

    Beside the mixer, where they are configured, the atoms tell their neighbours over their bonds: the two are added.

    Pre-norm: ``x += drop(Mixer(LN(x))); x += drop(FFN(LN(x)))``. Each sum is taken where it is read: ``y`` is what
    the half before has still to add, so that a sum and the norm after it are one operation.

    Post-norm: ``x = LN(x + drop(Mixer(x))); x = LN(x + drop(FFN(x)))``; nothing is left to add.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.post_norm = config.norm == "post"
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
        self.messages = BondMessages(config.dim) if config.bond_messages else None
        self.ffn_norm = AddNorm(config.dim, config.dropout)
        self.ffn = FeedForward(config.dim, config.ffn_dim, config.activation_dropout)

    def forward(self, x: Tensor, y: Tensor | None, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """``x`` and ``y`` after the block, ``[B, N, C]`` both, given those before it (None: nothing to add)."""
        if self.post_norm:
            _, x = self.mixer_norm(x, self._mix_and_messages(x, context))
            return self.ffn_norm(x, self.ffn(x))[1], None
        x, normed = self.mixer_norm(x, y)
        y = self._mix_and_messages(normed, context)
        x, normed = self.ffn_norm(x, y)
        return x, self.ffn(normed)

    def trace(self, tracer: Tracer, x: Value, y: Value | None) -> tuple[Value, Value | None]:
        """:meth:`forward`, on a tape."""
        if self.post_norm:
            _, x = self.mixer_norm.trace(tracer, x, self._trace_mix_and_messages(tracer, x))
            return self.ffn_norm.trace(tracer, x, self.ffn.trace(tracer, x))[1], None
        x, normed = self.mixer_norm.trace(tracer, x, y)
        y = self._trace_mix_and_messages(tracer, normed)
        x, normed = self.ffn_norm.trace(tracer, x, y)
        return x, self.ffn.trace(tracer, normed)

    def output_maps(self) -> list[nn.Linear]:
        """The linear maps that end its branches."""
        return [self.mixer.output, self.ffn.contract, *([] if self.messages is None else [self.messages.output])]

    def _mix_and_messages(self, x: Tensor, context: AttentionContext) -> Tensor:
        mixed = self.mixer(x, context)
        return mixed if self.messages is None else mixed + self.messages(x, context)

    def _trace_mix_and_messages(self, tracer: Tracer, x: Value) -> Value:
        mixed = self.mixer.trace(tracer, x)
        return mixed if self.messages is None else tracer.add(mixed, self.messages.trace(tracer, x))


class MLPHead(nn.Module):
    """``LN(GELU(x W1 + b1)) W2 + b2``: the head of the later Graphormer."""

    def __init__(self, inputs: int, dim: int, tasks: int) -> None:
        super().__init__()
        self.transform = nn.Linear(inputs, dim)
        self.activation = GELU()
        self.norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, tasks)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.norm(self.activation(self.transform(x))))
