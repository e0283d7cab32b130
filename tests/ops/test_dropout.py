"""Dropout: mask, rate, mean and gradient."""

import math

import numpy as np
import pytest
import torch
from dropout_masks import kept_by_hash

from graphslice.ops import Dropout, dropout
from graphslice.program.function import draw_random_integers


@pytest.mark.parametrize("p", [0.03, 0.1, 0.5, 0.9])
def test_drop_rate(p):
    n = 200_000
    torch.manual_seed(0)
    kept = dropout(torch.ones(n), p) != 0
    bound = 5 * math.sqrt(p * (1 - p) / n)
    assert abs(1 - kept.float().mean().item() - p) < bound
    # Sixteen values are hashed at once: all lanes must have the same rate and be independent.
    lanes = kept.view(-1, 16).double()
    assert (1 - lanes.mean(0) - p).abs().max() < 4 * bound
    assert torch.corrcoef(lanes.T).fill_diagonal_(0).abs().max() < 5 / math.sqrt(n / 16)


def test_neighbours_and_successive_draws_are_independent():
    torch.manual_seed(1)
    n = 1 << 18
    draws = torch.stack([(dropout(torch.ones(n), 0.5) != 0).double() for _ in range(6)])
    bound = 5 / math.sqrt(n)
    assert torch.corrcoef(draws).fill_diagonal_(0).abs().max() < bound
    for distance in (1, 2, 3, 16, 19, 256, 4864):
        pair = torch.stack([draws[0, :-distance], draws[0, distance:]])
        assert torch.corrcoef(pair)[0, 1].abs() < bound


@pytest.mark.parametrize(("p", "shape"), [(0.25, (16,)), (0.5, (300, 48)), (0.999, (64, 1000)), (1e-3, (64, 1000))])
@pytest.mark.parametrize("threads", [1, 3])
def test_kernel_drops_where_the_hash_is_small(p, shape, threads):
    torch.manual_seed(4)
    first, second = draw_random_integers(2)
    torch.manual_seed(4)
    torch.set_num_threads(threads)
    actual = dropout.using("numba")(torch.ones(shape), p)
    kept = kept_by_hash(actual.numel(), first, second, p)
    np.testing.assert_allclose(actual.flatten(), kept / (1 - p), rtol=1e-6)


@pytest.mark.parametrize("p", [1e-7, 1e-6, 5e-6, 1e-5, 0.99999, 0.9999999, 1 - 1e-12])
def test_rate_near_zero_and_one(p):
    torch.manual_seed(0)
    y = dropout(torch.ones(10_000), p)
    assert y.isfinite().all() and ((y == 0) if p < 0.5 else (y != 0)).sum() < 10


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 0, 3), (2, 3, 7), (16,), (3, 2, 8)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_shapes_and_dtypes(shape, dtype):
    y = dropout(torch.ones(shape, dtype=dtype), 0.5)
    assert (y.shape, y.dtype) == (shape, dtype)
    assert set(y.flatten().tolist()) <= {0.0, 2.0}


def test_identity_for_rate_zero_and_in_eval_mode():
    x = torch.randn(4, 8)
    assert torch.equal(dropout(x, 0), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(0.9).eval()(x), x)
    assert not torch.equal(Dropout(0.9).train()(x), x)
