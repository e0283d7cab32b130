"""Triton kernels of column_sort and aggregate_sort, interpreted without a GPU."""

import sys

import pytest
import torch

from graphslice.ops import OPERATORS, aggregate_sort, column_sort
from graphslice.ops.triton import AggregateTile

pytest.importorskip("triton")
triton_sort = pytest.importorskip("graphslice.ops.triton_sort")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def descending(channels: int) -> torch.Tensor:
    return (torch.arange(channels) % 3 == 1).to(DEVICE)


def make_inputs(batch: int, heads: int, width: int, head_dim: int, dtype: torch.dtype):
    """Return multiples of 1/16 and small integers, whose products are exact, so that the order is unique."""
    torch.manual_seed(width)
    attn_weights = torch.randint(0, 5, (batch, heads, width, width)) / 16
    v = torch.randint(-4, 5, (batch, width, heads * head_dim)).float()
    lengths = torch.randint(1, width + 1, (batch,))
    attn_weights *= (torch.arange(width) < lengths[:, None])[:, None, None]  # exact in bfloat16; zero in the padding
    return attn_weights.to(DEVICE, dtype), v.to(DEVICE, dtype), lengths.to(DEVICE)


def test_padding_is_zero_in_values_and_gradients():
    attn_weights, v, lengths = make_inputs(2, 2, 9, 8, torch.float32)
    lengths[:] = torch.tensor([4, 9])
    leaves = attn_weights.requires_grad_(), v.requires_grad_()
    actual = aggregate_sort.using("triton")(*leaves, lengths)
    assert not actual[0, 4:].any()
    grad_weights, _ = torch.autograd.grad(actual, leaves, torch.ones_like(actual))
    assert not grad_weights[0, :, 4:].any() and grad_weights[0, :, :4].any()


def values_and_gradients(backend: str, attn_weights, v, lengths):
    """Return the valid rows of both sorts by a backend, and the gradients of the sum of their squares."""
    results, rows = [], (torch.arange(v.shape[1], device=DEVICE) < lengths[:, None])[:, :, None]
    for op, leaves in ((aggregate_sort, (attn_weights, v)), (column_sort, (v,))):
        leaves = [leaf.clone().requires_grad_() for leaf in leaves]
        values = op.using(backend)(*leaves, lengths) * rows
        results += [values.detach(), *torch.autograd.grad(values.square().sum(), leaves)]
    return results


def test_lengths_may_be_expanded_and_are_clamped():
    """In a tensor of stride 0, reading consecutive elements would access other memory."""
    attn_weights, v, _ = make_inputs(2, 2, 5, 8, torch.float32)
    beyond = torch.tensor([2**40], device=DEVICE).expand(2)
    lengths = {"triton": beyond, "torch": torch.full_like(beyond, 5)}
    results = [values_and_gradients(name, attn_weights, v, lengths[name]) for name in lengths]
    torch.testing.assert_close(*results, rtol=0, atol=0)
    seed = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    ranks = triton_sort.aggregate_sort(attn_weights, v, beyond, descending(16), seed, 0.0)[1]
    assert (ranks.sort(1).values == torch.arange(5, device=DEVICE)[:, None]).all()  # a permutation


def test_rejects_too_many_rows_and_other_dtypes():
    with pytest.raises(ValueError, match="aggregate_sort does not support this call"):
        aggregate_sort.using("triton")(torch.rand(1, 1, 129, 129), torch.rand(1, 129, 8), torch.tensor([129]))
    with pytest.raises(ValueError, match="column_sort does not support this call"):
        column_sort.using("triton")(torch.rand(1, 3, 8, dtype=torch.float64, device=DEVICE))
    with pytest.raises(ValueError, match="column_sort does not support this call"):
        column_sort.using("triton")(torch.rand(1, 5000, 2, device=DEVICE))


def test_several_tiles_per_sample(monkeypatch):
    """Several tiles of rows and columns, as for large samples, but with small tiles for the interpreter."""
    monkeypatch.setattr(triton_sort, "aggregate_tile", lambda *_: AggregateTile(32, 16, 16, True, 4))
    attn_weights, v, lengths = make_inputs(2, 1, 19, 24, torch.float32)
    upstream = torch.randint(-3, 4, v.shape).to(v) * (torch.arange(19, device=DEVICE) < lengths[:, None])[:, :, None]
    results = []
    for backend in ("torch", "triton"):
        leaves = attn_weights.clone().requires_grad_(), v.clone().requires_grad_()
        actual = aggregate_sort.using(backend)(*leaves, lengths)
        results.append([actual.detach() * upstream, *torch.autograd.grad(actual, leaves, upstream)])
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_compiled_functions_run_the_kernels():
    attn_weights, v, lengths = make_inputs(2, 2, 9, 8, torch.float32)
    sort, results = aggregate_sort.using("triton"), []
    torch._dynamo.reset()

    def run(attn_weights, v):
        return sort(attn_weights, v, lengths, "descending", 0.3).square()

    for function in (run, torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=False)):
        leaves = attn_weights.clone().requires_grad_(), v.clone().requires_grad_()
        torch.manual_seed(0)
        with torch.profiler.profile() as profile:
            out = function(*leaves)
            results.append([out.detach(), *torch.autograd.grad(out.sum(), leaves)])
    torch.testing.assert_close(*results)
    names = {event.name for event in profile.events()}
    assert {"graphslice::aggregate_sort", "graphslice::aggregate_sort_backward"} <= names


@pytest.mark.parametrize(("capability", "dtype"), [(70, torch.float32), (75, torch.bfloat16)])
def test_older_gpus_use_reference(capability, dtype, monkeypatch):
    """Triton's compiler aborts the process for a V100, and a T4 has no bfloat16 instructions."""
    attn_weights, v, lengths = make_inputs(1, 1, 3, 8, dtype)
    bonds = torch.zeros(1, 3, 3, dtype=torch.int16, device=DEVICE)
    calls = {"aggregate_sort": (attn_weights, v, lengths), "bond_messages": (v, bonds, v[0], v[0]), "column_sort": (v,)}
    for name, args in list(calls.items())[: 3 if capability == 70 else 2]:  # a sort needs no arithmetic
        monkeypatch.setattr(sys.modules[f"graphslice.ops.{name}"], "capability", lambda _: capability)
        with pytest.raises(ValueError, match="does not support"):
            OPERATORS[name].using("triton")(*args)
