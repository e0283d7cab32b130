"""bias_gelu against torch in double precision."""

import math

import pytest
import torch
from torch.nn import functional as F

from graphslice.ops import bias_gelu


@pytest.mark.parametrize("shape", [(1, 16), (3, 5, 48), (300, 32), (4, 7)])
def test_values_and_gradients(shape):
    torch.manual_seed(0)
    x, bias = (3 * torch.randn(shape)).requires_grad_(), torch.randn(shape[-1]).requires_grad_()
    upstream = torch.randn(shape)
    found, expected = bias_gelu(x, bias), F.gelu(x.double() + bias.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=2e-6)
    grads = [torch.autograd.grad(y, (x, bias), g) for y, g in ((found, upstream), (expected, upstream.double()))]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_the_whole_range():
    x = torch.cat([torch.linspace(-100, 100, 40_000), torch.linspace(-1e-3, 1e-3, 4_000), torch.tensor([1e30, -1e30])])
    x = F.pad(x, (0, -len(x) % 16)).view(-1, 16)
    found = bias_gelu(x, torch.zeros(16)).double()
    torch.testing.assert_close(found, F.gelu(x.double()), rtol=2e-6, atol=1e-6)


def test_nan_and_infinity():
    x = torch.zeros(1, 16)
    x[0, :2] = torch.tensor([math.nan, math.inf])
    found = bias_gelu(x, torch.zeros(16))[0].tolist()
    assert math.isnan(found[0]) and found[1] == math.inf and found[2:] == [0.0] * 14
