import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.ops import max_exchange
from graphslice.ops.max_exchange import exchange_in_torch


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 9), st.integers(0, 10**6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_backends_agree(batch, rows, channels, seed, ties):
    random = np.random.default_rng(seed)
    v = random.standard_normal((batch, rows, channels))
    v = torch.from_numpy(np.round(v) if ties else v).requires_grad_()
    mask = torch.arange(rows) < torch.from_numpy(random.integers(1, rows + 1, batch))[:, None]
    grad = torch.from_numpy(random.standard_normal(v.shape))
    found, expected = max_exchange(v, mask), exchange_in_torch(v, mask)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(found[~mask], v[~mask])
    torch.testing.assert_close(
        torch.autograd.grad(found, v, grad)[0], torch.autograd.grad(expected, v, grad)[0], rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_not_contiguous_gives_the_same(dtype):
    v = torch.randn(3, 5, 7, dtype=dtype, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True] * 5, [True, True, False, False, False], [True, False, False, False, False]])
    turned = v.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(max_exchange(turned, mask), max_exchange(v, mask))
