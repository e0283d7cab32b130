"""Triton kernels of bond_messages, interpreted without a GPU."""

import pytest
import torch

from graphslice.ops import bond_messages

pytest.importorskip("triton")
triton_bonds = pytest.importorskip("graphslice.ops.triton_bonds")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_inputs(batch=2, width=5, channels=16, dtype=torch.float32, types=4, rings=3):
    """Return small integers, whose sums are exact in any order and dtype."""
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
    actual = bond_messages.using(backend)(leaves[0], bonds, *leaves[1:])
    upstream = (torch.arange(actual.numel(), device=DEVICE) % 5 - 2).view_as(actual).to(actual)
    return [actual.detach(), *torch.autograd.grad(actual, leaves, upstream)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels", [1, 130])
def test_matches_reference_for_all_dtypes_and_channel_counts(channels, dtype):
    args = make_inputs(channels=channels, dtype=dtype)
    for one, other in zip(*(values_and_gradients(backend, *args) for backend in ("torch", "triton")), strict=True):
        assert one.dtype == other.dtype == dtype
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_several_rows_per_program(monkeypatch):
    args = make_inputs(batch=3, width=7)
    expected = values_and_gradients("torch", *args)
    monkeypatch.setattr(triton_bonds, "_PROGRAMS", 4)
    torch.testing.assert_close(expected, values_and_gradients("triton", *args), rtol=0, atol=0)


def test_uninitialised_table_memory_is_ignored(monkeypatch):
    args = make_inputs(batch=3, width=7, types=9)
    expected = values_and_gradients("torch", *args)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(torch.nan))
    torch.testing.assert_close(expected, values_and_gradients("triton", *args), rtol=0, atol=0)


def test_codes_beyond_tables_are_no_bonds():
    """Checked in the kernel, since finding the largest code on the host would synchronise with the GPU."""
    x, bonds, types, rings = make_inputs()
    beyond = bonds.clone()
    beyond[0, 0, 1], beyond[1, 2, 3], beyond[1, 3, 2] = 13, 32_767, -32_768
    without = bonds.clone()
    without[0, 0, 1] = without[1, 2, 3] = without[1, 3, 2] = 0
    actual = [values_and_gradients("triton", x, codes, types, rings) for codes in (beyond, without)]
    torch.testing.assert_close(*actual, rtol=0, atol=0)


def test_non_contiguous_arguments():
    x, bonds, types, rings = make_inputs()
    strided = x.mT.contiguous().mT, bonds.mT.contiguous().mT, types.T.contiguous().T, rings.T.contiguous().T
    actual = [values_and_gradients("triton", *args) for args in (strided, (x, bonds, types, rings))]
    torch.testing.assert_close(*actual, rtol=0, atol=0)
