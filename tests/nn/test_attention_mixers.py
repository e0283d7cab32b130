"""Softmax, Galerkin and Fourier attention compared with loops, and the cost of the latter two."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from mixer_samples import DIM, HEADS, context_of, mixer_of, sample
from torch.utils.flop_counter import FlopCounterMode

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import build_mixer


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "no graph"])
def test_softmax_attention_matches_formula(graph):
    mixer, (x, bias), lengths, d = mixer_of("softmax"), sample(6, batch=2), [6, 4], DIM // HEADS
    output = mixer(x, context_of(lengths, 6, bias if graph else None)).detach().numpy()
    weights = {name: value.detach().numpy() for name, value in mixer.state_dict().items()}
    for b, n in enumerate(lengths):
        q, k, v = (
            x[b, :n].numpy() @ weights[f"{p}.weight"].T + weights[f"{p}.bias"] for p in ("query", "key", "value")
        )
        mixed = np.zeros((n, DIM))
        for head in range(HEADS):
            part = slice(head * d, (head + 1) * d)
            for i in range(n):
                scores = [q[i, part] @ k[j, part] / math.sqrt(d) for j in range(n)]
                if graph:
                    scores = [s + bias[b, head, i, j].item() for j, s in enumerate(scores)]
                shares = np.exp(scores) / np.exp(scores).sum()
                mixed[i, part] = sum(share * v[j, part] for j, share in enumerate(shares))
        np.testing.assert_allclose(
            output[b, :n], mixed @ weights["output.weight"].T + weights["output.bias"], atol=1e-9
        )


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
    mixer, counts = build_mixer(name, 16, 2).double().eval(), []
    for rows in (256, 512, 1024):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            mixer(torch.randn(1, rows, 16, dtype=torch.float64), AttentionContext(torch.tensor([rows]), rows))
        counts.append(counter.get_total_flops())
    assert all(after / before == pytest.approx(2) for before, after in pairwise(counts))
