"""What the tests of the mixers share."""

import torch

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import Mixer, build_mixer

DIM, HEADS = 12, 3

# Symmetric, so that atoms and shortest paths tie, and of many sizes.
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
    """In float64, of 12 channels and 3 heads."""
    torch.manual_seed(seed)
    return build_mixer(name, DIM, HEADS, **settings).double().eval()


def without_projections(mixer: Mixer) -> Mixer:
    """The same mixer with identity maps for value and output."""
    with torch.no_grad():
        for linear in (mixer.value, mixer.output):
            linear.weight.copy_(torch.eye(mixer.dim))
            linear.bias.zero_()
    return mixer


def sample(rows: int, seed: int = 0, batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows ``[B, N, C]`` and a bias ``[B, H, N, N]``."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, rows, DIM, dtype=torch.float64, generator=generator)
    bias = torch.randn(batch, HEADS, rows, rows, dtype=torch.float64, generator=generator)
    return x, bias


def context_of(lengths: list[int], width: int, bias: torch.Tensor | None = None) -> AttentionContext:
    """Of graphs with a bias, or of plain sequences."""
    if bias is None:
        return AttentionContext(torch.tensor(lengths), width)
    return AttentionContext.from_bias(torch.tensor(lengths), bias)


def graph_context(bias: torch.Tensor, lengths: list[int] | None = None) -> AttentionContext:
    """Of graphs that fill the whole width, if no lengths are given."""
    return context_of(lengths or [bias.shape[-1]] * len(bias), bias.shape[-1], bias)
