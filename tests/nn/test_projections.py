"""Galerkin and Fourier attention: formulas, cost and projection properties."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import build_mixer


@pytest.mark.parametrize("name", ["galerkin", "fourier"])
@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize(("size", "dtype"), [(4, torch.float64), (16, torch.float32)])  # references, kernels
def test_projections_match_loops(name, rows, size, dtype):
    torch.manual_seed(0)
    mixer = build_mixer(name, 3 * size, 3).to(dtype).eval()
    with torch.no_grad():
        mixer.scales.uniform_(0.5, 2)
        mixer.shifts.uniform_(-1, 1)
    x = torch.randn(1, rows + 2, 3 * size, dtype=dtype)
    output = mixer.mix(x, AttentionContext(torch.tensor([rows]), rows + 2))[0, :rows].detach().numpy()
    q, k, v = (linear(x)[0, :rows].double().detach().numpy() for linear in (mixer.query, mixer.key, mixer.value))

    def norm(part, which, head):
        part = (part - part.mean(-1, keepdims=True)) / np.sqrt(part.var(-1, keepdims=True) + 1e-5)
        return part * mixer.scales[which, head].detach().numpy() + mixer.shifts[which, head].detach().numpy()

    for head in range(3):
        own = slice(size * head, size * head + size)
        if name == "galerkin":
            expected = q[:, own] @ (norm(k[:, own], 0, head).T @ norm(v[:, own], 1, head)) / rows
        else:
            expected = norm(q[:, own], 0, head) @ norm(k[:, own], 1, head).T @ v[:, own] / rows
        np.testing.assert_allclose(output[:, own], expected, atol=1e-10 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("name", ["galerkin", "fourier"])
def test_cost_is_linear_in_the_number_of_rows(name):
    from torch.utils.flop_counter import FlopCounterMode

    mixer, counts = build_mixer(name, 16, 2).double().eval(), []
    for rows in (256, 512, 1024):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            mixer(torch.randn(1, rows, 16, dtype=torch.float64), AttentionContext(torch.tensor([rows]), rows))
        counts.append(counter.get_total_flops())
    assert all(after / before == pytest.approx(2) for before, after in pairwise(counts))
