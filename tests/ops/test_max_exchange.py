import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.ops import max_exchange
from graphslice.ops.max_exchange import TIE


def map_of_column(column, hard):
    """Return the matrix that maps the valid rows of a channel to the result, from the docstring."""
    size = len(column)
    if size < 2:
        return np.eye(size)
    if hard:
        order = list(range(size))
        largest = order.index(max(order, key=lambda row: column[row]))
        order[0], order[largest] = order[largest], order[0]
        return np.eye(size)[order]
    exchange = max(0.0, column[1:].max() - column[0])
    distance = column[1:].max() - column[1:]
    weights = np.clip((TIE[1] * exchange - distance) / max((TIE[1] - TIE[0]) * exchange, 1e-300), 0, 1)
    weights /= max(1, weights.sum())
    matrix = np.eye(size)
    matrix[0, 0], matrix[0, 1:], matrix[1:, 0] = 1 - weights.sum(), weights, weights
    matrix[range(1, size), range(1, size)] = 1 - weights
    return matrix


@given(
    st.integers(1, 4),
    st.integers(1, 12),
    st.sampled_from([1, 5, 16, 48]),
    st.integers(0, 10**6),
    st.booleans(),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=80)
def test_matches_loop_and_padding_is_unchanged(batch, rows, channels, seed, ties, hard, dtype):
    """Multiples of 1/8, so that no exchange is so small that rounding decides about ties."""
    random = np.random.default_rng(seed)
    v, grad = random.integers(-16, 17, (2, batch, rows, channels)) / (8 if ties else 7.7)
    lengths = random.integers(1, rows + 4, batch)
    expected, expected_grad = v.copy(), grad.copy()
    for b, length in enumerate(lengths):
        for c in range(channels):
            matrix = map_of_column(v[b, :length, c], hard)
            np.testing.assert_allclose([matrix.sum(0), matrix.sum(1)], 1)  # doubly stochastic
            expected[b, :length, c] = matrix @ v[b, :length, c]
            expected_grad[b, :length, c] = matrix.T @ grad[b, :length, c]  # the weights have no gradient
    args = torch.from_numpy(v).to(dtype).requires_grad_(), torch.from_numpy(lengths), hard
    has_kernel = dtype == torch.float32 and channels % 16 == 0
    assert max_exchange.choose(*args) == ("numba" if has_kernel else "torch")
    tolerance = {"rtol": 0, "atol": 1e-4 if dtype == torch.float32 else 1e-12}
    for backend in ["torch", "numba"] if has_kernel else ["torch"]:
        actual = max_exchange.using(backend)(*args)
        torch.testing.assert_close(actual.double(), torch.from_numpy(expected), **tolerance)
        for b, length in enumerate(lengths):
            assert torch.equal(actual[b, length:], args[0][b, length:])
        (actual_grad,) = torch.autograd.grad(actual, args[0], torch.from_numpy(grad).to(dtype))
        torch.testing.assert_close(actual_grad.double(), torch.from_numpy(expected_grad), **tolerance)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_nan_reaches_the_first_row(backend, hard):
    v = torch.zeros(1, 4, 16)
    v[0, 2, 3] = torch.nan
    found = [max_exchange.using(backend)(v, torch.tensor([rows]), hard)[0, 0].isnan().tolist() for rows in (3, 2)]
    assert found == [[c == 3 for c in range(16)], [False] * 16]  # the last is padding
