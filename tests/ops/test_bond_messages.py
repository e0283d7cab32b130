import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import check_backends

from graphslice.ops import bond_messages

BACKENDS = ["torch", "numba"]
shapes = st.tuples(st.integers(0, 2**20), st.integers(1, 3), st.integers(1, 9), st.sampled_from([16, 48]))


def make_inputs(shape, dtype=torch.float32):
    """Return rows, directed bonds, and embeddings of five bond types and three ring classes."""
    seed, batch, width, channels = shape
    random = np.random.default_rng(seed)
    codes = random.integers(0, 16, (batch, width, width)) * (random.random((batch, width, width)) < 0.4)
    bonds = torch.from_numpy(codes.astype(np.int16))
    sizes = (batch, width, channels), (5, channels), (3, channels)
    x, types, rings = (torch.from_numpy(random.normal(size=size)).to(dtype) for size in sizes)
    return x, bonds, types, rings


def by_loop(x, bonds, types, rings):
    rows = []
    for sample, codes in zip(x, bonds.tolist(), strict=True):
        for row in codes:
            bonded = [(sample[j], *divmod(code - 1, 5)) for j, code in enumerate(row) if code]
            rows.append(
                sum(((other + types[kind] + rings[ring]).clamp_min(0) for other, ring, kind in bonded), 0 * x[0, 0])
            )
    return torch.stack(rows).view(x.shape)


@settings(max_examples=30)
@given(shapes)
def test_values_and_gradients_match_loop(shape):
    x, bonds, types, rings = (arg.requires_grad_(arg.is_floating_point()) for arg in make_inputs(shape))
    args = x, bonds, types, rings
    check_backends(bond_messages, args, by_loop(*args), torch.randn(x.shape), has_kernel=True, atol=1e-5)


def test_nan_propagates():
    bonds, table = torch.tensor([[[0, 1], [1, 0]]], dtype=torch.int16), torch.ones(1, 16)
    x = torch.zeros(1, 2, 16)
    x[0, 0] = torch.nan
    for backend in BACKENDS:
        actual = bond_messages.using(backend)(x, bonds, table, table)
        assert actual[0, 1].isnan().all() and (actual[0, 0] == 2).all()


def test_reference_for_compilers_matches(monkeypatch):
    inputs = make_inputs((5, 2, 7, 16))
    expected = bond_messages.reference(*inputs)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(bond_messages.reference(*inputs), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    x, bonds, types, rings = make_inputs((1, 2, 6, 16), dtype)
    expected = bond_messages(x.float(), bonds, types.float(), rings.float())
    torch.testing.assert_close(bond_messages(x, bonds, types, rings).float(), expected, rtol=0.05, atol=0.05)
