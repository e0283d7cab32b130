"""add_norm against torch, one operation after the other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from graphslice.ops import add_norm


def arguments(seed: int, shape: tuple[int, ...], dtype=torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [shape, shape, *[shape[-1:]] * 3]
    return [torch.randn(size, generator=generator, dtype=dtype).requires_grad_() for size in sizes]


def plain(x, y, y_bias, weight, bias, eps=1e-5):
    s = x + (y + y_bias)
    return s, F.layer_norm(s, s.shape[-1:], weight, bias, eps)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**20),
    st.sampled_from([(3, 16), (1, 1, 32), (2, 7, 48), (130, 16), (5, 20, 80), (2, 3, 24), (4, 5)]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_values_and_gradients(seed, shape, dtype):
    given_ = arguments(seed, shape, dtype)
    upstream = [torch.randn(shape, dtype=dtype) for _ in range(2)]
    for found, expected in zip(add_norm(*given_), plain(*given_), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    grads = [torch.autograd.grad(function(*given_), given_, upstream) for function in (add_norm, plain)]
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("which", [0, 1])
def test_either_output_may_go_unused(which):
    given_ = arguments(0, (4, 32))
    grads = [torch.autograd.grad(function(*given_)[which].sin().sum(), given_[:2]) for function in (add_norm, plain)]
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_dropout_falls_on_the_second_and_its_gradient():
    x, y, y_bias, weight, bias = arguments(0, (64, 48))
    torch.manual_seed(0)
    s, _ = add_norm(x, y, y_bias, weight, bias, 0.25)
    kept = (s != x).detach()
    assert abs(kept.float().mean() - 0.75) < 0.03
    torch.testing.assert_close(s, x + kept * (y + y_bias) / 0.75)
    grad_x, grad_y, grad_bias = torch.autograd.grad(s, (x, y, y_bias), torch.ones_like(s))
    torch.testing.assert_close(grad_x, torch.ones_like(x))
    torch.testing.assert_close(grad_y, kept / 0.75)
    torch.testing.assert_close(grad_bias, (kept / 0.75).sum(0))


def test_equal_values_and_large_ones():
    x, y, y_bias, weight, bias = (t.detach() for t in arguments(0, (3, 16)))
    for value in (0.0, 1e6):
        flat = torch.full_like(x, value)
        for found, expected in zip(
            add_norm(flat, 0 * y, 0 * y_bias, weight, bias), plain(flat, 0 * y, 0 * y_bias, weight, bias), strict=True
        ):
            torch.testing.assert_close(found, expected)


def test_threads_change_nothing():
    given_ = arguments(0, (4000, 64))
    results = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            found = add_norm(*given_)
            results.append((*found, *torch.autograd.grad(found, given_, [torch.ones(4000, 64)] * 2)))
        finally:
            torch.set_num_threads(1)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_strided_input_and_no_rows():
    x, y, *vectors = arguments(0, (32, 16))
    turned = x.detach().T.contiguous().T
    assert torch.equal(add_norm(turned, y, *vectors)[1], add_norm(x, y, *vectors)[1])
    assert add_norm(x[:0], y[:0], *vectors)[0].shape == (0, 16)
