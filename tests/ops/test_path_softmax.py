"""path_softmax and path_bias: values and gradients, padding, path types and lengths out of range, extreme biases."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import check_backends

from graphslice.ops import path_bias, path_softmax

BACKENDS = ["torch", "numba"]


def make_inputs(
    seed: int, atoms: list[int], heads: int = 3, path_types: int = 7, spread: float = 3.0, dtype=torch.float64
):
    random = np.random.default_rng(seed)
    values = torch.tensor(random.normal(size=(path_types + 1, heads)) * spread, dtype=dtype, requires_grad=True)
    width = max(atoms)
    pairs = np.full((len(atoms), width, width), -1, np.int16)
    for b, count in enumerate(atoms):
        pairs[b, :count, :count] = random.integers(0, path_types, size=(count, count))
    return values, torch.from_numpy(pairs), torch.tensor(atoms) + 1


def bias_by_loop(values, path_types, lengths):
    """Compute the bias in float64; 0 in the rows of the padding."""
    width = path_types.shape[1] + 1
    rows = []
    for pairs, length in zip(path_types.tolist(), lengths.tolist(), strict=True):
        for i in range(width):
            for j in range(width):
                if j >= length:
                    rows.append(torch.full_like(values[0], -torch.inf, dtype=torch.float64))
                else:
                    rows.append(values[1 + pairs[i - 1][j - 1] if i and j else 0].double())
    bias = torch.stack(rows).view(len(path_types), width, width, -1).permute(0, 3, 1, 2)
    return bias.masked_fill(~valid_rows(path_types, lengths), 0)


def valid_rows(path_types, lengths):
    return (torch.arange(path_types.shape[1] + 1) < lengths[:, None])[:, None, :, None]


@settings(max_examples=25)
@given(
    st.integers(0, 2**20),
    st.lists(st.integers(1, 18), min_size=1, max_size=3),
    st.integers(1, 9),
    st.integers(1, 40),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_values_and_gradients_match_loop(seed, atoms, heads, types, dtype):
    values, pairs, lengths = make_inputs(seed, atoms, heads, types, dtype=dtype)
    bias = bias_by_loop(values, pairs, lengths)
    generator = torch.Generator().manual_seed(seed)
    upstream = torch.randn(bias.shape, generator=generator, dtype=torch.float64)
    within = valid_rows(pairs, lengths) & valid_rows(pairs, lengths).mT
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    for op, expected in ((path_bias, bias), (path_softmax, bias.softmax(-1) * valid_rows(pairs, lengths))):
        args, settings = (values, pairs, lengths), {"has_kernel": dtype == torch.float32, **tolerance}
        valid = valid_rows(pairs, lengths) if op is path_bias else None
        check_backends(op, args, expected, upstream * within, valid=valid, **settings)


@pytest.mark.parametrize("op", [path_softmax, path_bias])
def test_kernel_clamps_negative_path_types(op):
    values, pairs, lengths = make_inputs(2, [4, 4, 2], dtype=torch.float32)
    pairs[0, 1:3, 2] = torch.tensor([-1, -32_768], dtype=torch.int16)
    results = []
    for backend in BACKENDS:
        actual = op.using(backend)(values, pairs, lengths)
        actual = actual.masked_fill(~(valid_rows(pairs, lengths) & valid_rows(pairs, lengths).mT), 0)
        results.append((actual, *torch.autograd.grad(actual.square().sum(), values)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sample_without_rows_has_no_weights_and_no_gradient(backend):
    values, pairs, _ = make_inputs(2, [4, 4], dtype=torch.float32)
    actual = path_softmax.using(backend)(values, pairs, torch.tensor([0, 5]))
    assert not actual[0].any()
    (grad,) = torch.autograd.grad(actual.sin().sum(), values)
    alone = path_softmax.using(backend)(values, pairs[1:], torch.tensor([5]))
    torch.testing.assert_close(grad, torch.autograd.grad(alone.sin().sum(), values)[0])


@pytest.mark.parametrize("gap", [50.0, 90.0, 2000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_biases_far_apart(gap, dtype):
    """A row whose largest bias is far below the maximum of its head is still normalised."""
    values = torch.tensor([[0.0], [-gap], [-gap - 1], [0.0]], dtype=dtype)
    pairs = torch.tensor([[[0, 1], [0, 0]], [[2, 2], [2, 2]]], dtype=torch.int16)
    # Also lower the bias of the token, so that all weights of a row are tiny before normalisation.
    values[0] = -gap
    lengths = torch.tensor([3, 3])
    assert path_softmax.choose(values, pairs, lengths) == ("numba" if dtype == torch.float32 else "torch")
    actual = path_softmax(values, pairs, lengths)
    torch.testing.assert_close(actual, path_softmax.reference(values, pairs, lengths), rtol=1e-5, atol=1e-7)
    assert torch.allclose(actual.sum(-1), torch.ones((), dtype=dtype))


@pytest.mark.parametrize("gap", [50.0, 75.0, 150.0])
def test_no_denormal_weights(gap):
    """Denormal numbers would make a matrix product many times slower."""
    values = torch.tensor([[0.0], [gap], [0.5]])
    pairs, lengths = torch.tensor([[[0, 1], [1, 1]]], dtype=torch.int16), torch.tensor([3])
    actual = path_softmax.using("numba")(values, pairs, lengths)
    assert ((actual == 0) | (actual >= 1e-28)).all() and (actual == 0).any() == (gap > 64)
    torch.testing.assert_close(actual, path_softmax.reference(values, pairs, lengths), rtol=1e-6, atol=1e-28)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_and_infinite_biases(backend):
    """They occur only if training diverges, which must not stay unnoticed."""
    values = torch.tensor([[0.0] * 3, [0.0] * 3, [torch.nan, torch.inf, -torch.inf]])
    pairs = torch.tensor([[[0, 1], [0, 0]]], dtype=torch.int16)
    actual = path_softmax.using(backend)(values, pairs, torch.tensor([3]))[0]
    assert actual[:2, 1].isnan().all() and actual[2, 1].tolist() == [0.5, 0.5, 0]
    torch.testing.assert_close(actual[:, [0, 2]], torch.full((3, 2, 3), 1 / 3))
