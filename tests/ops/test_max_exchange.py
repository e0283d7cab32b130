import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.ops import max_exchange


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 9), st.integers(0, 10**6), st.booleans())
@settings(max_examples=60)
def test_kernel_matches_reference_and_padding_is_unchanged(batch, rows, channels, seed, ties):
    random = np.random.default_rng(seed)
    v = random.standard_normal((batch, rows, channels))
    v = torch.from_numpy(np.round(v) if ties else v).requires_grad_()
    mask = torch.arange(rows) < torch.from_numpy(random.integers(1, rows + 1, batch))[:, None]
    grad = torch.from_numpy(random.standard_normal(v.shape))
    actual, expected = max_exchange(v, mask), max_exchange.reference(v, mask)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(actual[~mask], v[~mask])
    torch.testing.assert_close(
        torch.autograd.grad(actual, v, grad)[0], torch.autograd.grad(expected, v, grad)[0], rtol=1e-12, atol=1e-12
    )


def exchange(columns, length=None):
    """Apply :func:`max_exchange` to one sample, given as a list of channels."""
    v = torch.tensor(columns, dtype=torch.float64).T[None]
    mask = torch.arange(v.shape[1])[None] < (length or v.shape[1])
    return max_exchange(v, mask)[0].T.tolist()


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([0.0, 2.0, 1.0], [2.0, 0.0, 1.0]),
        ([0.0, 1.0, 2.0, -3.0], [2.0, 1.0, 0.0, -3.0]),
        ([-9.0, -5.0, -7.0], [-5.0, -9.0, -7.0]),
        ([3.0, 2.0, 1.0], [3.0, 2.0, 1.0]),  # the first row already has the maximum
        ([3.0, 3.0, 1.0], [3.0, 3.0, 1.0]),
        ([4.0], [4.0]),
        ([-4.0], [-4.0]),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
        ([0.0, 1.0, 1.0, 0.5], [1.0, 0.5, 0.5, 0.5]),  # two tied rows share the exchange
        ([0.0, 3.0, 3.0, 3.0, -1.0], [3.0, 2.0, 2.0, 2.0, -1.0]),
    ],
    ids=repr,
)
def test_matches_manual_computation(column, expected):
    assert exchange([column])[0] == pytest.approx(expected, abs=1e-12)


def test_hard_exchange_without_ties():
    rng = np.random.default_rng(0)
    v = np.stack([rng.permutation(10) for _ in range(200)]).astype(
        float
    )  # gaps of 1 and an exchange of at most 9, so no ties
    expected = v.copy()
    for row in expected:
        top = row.argmax()
        row[0], row[top] = row[top], row[0]
    np.testing.assert_allclose(exchange(v), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_map_is_doubly_stochastic(seed):
    rng = np.random.default_rng(seed)
    column = torch.tensor(rng.normal(size=8))
    column[rng.integers(1, 6, size=3)] = column[:6].max() - torch.tensor(rng.uniform(0, 0.05, size=3))  # near ties
    mask = torch.arange(8)[None] < 6
    # The weights have no gradient, so the Jacobian is the map itself.
    jacobian = torch.autograd.functional.jacobian(lambda v: max_exchange(v[None, :, None], mask)[0, :, 0], column)
    assert (jacobian >= -1e-12).all()
    torch.testing.assert_close(jacobian.sum(0), torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(jacobian.sum(1), torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(jacobian[6:], torch.eye(8, dtype=torch.float64)[6:])  # padding is unchanged
    torch.testing.assert_close(jacobian @ column, max_exchange(column[None, :, None], mask)[0, :, 0])
    assert max_exchange(column[None, :, None], mask).sum().item() == pytest.approx(column.sum().item())


def test_is_continuous():
    """A hard exchange would jump by 1 where two rows swap ranks or the first row becomes the maximum."""
    step = 1e-5
    moving = np.arange(0.9, 1.1, step)
    still = np.ones_like(moving)
    for columns in ([0 * still, still, moving, 0.3 * still], [moving, still, 0.99 * still, 0.3 * still]):
        v = torch.tensor(np.stack(columns, axis=1)).T[None]
        actual = max_exchange(v, torch.ones(1, 4, dtype=torch.bool))
        assert actual.diff(dim=2).abs().max() < 100 * step
        assert actual[0, 1].min() < 0.97  # an exchange did take place


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision(dtype):
    v = torch.randn(4, 9, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    v[:, 3] = v[:, 4]
    v[1, 1:] = v[1, :1]
    mask = torch.arange(9) < torch.tensor([9, 6, 2, 1])[:, None]
    actual, expected = max_exchange(v, mask), max_exchange(v.double(), mask)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=16 * torch.finfo(dtype).eps)
