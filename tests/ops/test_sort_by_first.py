"""sort_by_first is the optimal assignment of channel-wise sample permutation, for random inputs."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import check_backends
from scipy.optimize import linear_sum_assignment

from graphslice.ops import sort_by_first
from graphslice.ops.sort_by_first import TIE

problems = st.tuples(
    st.integers(0, 2**20),
    st.integers(1, 14),
    st.sampled_from([1, 5, 16]),
    st.integers(0, 4),
    st.sampled_from([torch.float32, torch.float64]),
)


def backends_for(v: torch.Tensor, groups: int = 1) -> list[str]:
    """Return the backends for a CPU; the kernels sort float32 with a multiple of 16 channels, in one group or pairs."""
    has_kernel = v.dtype == torch.float32 and v.shape[2] % 16 == 0 and groups in (0, 1)
    lengths = torch.full((len(v),), v.shape[1])
    assert sort_by_first.choose(v, lengths, groups) == ("numba" if has_kernel else "torch")
    return ["torch", "numba"] if has_kernel else ["torch"]


def groups_of(rows: int, groups: int) -> list[range]:
    groups = groups or -(-rows // 2)
    sizes = [rows // groups + (g < rows % groups) for g in range(groups)]
    return [range(sum(sizes[:g]), sum(sizes[: g + 1])) for g in range(groups)]


@settings(max_examples=80)
@given(problems)
def test_csp_is_the_optimal_assignment_to_the_first_channel(problem):
    """In each group any other permutation has a larger distance to channel 1."""
    seed, rows, channels, groups, dtype = problem
    random = np.random.default_rng(seed)
    v = random.permuted(np.tile(np.arange(rows + 2.0)[:, None], (2, 1, channels)), axis=1) - 3  # all different
    v = torch.from_numpy(v + random.uniform(-0.4, 0.4, v.shape)).to(dtype).requires_grad_()
    lengths, upstream = torch.tensor([rows, max(1, rows - 1)]), torch.from_numpy(random.normal(size=v.shape)).to(dtype)
    expected, expected_grad = v.detach().numpy().copy(), upstream.numpy().copy()
    for b, length in enumerate(lengths.tolist()):
        for group in groups_of(length, groups):
            if not len(group):
                continue
            part = v.detach()[b, list(group)].numpy()
            for c in range(channels):
                cost = (part[:, None, 0] - part[None, :, c]) ** 2
                _, chosen = linear_sum_assignment(cost)
                expected[b, list(group), c] = part[chosen, c]
                expected_grad[b, group[0] + chosen, c] = upstream[b, list(group), c]
    for backend in backends_for(v, groups):
        output = sort_by_first.using(backend)(v, lengths, groups)
        assert torch.equal(output[:, :, 0], v[:, :, 0])
        np.testing.assert_array_equal(output.detach().numpy(), expected)
        np.testing.assert_array_equal(torch.autograd.grad(output, v, upstream)[0].numpy(), expected_grad)


@settings(max_examples=40)
@given(st.integers(0, 2**20), st.integers(1, 40), st.sampled_from([torch.float32, torch.float64]))
def test_rows_that_tie_match_loop(seed, rows, dtype):
    random = np.random.default_rng(seed)
    v = torch.from_numpy(random.integers(-2, 3, (3, rows, 16))).to(dtype).requires_grad_()
    lengths = torch.from_numpy(random.integers(-1, rows + 3, 3))
    upstream = torch.from_numpy(random.integers(-3, 4, v.shape)).double()
    expected = []
    for sample, length in zip(v.double(), lengths.clamp(0, rows).tolist(), strict=True):
        first, ordered = sample[:length, 0], sample[:length].sort(dim=0, stable=True).values
        tied = (first[:, None] == first).double()
        runs = (first.sort().values == first[:, None]).double() / tied.sum(1, keepdim=True)  # [row, rank]
        expected.append(torch.cat([runs @ ordered, sample[length:]]))
    args, has_kernel = (v, lengths), dtype == torch.float32
    check_backends(sort_by_first, args, torch.stack(expected), upstream, has_kernel=has_kernel, rtol=1e-5, atol=1e-5)


def exchange_in_pairs(v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Min-max of groups of two (CSP, 3.2.1), pair by pair: the larger of a channel goes where channel 1 is larger."""
    out = v.clone()
    for b, length in enumerate(lengths.clamp(0, v.shape[1]).tolist()):
        for row in range(0, length - 1, 2):
            one, other = v[b, row], v[b, row + 1]
            smaller, larger = torch.where(one <= other, one, other), torch.where(one <= other, other, one)
            if (one[0] - other[0]).abs() <= TIE * max(one[0].abs(), other[0].abs()):
                smaller = larger = (one + other) / 2
            out[b, row], out[b, row + 1] = (smaller, larger) if one[0] <= other[0] else (larger, smaller)
    return out


@settings(max_examples=80)
@given(
    st.integers(0, 2**20),
    st.integers(1, 9),
    st.sampled_from([1, 5, 16, 48]),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_groups_of_two_exchange_minimum_and_maximum(seed, rows, channels, dtype):
    """With ties and near ties in channel 1, equal values in the others, and padding that would win every exchange."""
    random = np.random.default_rng(seed)
    v = torch.from_numpy(random.integers(-8, 9, (4, rows, channels)) / 4)
    near = torch.from_numpy(random.choice([0, 2e-6, -5e-6, 2e-5, 1e-3, 9], v[:, 1::2, 0].shape))
    v[:, 1::2, 0] = (1 + near) * v[:, : rows // 2 * 2 : 2, 0]
    lengths = torch.from_numpy(random.integers(-1, rows + 3, 4))
    padding = torch.arange(rows) >= lengths[:, None]
    v = v.masked_fill(padding[:, :, None], torch.inf).to(dtype).requires_grad_()
    upstream = torch.from_numpy(random.integers(-3, 4, v.shape))
    has_kernel = dtype == torch.float32 and channels % 16 == 0
    args = v, lengths, 0
    check_backends(sort_by_first, args, exchange_in_pairs(*args[:2]), upstream, has_kernel=has_kernel, rtol=0, atol=0)


def test_nan_in_the_first_channel_is_last_and_ties_with_nothing():
    v = torch.arange(96.0).view(1, 6, 16)
    v[0, :, 0] = torch.tensor([2, torch.nan, 2, 1, torch.nan, 0])
    for backend in backends_for(v):
        output = sort_by_first.using(backend)(v, torch.tensor([5]))
        assert output[0, :, 1].tolist() == [v[0, row, 1] for row in (1, 3, 2, 0, 4, 5)]
        assert output[0, :, 0].isnan().tolist() == [False, True, False, False, True, False]


def test_nan_counts_as_the_larger_value_of_a_pair():
    v = torch.ones(1, 6, 16)
    v[0, :, 0] = torch.tensor([torch.nan, 1, torch.nan, torch.nan, 3, 4])
    v[0, :, 1] = torch.tensor([6, 5, 8, 7, torch.nan, 2])
    for backend in backends_for(v, 0):
        output = sort_by_first.using(backend)(v, torch.tensor([6]), 0)[0]
        torch.testing.assert_close(output[:, 0], v[0, :, 0], rtol=0, atol=0, equal_nan=True)
        assert output[:5, 1].tolist() == [6, 5, 7, 8, 2] and output[5, 1].isnan()
