import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.ops import broadcast_max

shapes = st.tuples(st.integers(0, 2**20), st.integers(1, 4), st.integers(1, 9), st.integers(1, 40))


def make_inputs(shape, dtype=torch.float64):
    seed, batch, rows, channels = shape
    random = np.random.default_rng(seed)
    v = torch.from_numpy(random.permutation(batch * rows * channels).reshape(batch, rows, channels)).to(dtype)
    lengths = torch.from_numpy(random.integers(1, rows + 1, batch))
    return v, torch.arange(rows) < lengths[:, None], torch.from_numpy(random.random(channels) < 0.5)


@settings(max_examples=60)
@given(shapes)
def test_matches_loop(shape):
    v, mask, local_channels = make_inputs(shape)
    actual = broadcast_max(v, mask, local_channels)
    for b in range(len(v)):
        for c in range(v.shape[2]):
            expected = v[b, :, c] if local_channels[c] else v[b, mask[b], c].max().expand(v.shape[1])
            assert torch.equal(actual[b, :, c], expected)


def test_gradcheck():
    v, mask, local_channels = make_inputs((3, 2, 5, 6))
    assert torch.autograd.gradcheck(lambda x: broadcast_max(x, mask, local_channels), v.requires_grad_())


def test_ties_padding_nan_and_empty_batch():
    v = torch.tensor([[[1.0, 1.0], [3.0, 3.0], [3.0, 3.0], [9.0, 9.0]]], requires_grad=True)
    mask, local_channels = torch.tensor([[True, True, True, False]]), torch.tensor([False, True])
    out = broadcast_max(v, mask, local_channels)
    assert out[0].tolist() == [[3.0, 1.0], [3.0, 3.0], [3.0, 3.0], [3.0, 9.0]]
    out.sum().backward()
    assert v.grad[0, :, 0].tolist() == [0.0, 2.0, 2.0, 0.0]
    with_nan = torch.tensor([[[1.0, 1.0], [torch.nan, torch.nan], [3.0, 3.0]]])
    for function in (broadcast_max, broadcast_max.reference):
        assert function(with_nan, torch.ones(1, 3, dtype=torch.bool), local_channels)[0, :, 0].isnan().all()
    assert (broadcast_max(v, torch.zeros(1, 4, dtype=torch.bool), local_channels)[0, :, 0] == -torch.inf).all()
    assert broadcast_max(torch.zeros(0, 4, 2), torch.zeros(0, 4, dtype=torch.bool), local_channels).shape == (0, 4, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    v, mask, local_channels = make_inputs((1, 2, 6, 8), dtype)
    assert torch.equal(broadcast_max(v, mask, local_channels).double(), broadcast_max(v.double(), mask, local_channels))
