import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import check_backends

from graphslice.ops import embed_atoms


def make_inputs(seed, batch, atoms, channels, dtype=torch.float32, degrees=6):
    """Draw features from tables of 4 rows each, and degrees beyond their table."""
    random = np.random.default_rng(seed)

    def table(*shape):
        return torch.from_numpy(random.normal(size=shape)).to(dtype).requires_grad_()

    features = torch.from_numpy(random.integers(0, 4, (batch, atoms, 9), np.uint8))
    counts = torch.from_numpy(random.integers(0, 256 if seed % 2 else 9, (batch, atoms), np.uint8))
    lengths = torch.from_numpy(random.integers(0, atoms + 4, batch))
    tables = table(36, channels), table(degrees, channels), table(degrees, channels), table(1, channels)
    return features, counts, lengths, 4 * torch.arange(9), *tables


def by_loop(atoms, degrees, lengths, starts, table, in_degree, out_degree, token):
    samples = []
    for b in range(len(atoms)):
        rows = [token[0].double()]
        for i in range(atoms.shape[1]):
            degree = min(int(degrees[b, i]) + 1, len(in_degree) - 1)
            row = in_degree[degree].double() + out_degree[degree].double()
            for f in range(9):
                row = row + table[int(starts[f]) + int(atoms[b, i, f])].double()
            rows.append(row if i + 1 < lengths[b] else 0 * row)
        samples.append(torch.stack(rows))
    return torch.stack(samples)


@settings(max_examples=30)
@given(
    st.integers(0, 2**20),
    st.integers(1, 3),
    st.integers(1, 6),
    st.sampled_from([5, 16, 48]),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([2, 6]),
)
def test_matches_loop(seed, batch, atoms, channels, dtype, degrees):
    args = make_inputs(seed, batch, atoms, channels, dtype, degrees)
    valid = (torch.arange(atoms + 1) < args[2][:, None]) | (torch.arange(atoms + 1) == 0)
    expected = by_loop(*args)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    has_kernel = dtype == torch.float32 and channels % 16 == 0
    check_backends(embed_atoms, args, expected, upstream, has_kernel=has_kernel, valid=valid[..., None])


def test_kernel_clamps_features_degrees_and_first_rows():
    """The reference raises an error for them, except for degrees."""
    atoms, degrees, _, starts, *tables = make_inputs(0, 2, 3, 16)
    lengths, largest = torch.tensor([4, 4]), torch.full_like(atoms, 255)
    clamped = embed_atoms.using("numba")(atoms * 0 + 35, degrees, lengths, starts * 0, *tables)
    for first in (starts, starts + 2**40, torch.full_like(starts, 2**63 - 1 - 255)):
        actual = embed_atoms.using("numba")(largest, degrees, lengths, first, *tables)
        assert torch.equal(actual, clamped)
        actual.sum().backward()
    expected = embed_atoms.using("numba")(atoms * 0, degrees, lengths, starts * 0, *tables)
    actual = embed_atoms.using("numba")(atoms, degrees, lengths, starts - 2**40, *tables)
    assert torch.equal(actual, expected)
    actual.sum().backward()
    with pytest.raises((RuntimeError, IndexError)):
        embed_atoms.reference(largest, degrees, lengths, starts, *tables)


@pytest.mark.parametrize("filling", [5.0, torch.nan])
def test_kernel_ignores_upstream_gradients_of_padding(filling):
    atoms, degrees, _, starts, *tables = make_inputs(0, 3, 4, 16)
    lengths = torch.tensor([3, 1, 5])
    padding = (torch.arange(5) >= lengths[:, None])[..., None]
    upstream, grads = torch.randn(3, 5, 16), []
    for value in (0.0, filling):
        out = embed_atoms.using("numba")(atoms, degrees, lengths, starts, *tables)
        grads.append(torch.autograd.grad(out, tables, upstream.masked_fill(padding, value)))
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))
