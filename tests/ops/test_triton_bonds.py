"""The messages over bonds on a GPU, in Triton's interpreter where there is no GPU; their values are compared with a
loop and the other backends in test_bond_messages.py."""

import sys

import pytest
import torch

from graphslice.ops import bond_messages
from graphslice.ops.bond_messages import _triton_backward, _triton_messages

pytest.importorskip("triton")
triton_bonds = pytest.importorskip("graphslice.ops.triton_bonds")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def problem(batch=2, width=5, channels=16, dtype=torch.float32, types=4, rings=3):
    """Small whole numbers, whose sums are exact in any order and dtype."""
    torch.manual_seed(width)
    upper = torch.randint(0, types * rings + 1, (batch, width, width)) * (torch.rand(batch, width, width) < 0.5)
    x, by_type, by_ring = (
        torch.randint(-3, 4, size).to(DEVICE, dtype)
        for size in ((batch, width, channels), (types, channels), (rings, channels))
    )
    bonds = upper.triu(1)
    return x, (bonds + bonds.mT).to(DEVICE, torch.int16), by_type, by_ring


def values_and_gradients(backend, x, bonds, types, rings):
    leaves = [tensor.clone().requires_grad_() for tensor in (x, types, rings)]
    found = bond_messages.using(backend)(leaves[0], bonds, *leaves[1:])
    upstream = (torch.arange(found.numel(), device=DEVICE) % 5 - 2).view_as(found).to(found)
    return [found.detach(), *torch.autograd.grad(found, leaves, upstream)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels", [1, 24, 130])
def test_any_number_of_channels_of_any_dtype(channels, dtype):
    """Also such as fill no tile, and several tiles."""
    args = problem(channels=channels, dtype=dtype)
    for one, other in zip(*(values_and_gradients(backend, *args) for backend in ("torch", "triton")), strict=True):
        assert one.dtype == other.dtype == dtype
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_programs_of_many_rows(monkeypatch):
    """More rows than programs, and no multiple of them: each adds to its own table in turns."""
    args = problem(batch=3, width=7)
    wanted = values_and_gradients("torch", *args)
    monkeypatch.setattr(triton_bonds, "_PROGRAMS", 4)
    for one, other in zip(wanted, values_and_gradients("triton", *args), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_what_lay_in_the_memory_of_the_tables_is_not_added(monkeypatch):
    args = problem(batch=3, width=7, types=9)
    wanted = values_and_gradients("torch", *args)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(torch.nan))
    for one, other in zip(wanted, values_and_gradients("triton", *args), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_words_beyond_the_tables_are_no_bonds():
    """Nothing is read, nor written, beyond the tables; to ask for the largest word would wait for the GPU."""
    x, bonds, types, rings = problem()
    beyond = bonds.clone()
    beyond[0, 0, 1], beyond[1, 2, 3], beyond[1, 3, 2] = 13, 32_767, -32_768
    none = bonds.clone()
    none[0, 0, 1] = none[1, 2, 3] = none[1, 3, 2] = 0
    found = [values_and_gradients("triton", x, words, types, rings) for words in (beyond, none)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_strides_do_not_matter():
    x, bonds, types, rings = problem()
    turned = x.mT.contiguous().mT, bonds.mT.contiguous().mT, types.T.contiguous().T, rings.T.contiguous().T
    found = [values_and_gradients("triton", *args) for args in (turned, (x, bonds, types, rings))]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_opcheck():
    x, bonds, types, rings = problem()
    asked = [tensor.requires_grad_() for tensor in (x, types, rings)]
    torch.library.opcheck(_triton_messages, (asked[0], bonds, *asked[1:]))
    grad, *given = (tensor.detach() for tensor in (x, x, types, rings))
    torch.library.opcheck(_triton_backward, (grad, given[0], bonds, *given[1:]))


def test_second_derivatives_are_refused():
    x, bonds, types, rings = problem()
    out = bond_messages.using("triton")(x.requires_grad_(), bonds, types, rings)
    (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, bonds, types, rings: (x.double(), bonds, types.double(), rings.double()),
        lambda x, bonds, types, rings: (x, bonds.int(), types, rings),
        lambda x, bonds, types, rings: (x, bonds[:1], types, rings),
        lambda x, bonds, types, rings: (x, bonds[:, :, :4], types, rings),
        lambda x, bonds, types, rings: (x, bonds, types[:, :8], rings),
        lambda x, bonds, types, rings: (x, bonds, types, rings[:, :8]),
        lambda x, bonds, types, rings: (x[0], bonds[0], types, rings),
    ],
)
def test_what_does_not_agree_is_refused(change):
    with pytest.raises(ValueError, match="does not take"):
        bond_messages.using("triton")(*change(*problem()))


def test_older_gpus_take_the_reference(monkeypatch):
    """Triton's compiler aborts on a V100, and a T4 has no instructions for bfloat16."""
    monkeypatch.setattr(sys.modules["graphslice.ops.bond_messages"], "capability", lambda _: (7, 0))
    with pytest.raises(ValueError, match="does not take"):
        bond_messages.using("triton")(*problem())
    monkeypatch.setattr(sys.modules["graphslice.ops.bond_messages"], "capability", lambda _: (7, 5))
    bond_messages.using("triton")(*problem())
    with pytest.raises(ValueError, match="does not take"):
        bond_messages.using("triton")(*problem(dtype=torch.bfloat16))


def test_a_kernel_starts_on_the_device_of_its_tensors(started_on):
    x, bonds, types, rings = problem()
    bond_messages.using("triton")(x.requires_grad_(), bonds, types, rings).sum().backward()
    assert started_on == [x.device] * 2  # forward and backward
