"""Transformer blocks: mixer, feed-forward network, message passing along bonds, residual connections and MLP head."""

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
    """Residual connection followed by layer normalisation, as one fused operation.

    ``s = x + Dropout(y)`` and ``LN(s) = (s - mean(s)) / sqrt(var(s) + eps) * weight + bias`` over the channels.

    Args:
        dim: C, number of channels.
        dropout: dropout rate of ``y`` in training mode.
    """

    def __init__(self, dim: int, dropout: float = 0.0) -> None:
        super().__init__(dim)
        self.dropout = dropout

    def forward(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Add and normalise.

        Args:
            x: ``[..., C]``, the residual stream.
            y: ``[..., C]``, the output of a branch; None for no addition, so that ``s = x``.

        Returns:
            ``s`` and ``LN(s)``, ``[..., C]`` each.
        """
        if y is None:
            return x, F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return add_norm(x, y, self.weight, self.bias, self.dropout if self.training else 0.0, self.eps)

    def trace(self, tracer: Tracer, x: Value, y: Value | None) -> tuple[Value, Value]:
        """Trace :meth:`forward` into a program."""
        return tracer.add_norm(x, y, self, self.dropout if self.training else 0.0)


class Add(nn.Module):
    """Residual connection without normalisation, ``x + Dropout(y)``, with the interface of :class:`AddNorm`.

    Args:
        dropout: dropout rate of ``y`` in training mode.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return ``x + Dropout(y)`` twice, ``[..., C]`` each; ``x`` if ``y`` is None."""
        if y is not None:
            x = x + self.dropout(y)
        return x, x

    def trace(self, tracer: Tracer, x: Value, y: Value | None) -> tuple[Value, Value]:
        """Trace :meth:`forward` into a program."""
        if y is not None:
            x = tracer.add(x, tracer.dropout(y, self.dropout.p if self.training else 0.0))
        return x, x


class GELU(nn.Module):
    """Exact GELU activation, :func:`graphslice.ops.gelu`."""

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x)


class FeedForward(nn.Module):
    """Position-wise feed-forward network, ``Dropout(GELU(x W1 + b1)) W2 + b2``.

    Args:
        dim: C, number of input and output channels.
        hidden: number of hidden channels.
        dropout: dropout rate of the hidden activations in training mode.
    """

    def __init__(self, dim: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden)
        self.activation = GELU()
        self.dropout = Dropout(dropout)
        self.contract = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to ``x``, ``[..., C]``; returns the same shape."""
        return self.contract(self.dropout(self.activation(self.expand(x))))

    def trace(self, tracer: Tracer, x: Value) -> Value:
        """Trace :meth:`forward` into a program; raises NotTraceable if the activation was replaced."""
        if type(self.activation) is not GELU:
            raise NotTraceable
        hidden = tracer.gelu(tracer.linear(x, self.expand))
        return tracer.linear(tracer.dropout(hidden, self.dropout.p if self.training else 0.0), self.contract)


class BondMessages(nn.Module):
    """GINE-type message passing along bonds (Hu et al. 2020, "Strategies for Pre-training Graph Neural Networks").

    ``y_i = W sum_{j in N(i)} ReLU(V x_j + e_ij)``, where N(i) are the atoms bonded to atom i and ``e_ij`` is the sum of
    the embeddings of the bond's type and of the class of its smallest ring.

    Args:
        dim: C, number of channels.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value = nn.Linear(dim, dim)
        self.bond = Table(NUM_BOND_TYPES, dim)
        self.ring = Table(NUM_RING_CLASSES, dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Sum the messages of bonded atoms.

        Args:
            x: ``[B, N, C]``; row 0 is the graph token, which has no bonds.
            context: the context of the batch, with ``bonds``.

        Returns:
            ``[B, N, C]``.

        Raises:
            ValueError: if the context has no bonds.
        """
        if context.bonds is None:
            raise ValueError("message passing along bonds needs the bonds of the batch, but the context has none")
        v = self.value(x)
        return self.output(bond_messages(v, context.bonds, self.bond().to(v.dtype), self.ring().to(v.dtype)))

    def trace(self, tracer: Tracer, x: Value) -> Value:
        """Trace :meth:`forward` into a program."""
        return tracer.linear(tracer.bond_messages(tracer.linear(x, self.value), self.bond, self.ring), self.output)


class Block(nn.Module):
    """Transformer block: a token mixer and a feed-forward network in residual branches, pre-norm or post-norm.

    Pre-norm: ``x <- x + Dropout(Mixer(LN(x)))``, then ``x <- x + Dropout(FFN(LN(x)))``. The last sum is deferred: the
    block returns ``x`` and the branch output ``y`` separately, and the next block adds them, so that every sum and
    the layer norm after it are one operation (:class:`AddNorm`).

    Post-norm: ``x <- LN(x + Dropout(Mixer(x)))``, then ``x <- LN(x + Dropout(FFN(x)))``. No sum is deferred.

    With ``config.bond_messages`` the mixer branch is ``Mixer(x) + BondMessages(x)``.

    Args:
        config: architecture of the model.
        layer: index of this block, from 1.
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
        """Apply the block.

        Args:
            x: ``[B, N, C]``, the residual stream.
            y: ``[B, N, C]``, the output of the previous branch that is still to be added to ``x``; None for nothing.
            context: the context of the batch.

        Returns:
            ``x`` and ``y`` after the block, ``[B, N, C]`` each; ``y`` is None for post-norm.
        """
        if self.post_norm:
            _, x = self.mixer_norm(x, self._mix_and_messages(x, context))
            return self.ffn_norm(x, self.ffn(x))[1], None
        x, normed = self.mixer_norm(x, y)
        y = self._mix_and_messages(normed, context)
        x, normed = self.ffn_norm(x, y)
        return x, self.ffn(normed)

    def trace(self, tracer: Tracer, x: Value, y: Value | None) -> tuple[Value, Value | None]:
        """Trace :meth:`forward` into a program."""
        if self.post_norm:
            _, x = self.mixer_norm.trace(tracer, x, self._trace_mix_and_messages(tracer, x))
            return self.ffn_norm.trace(tracer, x, self.ffn.trace(tracer, x))[1], None
        x, normed = self.mixer_norm.trace(tracer, x, y)
        y = self._trace_mix_and_messages(tracer, normed)
        x, normed = self.ffn_norm.trace(tracer, x, y)
        return x, self.ffn.trace(tracer, normed)

    def output_maps(self) -> list[nn.Linear]:
        """Return the last linear layers of the residual branches, which the balanced initialisation scales down."""
        return [self.mixer.output, self.ffn.contract, *([] if self.messages is None else [self.messages.output])]

    def _mix_and_messages(self, x: Tensor, context: AttentionContext) -> Tensor:
        mixed = self.mixer(x, context)
        return mixed if self.messages is None else mixed + self.messages(x, context)

    def _trace_mix_and_messages(self, tracer: Tracer, x: Value) -> Value:
        mixed = self.mixer.trace(tracer, x)
        return mixed if self.messages is None else tracer.add(mixed, self.messages.trace(tracer, x))


class MLPHead(nn.Module):
    """MLP output head of the second version of Graphormer, ``LN(GELU(x W1 + b1)) W2 + b2``.

    Args:
        inputs: number of input features.
        dim: number of hidden features.
        tasks: T, number of targets.
    """

    def __init__(self, inputs: int, dim: int, tasks: int) -> None:
        super().__init__()
        self.transform = nn.Linear(inputs, dim)
        self.activation = GELU()
        self.norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, tasks)

    def forward(self, x: Tensor) -> Tensor:
        """Predict standardised targets ``[..., T]`` from features ``[..., inputs]``."""
        return self.output(self.norm(self.activation(self.transform(x))))
