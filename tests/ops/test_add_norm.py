"""add_norm: its dropout, outputs that nobody reads, and values that are hard to normalise."""

import pytest
import torch
from torch.nn import functional as F

from graphslice.ops import add_norm


def arguments(seed: int, shape: tuple[int, ...], dtype=torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [shape, shape, *[shape[-1:]] * 2]
    return [torch.randn(size, generator=generator, dtype=dtype).requires_grad_() for size in sizes]


def plain(x, y, weight, bias, eps=1e-5):
    s = x + y
    return s, F.layer_norm(s, s.shape[-1:], weight, bias, eps)


@pytest.mark.parametrize("which", [0, 1])
def test_either_output_may_go_unused(which):
    given_ = arguments(0, (4, 32))
    grads = [torch.autograd.grad(function(*given_)[which].sin().sum(), given_[:2]) for function in (add_norm, plain)]
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_dropout_falls_on_the_second_and_its_gradient():
    x, y, weight, bias = arguments(0, (64, 48))
    torch.manual_seed(0)
    s, _ = add_norm(x, y, weight, bias, 0.25)
    kept = (s != x).detach()
    assert abs(kept.float().mean() - 0.75) < 0.03
    torch.testing.assert_close(s, x + kept * y / 0.75)
    grad_x, grad_y = torch.autograd.grad(s, (x, y), torch.ones_like(s))
    torch.testing.assert_close(grad_x, torch.ones_like(x))
    torch.testing.assert_close(grad_y, kept / 0.75)


def test_equal_values_and_large_ones():
    x, y, weight, bias = (t.detach() for t in arguments(0, (3, 16)))
    for value in (0.0, 1e6):
        flat = torch.full_like(x, value)
        for found, expected in zip(add_norm(flat, 0 * y, weight, bias), plain(flat, 0 * y, weight, bias), strict=True):
            torch.testing.assert_close(found, expected)
