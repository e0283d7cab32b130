"""A small transformer over sequences or point sets, built from the package's blocks, with any mixer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from graphslice.config import ModelConfig
from graphslice.nn.block import Block
from graphslice.nn.context import AttentionContext


class SequenceModel(nn.Module):
    """Transformer without a graph: blocks over a learned token and the rows of each sample.

    The token is in row 0, like the graph token of molecules, since ``slice-max`` writes only into row 0.

    Args:
        config: mixer, its settings, layers, dim, heads, ffn_dim, norm and dropouts; settings of graphs are ignored.
        embed: maps inputs ``[B, N, ...]`` to rows ``[B, N, C]``.
        outputs: number of outputs, per sample or per row.
        positions: add sinusoidal positional encodings (Vaswani et al. 2017). Not needed for points, whose inputs
            include coordinates.
        per_row: predict outputs for every row; else for the sample, from the token and the mean of the rows.
    """

    def __init__(
        self, config: ModelConfig, embed: nn.Module, outputs: int, *, positions: bool = True, per_row: bool = False
    ) -> None:
        super().__init__()
        self.embed, self.positions, self.per_row = embed, positions, per_row
        self.token = nn.Parameter(torch.randn(config.dim))
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(1, config.layers + 1))
        self.norm = nn.LayerNorm(config.dim) if config.norm == "pre" else nn.Identity()
        self.head = nn.Linear(config.dim if per_row else 2 * config.dim, outputs)

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Compute the outputs.

        Args:
            inputs: ``[B, N, ...]``, inputs of ``embed``; the padding may hold any valid input.
            lengths: int64 ``[B]``, number of valid rows of each sample.

        Returns:
            ``[B, outputs]``, or ``[B, N, outputs]`` with ``per_row``, where the outputs of the padding are undefined.
        """
        x = self.embed(inputs)
        if self.positions:
            x = x + sines(x.shape[1], x.shape[2], x.device)
        x = torch.cat([self.token.expand(len(x), 1, -1), x], dim=1)
        context = AttentionContext(lengths + 1, width=x.shape[1])
        for block in self.blocks:
            x = block(x, context)
        x = self.norm(x)
        if self.per_row:
            return self.head(x[:, 1:])
        rows = x[:, 1:].masked_fill(~context.mask[:, 1:, None], 0)
        return self.head(torch.cat([x[:, 0], rows.sum(dim=1) / lengths[:, None]], dim=-1))


def sines(rows: int, dim: int, device: torch.device | None = None) -> Tensor:
    """Return sinusoidal positional encodings ``[N, C]`` of positions 0 to ``rows`` - 1 (Vaswani et al. 2017)."""
    rates = torch.exp(-math.log(10_000) * torch.arange(0, dim, 2, device=device) / dim)
    angles = torch.arange(rows, device=device)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :dim]
