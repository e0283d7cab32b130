"""path_softmax: normalisation, gradients and extreme biases."""

import numpy as np
import pytest
import torch

from graphslice.ops import path_softmax


def make_inputs(
    seed: int, lengths: list[int], heads: int = 3, path_types: int = 7, spread: float = 3.0, dtype=torch.float64
):
    random = np.random.default_rng(seed)
    values = torch.tensor(random.normal(size=(path_types + 1, heads)) * spread, dtype=dtype, requires_grad=True)
    width = max(lengths)
    pairs = np.full((len(lengths), width, width), -1, np.int16)
    for b, length in enumerate(lengths):
        pairs[b, :length, :length] = random.integers(0, path_types, size=(length, length))
    return values, torch.from_numpy(pairs), torch.tensor(lengths)


def test_rows_sum_to_one_and_padding_is_zero():
    values, pairs, sizes = make_inputs(0, [1, 5, 3])
    actual = path_softmax(values, pairs, sizes).detach()
    for sample, length in zip(actual, sizes.tolist(), strict=True):
        assert torch.allclose(sample[:, : length + 1].sum(-1), torch.ones(1, dtype=torch.float64))
        assert not sample[:, length + 1 :].any() and not sample[:, :, length + 1 :].any()


def test_gradcheck():
    values, pairs, sizes = make_inputs(1, [2, 4])
    assert torch.autograd.gradcheck(lambda v: path_softmax(v, pairs, sizes), values)


@pytest.mark.parametrize("gap", [50.0, 90.0, 500.0, 2000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_biases_far_apart(gap, dtype):
    """A row whose largest bias is far below the maximum of its head is still normalised."""
    values = torch.tensor([[0.0], [-gap], [-gap - 1], [0.0]], dtype=dtype)
    pairs = torch.tensor([[[0, 1], [0, 0]], [[2, 2], [2, 2]]])
    # Also lower the bias of the token, so that all weights of a row are tiny before normalisation.
    values[0] = -gap
    actual = path_softmax(values, pairs, torch.tensor([2, 2]))
    torch.testing.assert_close(
        actual, path_softmax.reference(values, pairs, torch.tensor([2, 2])), rtol=1e-5, atol=1e-7
    )
    assert torch.allclose(actual.sum(-1), torch.ones((), dtype=dtype))


@pytest.mark.parametrize("gap", [50.0, 75.0, 90.0, 150.0])
def test_no_denormal_weights(gap):
    """Denormal numbers would make a matrix product many times slower."""
    values = torch.tensor([[0.0], [gap], [0.5]])
    pairs, lengths = torch.tensor([[[0, 1], [1, 1]]], dtype=torch.int16), torch.tensor([2])
    actual = path_softmax(values, pairs, lengths)
    assert ((actual == 0) | (actual >= 1e-28)).all() and (actual == 0).any() == (gap > 65)
    torch.testing.assert_close(actual, path_softmax.reference(values, pairs, lengths), rtol=1e-6, atol=1e-28)
