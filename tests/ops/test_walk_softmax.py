"""walk_softmax against plain torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.ops import walk_softmax
from graphslice.ops.walk_softmax import _in_torch, _walk_softmax, _walk_softmax_backward


def problem(seed: int, lengths: list[int], heads: int = 3, walks: int = 7, spread: float = 3.0, dtype=torch.float64):
    random = np.random.default_rng(seed)
    values = torch.tensor(random.normal(size=(walks + 1, heads)) * spread, dtype=dtype, requires_grad=True)
    width = max(lengths)
    pairs = np.full((len(lengths), width, width), -1, np.int16)
    for b, length in enumerate(lengths):
        pairs[b, :length, :length] = random.integers(0, walks, size=(length, length))
    return values, torch.from_numpy(pairs), torch.tensor(lengths)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**20), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from([0.0, 1.0, 50.0]))
def test_values_and_gradients(seed, lengths, spread):
    values, pairs, sizes = problem(seed, lengths, spread=spread)
    weight = torch.randn(len(lengths), 3, max(lengths) + 1, max(lengths) + 1, dtype=torch.float64)
    results = []
    for function in (walk_softmax, _in_torch):
        found = function(values, pairs, sizes)
        results.append((found.detach(), *torch.autograd.grad((found * weight).sum(), values)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_rows_sum_to_one_and_padding_is_zero():
    values, pairs, sizes = problem(0, [1, 5, 3])
    found = walk_softmax(values, pairs, sizes).detach()
    for sample, length in zip(found, sizes.tolist(), strict=True):
        assert torch.allclose(sample[:, : length + 1].sum(-1), torch.ones(1, dtype=torch.float64))
        assert not sample[:, length + 1 :].any() and not sample[:, :, length + 1 :].any()


def test_gradcheck():
    values, pairs, sizes = problem(1, [2, 4])
    assert torch.autograd.gradcheck(lambda v: walk_softmax(v, pairs, sizes), values)


def test_opcheck():
    values, pairs, sizes = problem(2, [3, 1])
    torch.library.opcheck(_walk_softmax, (values, pairs, sizes))
    result = walk_softmax(values, pairs, sizes).detach()
    torch.library.opcheck(_walk_softmax_backward, (torch.ones_like(result), result, pairs, sizes, len(values)))


@pytest.mark.parametrize("gap", [50.0, 90.0, 500.0, 2000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_apart(gap, dtype):
    """A row whose largest bias is far below the largest of its head is normalised all the same."""
    values = torch.tensor([[0.0], [-gap], [-gap - 1], [0.0]], dtype=dtype)
    pairs = torch.tensor([[[0, 1], [0, 0]], [[2, 2], [2, 2]]])
    # Without the token in the way: columns of atoms only would be all tiny.
    values[0] = -gap
    found = walk_softmax(values, pairs, torch.tensor([2, 2]))
    torch.testing.assert_close(found, _in_torch(values, pairs, torch.tensor([2, 2])), rtol=1e-5, atol=1e-7)
    assert torch.allclose(found.sum(-1), torch.ones((), dtype=dtype))


@pytest.mark.parametrize("gap", [50.0, 75.0, 90.0, 150.0])
def test_nothing_is_denormal(gap):
    """A matrix product with denormal numbers takes many times as long."""
    values = torch.tensor([[0.0], [gap], [0.5]])
    pairs, lengths = torch.tensor([[[0, 1], [1, 1]]], dtype=torch.int16), torch.tensor([2])
    found = walk_softmax(values, pairs, lengths)
    assert ((found == 0) | (found >= 1e-28)).all() and (found == 0).any() == (gap > 65)
    torch.testing.assert_close(found, _in_torch(values, pairs, lengths), rtol=1e-6, atol=1e-28)


def test_threads_change_nothing():
    values, pairs, sizes = problem(3, [40] * 64, heads=8, walks=300, dtype=torch.float32)
    one = walk_softmax(values, pairs, sizes)
    torch.set_num_threads(3)
    try:
        assert torch.equal(walk_softmax(values, pairs, sizes), one)
    finally:
        torch.set_num_threads(1)
