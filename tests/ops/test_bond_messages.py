import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.ops import bond_messages

BACKENDS = ["torch", *bond_messages.backends]
shapes = st.tuples(st.integers(0, 2**20), st.integers(1, 3), st.integers(1, 9), st.sampled_from([16, 48]))


def problem_of(shape, dtype=torch.float32):
    """Rows, bonds both ways and a table of five types."""
    seed, batch, width, channels = shape
    random = np.random.default_rng(seed)
    upper = np.triu(random.integers(0, 6, (batch, width, width)) * (random.random((batch, width, width)) < 0.4), 1)
    bonds = torch.from_numpy((upper + upper.swapaxes(1, 2)).astype(np.uint8))
    x, table = (
        torch.from_numpy(random.normal(size=size)).to(dtype) for size in ((batch, width, channels), (5, channels))
    )
    return x, bonds, table


@settings(deadline=None, max_examples=30)
@given(shapes)
def test_against_a_loop(shape):
    x, bonds, table = problem_of(shape)
    for backend in BACKENDS:
        found = bond_messages.using(backend)(x, bonds, table)
        for b in range(len(x)):
            for i in range(x.shape[1]):
                wanted = torch.zeros(x.shape[2])
                for j in range(x.shape[1]):
                    if bonds[b, i, j]:
                        wanted += (x[b, j] + table[int(bonds[b, i, j]) - 1]).clamp_min(0)
                torch.testing.assert_close(found[b, i], wanted)


def test_gradcheck():
    x, bonds, table = problem_of((3, 2, 5, 4), torch.float64)
    asked = x.requires_grad_(), table.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, table: bond_messages(x, bonds, table), asked)


@pytest.mark.skipif(len(BACKENDS) < 2, reason="no other backend")
@settings(deadline=None, max_examples=20)
@given(shapes)
def test_gradients_of_the_backends_agree(shape):
    x, bonds, table = problem_of(shape)
    upstream, found = torch.randn(x.shape), []
    for backend in BACKENDS:
        leaves = x.clone().requires_grad_(), table.clone().requires_grad_()
        (bond_messages.using(backend)(leaves[0], bonds, leaves[1]) * upstream).sum().backward()
        found.append([leaf.grad for leaf in leaves])
    for first, other in zip(*found[:2], strict=True):
        torch.testing.assert_close(first, other)


def test_one_way_bonds_go_one_way():
    """Row 1 hears of row 0, and not the other way round."""
    bonds = torch.zeros(1, 2, 2, dtype=torch.uint8)
    bonds[0, 1, 0] = 2
    x, table = torch.ones(1, 2, 16, requires_grad=True), torch.ones(2, 16)
    for backend in BACKENDS:
        x.grad = None
        out = bond_messages.using(backend)(x, bonds, table)
        assert out[0].tolist() == [[0.0] * 16, [2.0] * 16]
        out.sum().backward()
        assert x.grad[0].tolist() == [[1.0] * 16, [0.0] * 16]


def test_nan_is_not_lost_and_nothing_is_nothing():
    bonds = torch.tensor([[[0, 1], [1, 0]]], dtype=torch.uint8)
    x = torch.zeros(1, 2, 16)
    x[0, 0] = torch.nan
    for backend in BACKENDS:
        found = bond_messages.using(backend)(x, bonds, torch.ones(1, 16))
        assert found[0, 1].isnan().all() and (found[0, 0] == 1).all()
    assert bond_messages(torch.zeros(0, 2, 16), bonds[:0], torch.ones(1, 16)).shape == (0, 2, 16)


def test_what_is_compiled_is_the_same(monkeypatch):
    """The form for compilers, without a compiler."""
    x, bonds, table = problem_of((5, 2, 7, 16))
    wanted = bond_messages.reference(x, bonds, table)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(bond_messages.reference(x, bonds, table), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(dtype):
    x, bonds, table = problem_of((1, 2, 6, 16), dtype)
    wanted = bond_messages(x.float(), bonds, table.float())
    torch.testing.assert_close(bond_messages(x, bonds, table).float(), wanted, rtol=0.05, atol=0.05)
