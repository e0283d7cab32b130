import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.ops import bond_messages

BACKENDS = ["torch", *bond_messages.backends]
shapes = st.tuples(st.integers(0, 2**20), st.integers(1, 3), st.integers(1, 9), st.sampled_from([16, 48]))


def make_inputs(shape, dtype=torch.float32):
    """Return rows, symmetric bonds, and embeddings of five bond types and three ring classes."""
    seed, batch, width, channels = shape
    random = np.random.default_rng(seed)
    upper = np.triu(random.integers(0, 16, (batch, width, width)) * (random.random((batch, width, width)) < 0.4), 1)
    bonds = torch.from_numpy((upper + upper.swapaxes(1, 2)).astype(np.int16))
    sizes = (batch, width, channels), (5, channels), (3, channels)
    x, types, rings = (torch.from_numpy(random.normal(size=size)).to(dtype) for size in sizes)
    return x, bonds, types, rings


@settings(max_examples=30)
@given(shapes)
def test_matches_loop(shape):
    x, bonds, types, rings = make_inputs(shape)
    for backend in BACKENDS:
        actual = bond_messages.using(backend)(x, bonds, types, rings)
        for b in range(len(x)):
            for i in range(x.shape[1]):
                expected = torch.zeros(x.shape[2])
                for j in range(x.shape[1]):
                    if bonds[b, i, j]:
                        ring, kind = divmod(int(bonds[b, i, j]) - 1, 5)
                        expected += (x[b, j] + types[kind] + rings[ring]).clamp_min(0)
                torch.testing.assert_close(actual[b, i], expected)


def test_gradcheck():
    x, bonds, types, rings = make_inputs((3, 2, 5, 4), torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (x, types, rings)]
    assert torch.autograd.gradcheck(lambda x, types, rings: bond_messages(x, bonds, types, rings), leaves)


@pytest.mark.skipif(len(BACKENDS) < 2, reason="no other backend")
@settings(max_examples=20)
@given(shapes)
def test_backends_agree_on_gradients(shape):
    x, bonds, types, rings = make_inputs(shape)
    upstream, grads = torch.randn(x.shape), []
    for backend in BACKENDS:
        leaves = [tensor.clone().requires_grad_() for tensor in (x, types, rings)]
        (bond_messages.using(backend)(leaves[0], bonds, *leaves[1:]) * upstream).sum().backward()
        grads.append([leaf.grad for leaf in leaves])
    for first, other in zip(*grads[:2], strict=True):
        torch.testing.assert_close(first, other, rtol=1e-4, atol=1e-5)


def test_directed_bond_sends_message_one_way():
    """Row 1 receives a message from row 0, but not vice versa."""
    bonds = torch.zeros(1, 2, 2, dtype=torch.int16)
    bonds[0, 1, 0] = 2
    x, table = torch.ones(1, 2, 16, requires_grad=True), torch.ones(2, 16)
    for backend in BACKENDS:
        x.grad = None
        out = bond_messages.using(backend)(x, bonds, table, table[:1])
        assert out[0].tolist() == [[0.0] * 16, [3.0] * 16]
        out.sum().backward()
        assert x.grad[0].tolist() == [[1.0] * 16, [0.0] * 16]


def test_nan_propagates_and_empty_batch():
    bonds, table = torch.tensor([[[0, 1], [1, 0]]], dtype=torch.int16), torch.ones(1, 16)
    x = torch.zeros(1, 2, 16)
    x[0, 0] = torch.nan
    for backend in BACKENDS:
        actual = bond_messages.using(backend)(x, bonds, table, table)
        assert actual[0, 1].isnan().all() and (actual[0, 0] == 2).all()
    assert bond_messages(torch.zeros(0, 2, 16), bonds[:0], table, table).shape == (0, 2, 16)


@pytest.mark.skipif("numba" not in BACKENDS, reason="no kernel for a CPU")
def test_cpu_kernel_rejects_codes_beyond_tables():
    x, bonds, types, rings = make_inputs((0, 2, 5, 16))
    for codes in (bonds + 5, bonds - 1):  # valid: 0 to 15
        with pytest.raises(ValueError, match="does not support"):
            bond_messages.using("numba")(x, codes, types[:2], rings[:2])


def test_reference_for_compilers_matches(monkeypatch):
    """Runs the branch for torch.compile without compiling."""
    inputs = make_inputs((5, 2, 7, 16))
    expected = bond_messages.reference(*inputs)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(bond_messages.reference(*inputs), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    x, bonds, types, rings = make_inputs((1, 2, 6, 16), dtype)
    expected = bond_messages(x.float(), bonds, types.float(), rings.float())
    torch.testing.assert_close(bond_messages(x, bonds, types, rings).float(), expected, rtol=0.05, atol=0.05)
