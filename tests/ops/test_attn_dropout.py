"""Dropout of attention weights: rate, and the same mask in the backward pass."""

import pytest
import torch

from graphslice.ops import OPERATORS

CALLS = [
    (name, backend) for name in ("aggregate", "aggregate_sort") for backend in ("torch", *OPERATORS[name].backends)
]
P = 0.3


@pytest.mark.parametrize("width", [3, 4, 13, 17])
@pytest.mark.parametrize(("name", "backend"), CALLS)
def test_backward_uses_mask_of_forward(name, backend, width):
    """The result is homogeneous in each argument, so <gradient, argument> = <upstream, result>."""
    interpreted = backend == "triton" and not torch.cuda.is_available()
    if interpreted and width != 13:
        pytest.skip("one width is enough for Triton's interpreter")
    device, batch = "cuda" if backend == "triton" and not interpreted else "cpu", 2 if interpreted else 40
    op = OPERATORS[name]
    attn_weights = torch.rand(batch, 2, width, width, device=device).requires_grad_()
    v = torch.randn(batch, width, 32, device=device).requires_grad_()
    lengths = [torch.full((batch,), width, device=device)] if name == "aggregate_sort" else []
    torch.manual_seed(0)
    actual = op.using(backend)(attn_weights, v, *lengths, p=P)
    assert not torch.equal(op.using(backend)(attn_weights, v, *lengths, p=P), actual)
    upstream = torch.randn_like(actual)
    grad_weights, grad_v = torch.autograd.grad(actual, (attn_weights, v), upstream)
    expected = (upstream * actual).sum()
    torch.testing.assert_close((grad_weights * attn_weights).sum(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close((grad_v * v).sum(), expected, rtol=1e-3, atol=1e-3)
    kept = (grad_weights != 0).float()
    assert abs(kept.mean() - (1 - P)) < 5 * (P * (1 - P) / kept.numel()) ** 0.5
    masked = op.reference(attn_weights * kept / (1 - P), v, *lengths)
    torch.testing.assert_close(actual, masked, rtol=1e-4, atol=1e-5)
