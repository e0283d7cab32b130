"""column_sort compared with numpy for each sample and channel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphslice.ops import column_sort

SPECIAL = [-np.inf, np.inf, np.nan, 0.0, 1.0, -1.0, 2.5]
ORDERS = ["ascending", "descending", "mask"]
BACKENDS = ["torch", "numba"]


def backends_for(x: torch.Tensor) -> list[str]:
    """Return the backends for a CPU that sort a tensor; the kernel sorts float32 with a multiple of 16 channels."""
    has_kernel = x.dtype == torch.float32 and x.shape[2] % 16 == 0 and x.numel() > 0
    assert column_sort.choose(x) == ("numba" if has_kernel else "torch")
    return BACKENDS if has_kernel else ["torch"]


def stable_order(values: np.ndarray, descending: bool) -> list[int]:
    value = [(1, 0.0) if np.isnan(v) else (0, float(v)) for v in values]
    return sorted(range(len(values)), key=value.__getitem__, reverse=bool(descending))  # reverse=True is stable too


def reference_sort(x: np.ndarray, lengths, descending) -> tuple[np.ndarray, np.ndarray]:
    rows = np.broadcast_to(np.arange(x.shape[1])[:, None], x.shape).copy()
    for b, length in enumerate(lengths):
        for c in range(x.shape[2]):
            rows[b, :length, c] = stable_order(x[b, :length, c], descending[c])
    return np.take_along_axis(x, rows, axis=1), rows


def order_of(name: str, channels: int):
    """Return the argument ``order`` and the mask of its descending channels."""
    if name == "mask":
        mask = np.arange(channels) % 3 != 1
        return torch.tensor(mask), mask
    return name, np.full(channels, name == "descending")


@st.composite
def sort_inputs(draw):
    batch, rows, channels = draw(st.integers(1, 3)), draw(st.integers(0, 9)), draw(st.sampled_from([1, 3, 16, 32]))
    values = st.sampled_from(SPECIAL) | st.floats(-3, 3, width=32)
    x = draw(hnp.arrays(np.float32, (batch, rows, min(4, channels)), elements=values))
    x = x[:, :, np.arange(channels) % 4]
    for c in range(4, channels):  # other columns with the same values
        x[:, :, c] = np.roll(x[:, :, c], c // 4, axis=1)
    lengths = draw(st.lists(st.integers(0, rows), min_size=batch, max_size=batch))
    return x, lengths


@settings(max_examples=150)
@given(sort_inputs(), st.sampled_from(ORDERS))
def test_matches_numpy_and_gradient_is_inverse_permutation(inputs, order):
    """Stable for ties; the identity in the padding."""
    x, lengths = inputs
    argument, descending = order_of(order, x.shape[2])
    expected, rows = reference_sort(x, lengths, descending)
    upstream = np.arange(1.0, x.size + 1, dtype=np.float32).reshape(x.shape)
    gradient = np.zeros_like(upstream)
    np.put_along_axis(gradient, rows, upstream, axis=1)
    for backend in backends_for(torch.from_numpy(x)):
        leaf = torch.from_numpy(x.copy()).requires_grad_()
        actual = column_sort.using(backend)(leaf, torch.tensor(lengths), argument)
        np.testing.assert_array_equal(actual.detach().numpy(), expected, strict=True)
        actual.backward(torch.from_numpy(upstream))
        np.testing.assert_array_equal(leaf.grad.numpy(), gradient)


@pytest.mark.parametrize("rows", [1, 2, 17, 31, 32, 33, 63, 65, 96, 130, 256, 257, 1000])
@pytest.mark.parametrize("channels", [16, 35])
def test_numbers_of_rows_and_channels(rows, channels):
    """Blocks of 32 rows and strips of 16 channels, whole and not, row numbers of one and of four bytes, with ties and
    every special value."""
    random = np.random.default_rng(rows)
    x = random.integers(-3, 3, (3, rows, channels)).astype(np.float32)
    special = random.random(x.shape) < 0.3
    x[special] = random.choice(np.array([*SPECIAL, -0.0, -np.nan, 1e-45, -1e-45], np.float32), special.sum())
    lengths, (argument, descending) = np.array([rows, rows - 1, rows // 2]), order_of("mask", channels)
    sorted_x, source = reference_sort(x, lengths, descending)
    leaf, upstream = torch.from_numpy(x).requires_grad_(), random.normal(size=x.shape).astype(np.float32)
    actual = column_sort(leaf, torch.tensor(lengths), argument)
    actual.backward(torch.from_numpy(upstream))
    expected = np.empty_like(upstream)
    np.put_along_axis(expected, source, upstream, axis=1)
    np.testing.assert_array_equal(actual.detach().numpy(), sorted_x)
    np.testing.assert_array_equal(leaf.grad.numpy(), expected)
    with torch.no_grad():
        np.testing.assert_array_equal(column_sort(leaf, torch.tensor(lengths), argument).numpy(), sorted_x)


@pytest.mark.parametrize(
    "shape", [(2, 0, 3), (2, 1, 16), (2, 6, 5), (2, 6, 16), (1, 40, 272)]
)  # several parts of channels
@pytest.mark.parametrize("order", ORDERS)
def test_all_rows_are_sorted_without_lengths(order, shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    argument, descending = order_of(order, shape[2])
    expected = np.where(descending, -np.sort(-x, axis=1), np.sort(x, axis=1))
    for backend in backends_for(torch.from_numpy(x)):
        actual = column_sort.using(backend)(torch.from_numpy(x), order=argument)
        np.testing.assert_array_equal(actual.numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_all_floating_dtypes(dtype):
    x = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0)).to(dtype)  # bf16 has many ties here
    actual = column_sort(x, torch.tensor([40, 11]))
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual.double().numpy(), reference_sort(x.double().numpy(), [40, 11], [False] * 3)[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("order", ORDERS)
def test_gpu_matches_cpu(order):
    x = torch.randint(0, 9, (3, 700, 5), generator=torch.Generator().manual_seed(0)).float()  # many ties
    lengths, upstream = torch.tensor([700, 350, 1]), torch.arange(float(x.numel())).view(x.shape)
    argument, _ = order_of(order, 5)
    results = []
    for device in ("cpu", "cuda"):
        leaf = x.detach().to(device).requires_grad_()
        moved = argument if isinstance(argument, str) else argument.to(device)
        sorted_ = column_sort(leaf, lengths.to(device), moved)
        sorted_.backward(upstream.to(device))
        results.append((sorted_.detach().cpu(), leaf.grad.cpu()))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_maximum_number_of_rows():
    rows = 65_536
    x = torch.randint(0, 5000, (1, rows, 16), generator=torch.Generator().manual_seed(0)).float().requires_grad_()
    actual = column_sort(x, torch.tensor([rows - 5]))
    actual.backward(torch.arange(16.0 * rows).view(1, rows, 16))
    order = np.argsort(x[0, :-5].detach().numpy(), axis=0, kind="stable")
    np.testing.assert_array_equal(actual[0, :-5].detach(), np.take_along_axis(x[0, :-5].detach().numpy(), order, 0))
    expected = np.arange(16.0 * rows, dtype=np.float32).reshape(rows, 16)
    expected[order, np.arange(16)] = expected[:-5].copy()
    np.testing.assert_array_equal(x.grad[0], expected)


@pytest.mark.parametrize("channels", [3, 16])
def test_unknown_order_raises(channels):
    with pytest.raises(ValueError, match="ascending"):
        column_sort(torch.zeros(1, 2, channels), order="up")
