import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.ops import max_exchange


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 9), st.integers(0, 10**6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_kernel_to_the_last_digits_and_padding_stays(batch, rows, channels, seed, ties):
    random = np.random.default_rng(seed)
    v = random.standard_normal((batch, rows, channels))
    v = torch.from_numpy(np.round(v) if ties else v).requires_grad_()
    mask = torch.arange(rows) < torch.from_numpy(random.integers(1, rows + 1, batch))[:, None]
    grad = torch.from_numpy(random.standard_normal(v.shape))
    found, expected = max_exchange(v, mask), max_exchange.reference(v, mask)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(found[~mask], v[~mask])
    torch.testing.assert_close(
        torch.autograd.grad(found, v, grad)[0], torch.autograd.grad(expected, v, grad)[0], rtol=1e-12, atol=1e-12
    )
