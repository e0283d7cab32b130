"""The rank of stacked sorts does not collapse; tests/analysis/test_rank_collapse.py has the proved bounds."""

import numpy as np
import pytest
import torch
from mixer_samples import without_projections

from graphslice.analysis.rank_collapse import one_inf_norm
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import build_mixer

SORTING = ["slice-ascend", "slice-interleave", "csp"]


def residuals(name: str, layers: int, seed: int) -> list[float]:
    """Compute residuals, relative to the input, of layers with orthogonal value projections and no skip connections."""
    generator = torch.Generator().manual_seed(seed)
    dim, rows = 8, 16
    x = torch.randn(1, rows, dim, dtype=torch.float64, generator=generator)
    norms = []
    for layer in range(1, layers + 1):
        weight = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=generator))[0]
        mixer = without_projections(build_mixer(name, dim, 1, layer=layer, layers=layers).double().eval())
        mixer.value.weight.data = weight.T
        if name == "softmax":
            with torch.no_grad():
                for linear in (mixer.query, mixer.key):
                    linear.weight.copy_(torch.randn(dim, dim, dtype=torch.float64, generator=generator) / dim**0.5)
                    linear.bias.zero_()
        norms.append(one_inf_norm((x[0] - x[0].median(0).values).numpy()))
        x = mixer(x, AttentionContext(torch.tensor([rows]), rows)).detach()
    norms.append(one_inf_norm((x[0] - x[0].median(0).values).numpy()))
    return [norm / norms[0] for norm in norms]


@pytest.mark.parametrize("seed", range(5))
def test_softmax_without_skips_collapses_doubly_exponentially_and_sorts_do_not(seed):
    """Once small, the logarithm of the softmax residual about doubles per layer (Dong et al. 2021)."""
    softmax = [value for value in residuals("softmax", 5, seed) if value > 1e-13]
    logs = np.log(softmax)
    small = np.flatnonzero(logs < np.log(0.05))
    assert len(small) >= 2 and all(logs[i] <= 1.8 * logs[i - 1] for i in small[1:])
    for name in SORTING:
        assert residuals(name, 12, seed)[-1] > 0.1
