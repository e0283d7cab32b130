"""Samples and helpers shared by the tests of the mixers."""

import torch

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import Mixer, build_mixer

DIM, HEADS = 12, 3

# Symmetric molecules, so that atoms and shortest paths tie, of many sizes.
SMILES = [
    "c1ccccc1",
    "C",
    "CC(C)(C)C",
    "C1CC2CCC1CC2",
    "O=C(O)c1ccc(N)cc1",
    "[Na+].[Cl-]",
    "C" * 30,
    "N[C@@H](C)C(=O)O",
]


def mixer_of(name: str, seed: int = 0, **settings) -> Mixer:
    """Create a mixer in float64 with 12 channels and 3 heads."""
    torch.manual_seed(seed)
    return build_mixer(name, DIM, HEADS, **settings).double().eval()


def without_projections(mixer: Mixer) -> Mixer:
    """Replace the value and output projections by the identity."""
    with torch.no_grad():
        for linear in (mixer.value, mixer.output):
            linear.weight.copy_(torch.eye(mixer.dim))
            linear.bias.zero_()
    return mixer


def sample(rows: int, seed: int = 0, batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw rows ``[B, N, C]`` and a bias ``[B, H, N, N]``."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, rows, DIM, dtype=torch.float64, generator=generator)
    bias = torch.randn(batch, HEADS, rows, rows, dtype=torch.float64, generator=generator)
    return x, bias


def context_of(lengths: list[int], width: int, bias: torch.Tensor | None = None) -> AttentionContext:
    """Create the context of graphs with a bias, or of plain sequences."""
    if bias is None:
        return AttentionContext(torch.tensor(lengths), width)
    return AttentionContext.from_bias(torch.tensor(lengths), bias)


def graph_context(bias: torch.Tensor, lengths: list[int] | None = None) -> AttentionContext:
    """Create the context of graphs, which fill the width unless lengths are given."""
    return context_of(lengths or [bias.shape[-1]] * len(bias), bias.shape[-1], bias)
