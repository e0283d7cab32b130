import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.ops import broadcast_max

BACKENDS = ["torch", "numba"]
shapes = st.tuples(st.integers(1, 4), st.integers(1, 9), st.sampled_from([1, 7, 16, 40, 48]))


def make_inputs(seed, batch, rows, channels, dtype=torch.float32, ties=False):
    """Draw integers, different ones or with ties, and lengths, some of them out of range."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 4, batch * rows * channels) if ties else random.permutation(batch * rows * channels)
    lengths = torch.from_numpy(random.integers(-1, rows + 3, batch))
    local_channels = torch.from_numpy(random.random(channels) < 0.5)
    return torch.from_numpy(values).reshape(batch, rows, channels).to(dtype), lengths, local_channels


def by_loop(v, lengths, local_channels, upstream):
    out, grad = v.double(), upstream.double()
    for b, length in enumerate(lengths.clamp(0, v.shape[1]).tolist()):
        for c in range(v.shape[2]):
            if local_channels[c]:
                continue
            valid = v[b, :length, c].double()
            largest, total = valid.max() if length else torch.tensor(-torch.inf), grad[b, :, c].sum()
            out[b, :, c], grad[b, :, c] = largest, 0
            grad[b, :length, c] = (valid == largest) * total / (valid == largest).sum()
    return out, grad


@settings(max_examples=80)
@given(st.integers(0, 2**20), shapes, st.booleans(), st.sampled_from([torch.float32, torch.float64]))
def test_matches_loop(seed, shape, ties, dtype):
    v, lengths, local_channels = make_inputs(seed, *shape, dtype, ties)
    upstream = torch.randint(-3, 4, v.shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    expected, expected_grad = by_loop(v, lengths, local_channels, upstream)
    has_kernel = dtype == torch.float32 and shape[2] % 16 == 0
    assert broadcast_max.choose(v, lengths, local_channels) == ("numba" if has_kernel else "torch")
    for backend in BACKENDS if has_kernel else ["torch"]:
        leaf = v.clone().requires_grad_()
        actual = broadcast_max.using(backend)(leaf, lengths, local_channels)
        assert torch.equal(actual.double(), expected)
        actual.backward(upstream)
        torch.testing.assert_close(leaf.grad.double(), expected_grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_and_infinity(backend):
    inf, nan = torch.inf, torch.nan
    columns = torch.tensor([[1, nan, 3], [nan, nan, nan], [1, inf, 3], [1, -inf, 3], [inf, nan, 0], [-inf, -inf, -inf]])
    v = torch.cat([columns.T, torch.zeros(3, 10)], dim=1)[None].requires_grad_()
    lengths, none = torch.tensor([3]), torch.zeros(16, dtype=torch.bool)
    actual = broadcast_max.using(backend)(v, lengths, none)
    expected = torch.tensor([nan, nan, inf, 3, nan, -inf]).expand(3, 6)
    torch.testing.assert_close(actual[0, :, :6].detach(), expected, rtol=0, atol=0, equal_nan=True)
    actual[:, :, 2:4].sum().backward()
    assert v.grad[0, :, 2:4].tolist() == [[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]]
    torch.testing.assert_close(broadcast_max.using(backend)(v, lengths, ~none), v, rtol=0, atol=0, equal_nan=True)
