"""Transformer blocks: mixer, feed-forward network, message passing along bonds, residual connections; what follows
them: hidden layer, MLP head, and the readout of atoms and bonds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphslice.config import BOND, ModelConfig
from graphslice.feature_dims import NUM_BOND_TYPES, NUM_RING_CLASSES
from graphslice.nn.context import AttentionContext
from graphslice.nn.encodings import Table
from graphslice.nn.mixers import build_mixer
from graphslice.ops import Dropout, bond_messages


class FeedForward(nn.Module):
    """Position-wise feed-forward network, ``Dropout(GELU(x W1 + b1)) W2 + b2``."""

    def __init__(self, dim: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden)
        self.activation = nn.GELU()
        self.dropout = Dropout(dropout)
        self.contract = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to ``x``, ``[..., C]``; returns the same shape."""
        return self.contract(self.dropout(self.activation(self.expand(x))))


class BondMessages(nn.Module):
    """GINE-type message passing along bonds (Hu et al. 2020, "Strategies for Pre-training Graph Neural Networks"):
    ``y_i = W sum_{j in N(i)} ReLU(V x_j + e_ij)``, where N(i) are the atoms bonded to atom i and ``e_ij`` is the sum
    of the embeddings of the bond's type and of the class of its smallest ring."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value = nn.Linear(dim, dim)
        self.bond = Table(NUM_BOND_TYPES, dim)
        self.ring = Table(NUM_RING_CLASSES, dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Sum the messages of bonded atoms, ``[B, N, C]``; row 0 is the graph token, which has no bonds."""
        assert context.bonds is not None  # checked by PairEncoder
        v = self.value(x)
        return self.output(bond_messages(v, context.bonds, self.bond().to(v.dtype), self.ring().to(v.dtype)))


class Block(nn.Module):
    """Transformer block: a token mixer and a feed-forward network in residual branches, pre-norm or post-norm.

    Pre-norm: ``x <- x + Dropout(Mixer(LN(x)))``, then ``x <- x + Dropout(FFN(LN(x)))``; post-norm:
    ``x <- LN(x + Dropout(Mixer(x)))``, then ``x <- LN(x + Dropout(FFN(x)))``; without norms ``LN`` is the identity, as
    in the block of the Galerkin transformer (Cao 2021). With ``config.bond_messages`` the mixer branch is
    ``Mixer(x) + BondMessages(x)``; ``layer`` counts from 1.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.post_norm = config.norm == "post"
        norm = nn.Identity if config.norm == "none" else nn.LayerNorm
        self.mixer_norm = norm(config.dim)
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
        self.ffn_norm = norm(config.dim)
        self.ffn = FeedForward(config.dim, config.ffn_dim, config.activation_dropout)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply the block to ``x``, ``[B, N, C]``, with the context of the batch; returns the same shape."""
        if self.post_norm:
            x = self.mixer_norm(x + self.dropout(self._mix(x, context)))
            return self.ffn_norm(x + self.dropout(self.ffn(x)))
        x = x + self.dropout(self._mix(self.mixer_norm(x), context))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))

    def output_maps(self) -> list[nn.Module]:
        """Return the last linear layers of the residual branches, which the balanced initialisation scales down."""
        return [self.mixer.output, self.ffn.contract, *([] if self.messages is None else [self.messages.output])]

    def _mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        mixed = self.mixer(x, context)
        return mixed if self.messages is None else mixed + self.messages(x, context)


class NormedLayer(nn.Module):
    """Hidden layer with a layer norm, ``LN(GELU(x W + b))``."""

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.transform = nn.Linear(inputs, dim)
        self.activation = nn.GELU()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to ``[..., inputs]``; returns ``[..., dim]``."""
        return self.norm(self.activation(self.transform(x)))


class MLPHead(NormedLayer):
    """MLP output head of the second version of Graphormer, ``LN(GELU(x W1 + b1)) W2 + b2``."""

    def __init__(self, inputs: int, dim: int, tasks: int) -> None:
        super().__init__(inputs, dim)
        self.output = nn.Linear(dim, tasks)

    def forward(self, x: Tensor) -> Tensor:
        """Predict standardised targets ``[..., T]`` from features ``[..., inputs]``."""
        return self.output(super().forward(x))


class AtomBondReadout(nn.Module):
    """Features of atoms or bonds (``level``) for the output head. Those of an atom a are its row x_a; those of a bond
    a-b are ``GELU(W [x_a + x_b, |x_a - x_b|] + E[bond type])``, which does not depend on the order of the atoms; the
    non-linearity lets a linear head model their interaction."""

    def __init__(self, dim: int, level: str) -> None:
        super().__init__()
        self.of_bonds = level == BOND
        if self.of_bonds:
            self.pair = nn.Linear(2 * dim, dim)
            self.kind = nn.Embedding(NUM_BOND_TYPES, dim)
            self.activation = nn.GELU()

    def forward(self, rows: Tensor, index: Tensor) -> Tensor:
        """Gather the features ``[M, C]`` of atoms or bonds from ``rows [B, N + 1, C]``, the output of the final norm;
        ``index``: int64 ``[M, 4]``, ``atom_bond_index`` of a :class:`~graphslice.batch.GraphBatch`."""
        molecule, first, second, kind = index.unbind(dim=1)
        a = rows[molecule, first + 1]  # row 0 is the graph token
        if not self.of_bonds:
            return a
        b = rows[molecule, second + 1]
        return self.activation(self.pair(torch.cat([a + b, (a - b).abs()], dim=1)) + self.kind(kind))
