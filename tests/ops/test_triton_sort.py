"""Triton kernels of column_sort, interpreted without a GPU."""

import sys

import numpy as np
import pytest
import torch
from test_column_sort import SPECIAL, order_of, reference_sort

from graphslice.ops import OPERATORS, aggregate, column_sort

pytest.importorskip("triton")
triton_sort = pytest.importorskip("graphslice.ops.triton_sort")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


FULL, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
# Beyond 64 rows, threads share a column. Few programs, as the interpreter takes half a second for one.
SIZES = [(1, 3, FULL), (7, 35, BRAIN), (24, 3, FULL), (24, 3, HALF), (64, 3, BRAIN), (70, 3, FULL), (70, 3, HALF)]


@pytest.mark.parametrize(("rows", "channels", "dtype"), SIZES)
def test_sort_and_gradient_match_numpy_for_special_values(rows, channels, dtype):
    """Ties, nan of both signs, infinities, zeros of both signs, subnormals; an empty sample, and padding."""
    random, shape = np.random.default_rng(rows), (3, rows, channels)
    x = random.integers(-3, 3, shape).astype(np.float32)
    special = random.random(shape) < 0.3
    smallest = float(torch.finfo(dtype).smallest_normal)
    if dtype != torch.bfloat16 or DEVICE == "cuda":  # the interpreter rounds its subnormals to 0
        smallest /= 4
    x[special] = random.choice(np.array([*SPECIAL, -0.0, -np.nan, smallest, -smallest], np.float32), special.sum())
    lengths, (order, descending) = [rows, 0, (rows + 1) // 2], order_of("mask", channels)
    leaf = torch.from_numpy(x).to(DEVICE, dtype).requires_grad_()
    sorted_x, source = reference_sort(leaf.detach().double().cpu().numpy(), lengths, descending)
    upstream = torch.from_numpy(random.normal(size=shape)).to(DEVICE, dtype)
    expected = np.empty(shape)
    np.put_along_axis(expected, source, upstream.double().cpu().numpy(), axis=1)
    actual = column_sort.using("triton")(leaf, torch.tensor(lengths, device=DEVICE), order.to(DEVICE))
    (gradient,) = torch.autograd.grad(actual, leaf, upstream)
    assert actual.dtype == gradient.dtype == dtype
    np.testing.assert_array_equal(actual.detach().double().cpu().numpy(), sorted_x)
    np.testing.assert_array_equal(gradient.double().cpu().numpy(), expected)


def test_lengths_and_upstream_may_be_expanded_and_lengths_are_clamped():
    """In a tensor of stride 0, reading consecutive elements would access other memory."""
    results = []
    for backend, length in (("triton", 2**40), ("torch", 5)):
        leaf = (torch.arange(2.0 * 5 * 16, device=DEVICE) % 7).view(2, 5, 16).requires_grad_()
        lengths = torch.tensor([length], device=DEVICE).expand(2)
        actual = column_sort.using(backend)(leaf, lengths)
        upstream = torch.ones(1, device=DEVICE).expand(2, 5, 16)
        results.append([actual.detach(), *torch.autograd.grad(actual, leaf, upstream)])
    torch.testing.assert_close(*results, rtol=0, atol=0)
    _, origins = triton_sort.sort(leaf.detach(), lengths)
    assert (origins.sort(1).values == torch.arange(5, device=DEVICE)[:, None]).all()  # a permutation


def test_backward_keeps_a_byte_of_each_value_besides_the_operands_of_the_product():
    attn_weights = torch.rand(2, 2, 24, 24, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
    v = torch.rand(2, 24, 32, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.nbytes), lambda _: pytest.fail("not read")):
        column_sort.using("triton")(aggregate(attn_weights, v), torch.tensor([24, 9], device=DEVICE))
    assert sum(saved) == attn_weights.nbytes + v.nbytes + v.numel()


def test_rejects_too_many_rows_and_other_dtypes():
    for x in (torch.rand(1, 3, 8, dtype=torch.float64, device=DEVICE), torch.rand(1, 5000, 2, device=DEVICE)):
        with pytest.raises(ValueError, match="column_sort does not support this call"):
            column_sort.using("triton")(x)


def test_compiled_functions_run_the_kernels():
    sort, results, x = column_sort.using("triton"), [], torch.rand(2, 9, 16, device=DEVICE)
    lengths = torch.tensor([4, 9], device=DEVICE)
    torch._dynamo.reset()

    def run(x):
        return sort(x.sin(), lengths, "descending").square()

    for function in (run, torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=False)):
        leaf = x.clone().requires_grad_()
        with torch.profiler.profile() as profile:
            out = function(leaf)
            results.append([out.detach(), *torch.autograd.grad(out.sum(), leaf)])
    torch.testing.assert_close(*results)
    assert {"graphslice::sort", "graphslice::unsort"} <= {event.name for event in profile.events()}


@pytest.mark.parametrize(("capability", "dtype"), [(70, torch.float32), (75, torch.bfloat16)])
def test_older_gpus_use_reference(capability, dtype, monkeypatch):
    """Triton's compiler aborts the process for a V100, and a T4 has no bfloat16 instructions."""
    x = torch.rand(1, 3, 8, dtype=dtype, device=DEVICE)
    bonds = torch.zeros(1, 3, 3, dtype=torch.int16, device=DEVICE)
    calls = {"bond_messages": (x, bonds, x[0], x[0]), "column_sort": (x,)}
    for name, args in list(calls.items())[: 2 if capability == 70 else 1]:  # a sort needs no bfloat16 instructions
        monkeypatch.setattr(sys.modules[f"graphslice.ops.{name}"], "capability", lambda _: capability)
        with pytest.raises(ValueError, match="does not support"):
            OPERATORS[name].using("triton")(*args)
