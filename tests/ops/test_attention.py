"""attention: extreme scores, padding and dropout."""

import pytest
import torch
from torch.nn import functional as F

from graphslice.ops import attention


def by_head(x, heads):
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def reference_attention(q, k, v, bias, heads):
    q, k, v_ = (by_head(t, heads) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v_, attn_mask=bias).transpose(1, 2).reshape(v.shape)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-5)


def test_extreme_scores_and_broadcast_mask():
    q = torch.full((1, 3, 16), 30.0)
    k, v = torch.randn(2, 1, 3, 16) * 30
    bias = torch.zeros(1, 2, 3, 3)
    assert_close(attention(q, k, v, bias, 2), reference_attention(q, k, v, bias, 2))
    shared = torch.tensor([0.0, 0.0, -torch.inf]).view(1, 1, 1, 3)
    assert_close(attention(q, k, v, shared, 2), reference_attention(q, k, v, shared, 2))


def test_padding_does_not_affect_valid_rows():
    q, k, v = torch.randn(3, 1, 20, 32)
    bias = torch.randn(1, 2, 20, 20)
    bias[..., 11:] = -torch.inf
    actual = attention(q, k, v, bias, 2)[:, :11]
    k[:, 11:], v[:, 11:] = 1e4, -1e4
    assert torch.equal(attention(q, k, v, bias, 2)[:, :11], actual)


@pytest.mark.parametrize("width", [5, 20, 40])
def test_gradients_of_masked_columns_are_zero(width):
    """Exactly zero: denormal numbers would make a matrix product many times slower."""
    q, k, v = (torch.randn(2, width, 32).requires_grad_() for _ in range(3))
    bias = torch.randn(2, 2, width, width)
    bias[..., width // 2 :] = -torch.inf
    bias[..., 0] = -100
    bias.requires_grad_()
    actual = attention(q, k, v, bias, 2)
    gradients = torch.autograd.grad(actual, (q, k, v, bias), torch.randn(actual.shape))
    for gradient in gradients[1:3]:
        assert (gradient[:, width // 2 :] == 0).all() and (gradient[:, 0] == 0).all()
    assert (gradients[3][..., width // 2 :] == 0).all()
    for part in (actual, *gradients):
        assert ((part == 0) | (part.abs() > 1e-37)).all()
