"""Dropout of attention weights: rate, and the same mask in the backward pass."""

import pytest
import torch

from graphslice.ops import aggregate

P = 0.3


@pytest.mark.parametrize("width", [3, 4, 13, 17])
@pytest.mark.parametrize("backend", ["torch", *aggregate.backends])
def test_backward_uses_mask_of_forward(backend, width):
    """The result is homogeneous in each argument, so <gradient, argument> = <upstream, result>."""
    attn_weights = torch.rand(40, 2, width, width).requires_grad_()
    v = torch.randn(40, width, 32).requires_grad_()
    torch.manual_seed(0)
    actual = aggregate.using(backend)(attn_weights, v, p=P)
    assert not torch.equal(aggregate.using(backend)(attn_weights, v, p=P), actual)
    upstream = torch.randn_like(actual)
    grad_weights, grad_v = torch.autograd.grad(actual, (attn_weights, v), upstream)
    expected = (upstream * actual).sum()
    torch.testing.assert_close((grad_weights * attn_weights).sum(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close((grad_v * v).sum(), expected, rtol=1e-3, atol=1e-3)
    kept = (grad_weights != 0).float()
    assert abs(kept.mean() - (1 - P)) < 5 * (P * (1 - P) / kept.numel()) ** 0.5
    masked = aggregate.reference(attn_weights * kept / (1 - P), v)
    torch.testing.assert_close(actual, masked, rtol=1e-4, atol=1e-5)
