"""gelu compared with torch in double precision."""

import math

import torch
from torch.nn import functional as F

from graphslice.ops import gelu


def test_matches_double_precision_over_wide_range():
    x = torch.cat([torch.linspace(-100, 100, 40_000), torch.linspace(-1e-3, 1e-3, 4_000), torch.tensor([1e30, -1e30])])
    x = F.pad(x, (0, -len(x) % 16)).view(-1, 16)
    actual = gelu(x).double()
    torch.testing.assert_close(actual, F.gelu(x.double()), rtol=2e-6, atol=1e-6)


def test_nan_and_infinity():
    x = torch.zeros(1, 16)
    x[0, :2] = torch.tensor([math.nan, math.inf])
    actual = gelu(x)[0].tolist()
    assert math.isnan(actual[0]) and actual[1] == math.inf and actual[2:] == [0.0] * 14
