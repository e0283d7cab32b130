"""attention: scores far apart, padding, and its dropout."""

import pytest
import torch
from torch.nn import functional as F

from graphslice.ops import attention


def by_head(x, heads):
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def plain_attention(q, k, v, bias, heads):
    q, k, v_ = (by_head(t, heads) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v_, attn_mask=bias).transpose(1, 2).reshape(v.shape)


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


def test_far_apart_scores_and_a_mask_for_all_heads():
    q = torch.full((1, 3, 16), 30.0)
    k, v = torch.randn(2, 1, 3, 16) * 30
    bias = torch.zeros(1, 2, 3, 3)
    assert_close(attention(q, k, v, bias, 2), plain_attention(q, k, v, bias, 2))
    shared = torch.tensor([0.0, 0.0, -torch.inf]).view(1, 1, 1, 3)
    assert_close(attention(q, k, v, shared, 2), plain_attention(q, k, v, shared, 2))


def test_padding_does_not_reach_the_others():
    q, k, v = torch.randn(3, 1, 20, 32)
    bias = torch.randn(1, 2, 20, 20)
    bias[..., 11:] = -torch.inf
    found = attention(q, k, v, bias, 2)[:, :11]
    k[:, 11:], v[:, 11:] = 1e4, -1e4
    assert torch.equal(attention(q, k, v, bias, 2)[:, :11], found)


@pytest.mark.parametrize("width", [5, 20, 40])
def test_gradients_of_what_is_not_attended_to_are_zero(width):
    """Not next to zero: a matrix product with denormal numbers takes many times as long."""
    q, k, v = (torch.randn(2, width, 32).requires_grad_() for _ in range(3))
    bias = torch.randn(2, 2, width, width)
    bias[..., width // 2 :] = -torch.inf
    bias[..., 0] = -100
    bias.requires_grad_()
    found = attention(q, k, v, bias, 2)
    gradients = torch.autograd.grad(found, (q, k, v, bias), torch.randn(found.shape))
    for gradient in gradients[1:3]:
        assert (gradient[:, width // 2 :] == 0).all() and (gradient[:, 0] == 0).all()
    assert (gradients[3][..., width // 2 :] == 0).all()
    for part in (found, *gradients):
        assert ((part == 0) | (part.abs() > 1e-37)).all()


def test_dropout_of_attention_is_the_same_backward():
    q, k = torch.randn(2, 6, 9, 32)
    v, bias = torch.randn(6, 9, 32).requires_grad_(), torch.randn(6, 2, 9, 9)
    torch.manual_seed(1)
    found = attention(q, k, v, bias, 2, 0.4)
    (of_v,) = torch.autograd.grad(found, v, torch.ones_like(found))
    torch.testing.assert_close((of_v * v).sum(), found.sum(), rtol=1e-4, atol=1e-3)
    # Against the map itself: its columns times V = identity, one head's channels at a time.
    torch.manual_seed(1)
    identity = torch.zeros(6, 9, 32)
    identity[:, range(9), range(9)] = identity[:, range(9), range(16, 25)] = 1
    dropped = by_head(attention(q, k, identity, bias, 2, 0.4), 2)[..., :9]
    maps = torch.softmax(by_head(q, 2) @ by_head(k, 2).transpose(2, 3) / 4 + bias, -1)
    kept = dropped != 0
    assert abs(kept.float().mean() - 0.6) < 0.08
    assert_close(dropped, maps * kept / 0.6)
