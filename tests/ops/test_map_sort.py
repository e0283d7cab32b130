"""map_sort on the CPU against the product and then the sort."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.ops import map_sort

SHAPES = st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 4]), st.integers(1, 40), st.sampled_from([8, 10, 16, 24]))
ORDERS = ["ascending", "descending", "mask"]


def order_of(name: str, channels: int):
    return torch.arange(channels) % 3 == 1 if name == "mask" else name


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**20), SHAPES, st.sampled_from(ORDERS))
def test_the_product_and_then_the_sort(seed, shape, order):
    """With exact products and many ties, so that order and gradient are one and the same."""
    batch, heads, width, own = shape
    torch.manual_seed(seed)
    maps = torch.randint(0, 5, (batch, heads, width, width)) / 16
    v = torch.randint(-4, 5, (batch, width, heads * own)).float()
    lengths = torch.randint(0, width + 1, (batch,))
    upstream = torch.randn(v.shape)
    results = []
    for backend in ("torch", "numba"):
        leaves = maps.clone().requires_grad_(), v.clone().requires_grad_()
        found = map_sort(*leaves, lengths, order_of(order, v.shape[2]), backend=backend)
        with torch.no_grad():
            assert torch.equal(map_sort(*leaves, lengths, order_of(order, v.shape[2]), backend=backend), found)
        results.append((found.detach(), *torch.autograd.grad(found, leaves, upstream)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_dropout_is_the_same_backward_and_has_its_rate():
    maps = torch.rand(40, 2, 13, 13).requires_grad_()
    v = torch.randn(40, 13, 32).requires_grad_()
    lengths = torch.full((40,), 13)
    torch.manual_seed(0)
    found = map_sort(maps, v, lengths, p=0.3)
    upstream = torch.randn_like(found)
    of_maps, of_v = torch.autograd.grad(found, (maps, v), upstream)
    expected = (upstream * found).sum()
    torch.testing.assert_close((of_maps * maps).sum(), expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close((of_v * v).sum(), expected, rtol=1e-4, atol=1e-3)
    kept = (of_maps != 0).float()
    assert abs(kept.mean() - 0.7) < 5 * (0.21 / kept.numel()) ** 0.5
    torch.testing.assert_close(found, map_sort(maps * kept / 0.7, v, lengths, backend="torch"), rtol=1e-4, atol=1e-5)


def test_threads_change_nothing():
    maps, v, lengths = torch.rand(600, 2, 9, 9), torch.randn(600, 9, 64), torch.randint(1, 10, (600,))
    results = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            torch.manual_seed(0)
            results.append(map_sort(maps, v, lengths, p=0.1))
        finally:
            torch.set_num_threads(1)
    assert torch.equal(*results)


@pytest.mark.parametrize("width", [257, 300])
def test_larger_samples_take_one_operation_after_the_other(width):
    maps, v = torch.rand(1, 1, width, width), torch.randn(1, width, 16)
    lengths = torch.tensor([width])
    torch.testing.assert_close(map_sort(maps, v, lengths), (maps[:, 0] @ v).sort(dim=1).values, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=f"{width} rows"):
        map_sort(maps, v, lengths, backend="numba")
