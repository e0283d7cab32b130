"""add_norm: dropout, unused outputs, and values that are numerically difficult."""

import pytest
import torch
from torch.nn import functional as F

from graphslice.ops import add_norm


def arguments(seed: int, shape: tuple[int, ...], dtype=torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [shape, shape, *[shape[-1:]] * 2]
    return [torch.randn(size, generator=generator, dtype=dtype).requires_grad_() for size in sizes]


def reference(x, y, weight, bias, eps=1e-5):
    s = x + y
    return s, F.layer_norm(s, s.shape[-1:], weight, bias, eps)


@pytest.mark.parametrize("which", [0, 1])
def test_gradient_of_either_output_alone(which):
    args = arguments(0, (4, 32))
    grads = [torch.autograd.grad(function(*args)[which].sin().sum(), args[:2]) for function in (add_norm, reference)]
    for actual, expected in zip(*grads, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_dropout_applies_to_second_argument_and_its_gradient():
    x, y, weight, bias = arguments(0, (64, 48))
    torch.manual_seed(0)
    s, _ = add_norm(x, y, weight, bias, 0.25)
    kept = (s != x).detach()
    assert abs(kept.float().mean() - 0.75) < 0.03
    torch.testing.assert_close(s, x + kept * y / 0.75)
    grad_x, grad_y = torch.autograd.grad(s, (x, y), torch.ones_like(s))
    torch.testing.assert_close(grad_x, torch.ones_like(x))
    torch.testing.assert_close(grad_y, kept / 0.75)


def test_constant_and_large_values():
    x, y, weight, bias = (t.detach() for t in arguments(0, (3, 16)))
    for value in (0.0, 1e6):
        flat = torch.full_like(x, value)
        results = add_norm(flat, 0 * y, weight, bias), reference(flat, 0 * y, weight, bias)
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected)
