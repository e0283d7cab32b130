"""Dropout on the attention weights: its rate, and that backward drops the same entries."""

from __future__ import annotations

import pytest
import torch

from graphslice.ops import OPERATORS

CALLS = [
    (name, backend) for name in ("aggregate", "aggregate_sort") for backend in ("torch", *OPERATORS[name].backends)
]
P = 0.3


@pytest.mark.parametrize("width", [3, 4, 13, 17])
@pytest.mark.parametrize(("name", "backend"), CALLS)
def test_backward_drops_the_same_entries(name, backend, width):
    """Result and argument scale together, so <gradient, argument> is <upstream, result> for each of them."""
    interpreted = backend == "triton" and not torch.cuda.is_available()
    if interpreted and width != 13:
        pytest.skip("one width is enough for Triton's interpreter")
    device, batch = "cuda" if backend == "triton" and not interpreted else "cpu", 6 if interpreted else 40
    op = OPERATORS[name]
    attn_weights = torch.rand(batch, 2, width, width, device=device).requires_grad_()
    v = torch.randn(batch, width, 32, device=device).requires_grad_()
    others = [torch.full((batch,), width, device=device)] if name == "aggregate_sort" else []
    torch.manual_seed(0)
    found = op.using(backend)(attn_weights, v, *others, p=P)
    assert not torch.equal(op.using(backend)(attn_weights, v, *others, p=P), found)
    upstream = torch.randn_like(found)
    of_weights, of_v = torch.autograd.grad(found, (attn_weights, v), upstream)
    expected = (upstream * found).sum()
    torch.testing.assert_close((of_weights * attn_weights).sum(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close((of_v * v).sum(), expected, rtol=1e-3, atol=1e-3)
    kept = (of_weights != 0).float()
    assert abs(kept.mean() - (1 - P)) < 5 * (P * (1 - P) / kept.numel()) ** 0.5
    without = op.reference(attn_weights * kept / (1 - P), v, *others)
    torch.testing.assert_close(found, without, rtol=1e-4, atol=1e-5)
