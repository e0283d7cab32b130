"""Layer norms of residual sums, and GELU compared with torch in double precision."""

import math

import pytest
import torch
from torch.nn import functional as F

from graphslice.program.function import run_program
from graphslice.program.layout import N
from graphslice.program.trace import Trace


def run(function, *tensors: torch.Tensor) -> torch.Tensor:
    """Run ``function(x, y, weight, bias)`` as a program."""
    trace, channels = Trace(backward=True), tensors[0].shape[-1]
    values = [trace.input(i, (N, channels)) for i in range(2)]
    parameters = [trace.input(i, (channels,), shared=True) for i in (2, 3)]
    return run_program(trace.finish(function(*values, *parameters)), tensors, *tensors[0].shape[:2])


def arguments(*shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator).requires_grad_() for size in (shape, shape, *[shape[-1:]] * 2)]


def norm(x, weight, bias, eps=1e-5):
    return F.layer_norm(x, (weight.shape[0],), weight, bias, eps)


FUNCTIONS = {
    "norm": lambda x, y, weight, bias: norm(x + y, weight, bias),
    "sum": lambda x, y, weight, bias: (lambda s: (norm(s, weight, bias), s)[1])(x + y),
    "both": lambda x, y, weight, bias: (lambda s: s * norm(s, weight, bias))(x + y),
    "no sum": lambda x, y, weight, bias: norm(y, weight, bias, 0.1),
}


@pytest.mark.parametrize("shape", [(4, 5, 32), (1, 1, 16), (3, 2, 272)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_and_gradients_match_torch(name, shape):
    args, results = arguments(*shape), []
    for out in (run(FUNCTIONS[name], *args), FUNCTIONS[name](*args)):
        gradients = torch.autograd.grad(out.sin().sum(), args, allow_unused=True, materialize_grads=True)
        results.append([out, *gradients])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 1e6, -1e-6])
def test_constant_values(value):
    x, y, weight, bias = arguments(1, 3, 16)
    flat = [torch.full_like(x, value).requires_grad_(), (0 * y).detach().requires_grad_(), weight, bias]
    exact, results = [tensor.detach().double().requires_grad_() for tensor in flat], []
    for args, out in ((flat, run(FUNCTIONS["norm"], *flat)), (exact, FUNCTIONS["norm"](*exact))):
        results.append([out, *torch.autograd.grad(out, args, torch.ones_like(out))])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual.double(), expected, rtol=1e-3, atol=1e-3)


def test_values_far_from_zero():
    """The variance is that of the differences from the mean, not a difference of squares."""
    x, y, weight, bias = arguments(2, 3, 64)
    shifted = x.detach() + 1e4
    exact = norm((shifted + y).double(), weight.double(), bias.double())
    torch.testing.assert_close(run(FUNCTIONS["norm"], shifted, y, weight, bias).double(), exact, rtol=1e-3, atol=1e-2)


def run_elementwise(function, x: torch.Tensor) -> torch.Tensor:
    """Compute a function of values as a program of samples of 16 of them."""
    trace = Trace(backward=x.requires_grad)
    program = trace.finish(function(trace.input(0, (16,))))
    return run_program(program, [x.reshape(-1, 16)], x.numel() // 16, 1).view(x.shape)


def test_gelu_matches_double_precision_over_wide_range():
    x = torch.cat([torch.linspace(-100, 100, 40_000), torch.linspace(-1e-3, 1e-3, 4_000), torch.tensor([1e30, -1e30])])
    x = F.pad(x, (0, -len(x) % 16))
    torch.testing.assert_close(run_elementwise(F.gelu, x).double(), F.gelu(x.double()), rtol=2e-6, atol=1e-6)


def test_gelu_of_nan_and_infinity():
    x = torch.zeros(16)
    x[:2] = torch.tensor([math.nan, math.inf])
    actual = run_elementwise(F.gelu, x).tolist()
    assert math.isnan(actual[0]) and actual[1] == math.inf and actual[2:] == [0.0] * 14
