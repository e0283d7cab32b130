"""GELU compared with torch in double precision."""

import math

import torch
from torch.nn import functional as F

from graphslice.program.function import run_program
from graphslice.program.trace import Trace


def run(function, x: torch.Tensor) -> torch.Tensor:
    """Compute a function of values as a program of samples of 16 of them."""
    trace = Trace(backward=x.requires_grad)
    program = trace.finish(function(trace.input(0, (16,))))
    return run_program(program, [x.reshape(-1, 16)], x.numel() // 16, 1).view(x.shape)


def test_gelu_matches_double_precision_over_wide_range():
    x = torch.cat([torch.linspace(-100, 100, 40_000), torch.linspace(-1e-3, 1e-3, 4_000), torch.tensor([1e30, -1e30])])
    x = F.pad(x, (0, -len(x) % 16))
    torch.testing.assert_close(run(F.gelu, x).double(), F.gelu(x.double()), rtol=2e-6, atol=1e-6)


def test_gelu_of_nan_and_infinity():
    x = torch.zeros(16)
    x[:2] = torch.tensor([math.nan, math.inf])
    actual = run(F.gelu, x).tolist()
    assert math.isnan(actual[0]) and actual[1] == math.inf and actual[2:] == [0.0] * 14
