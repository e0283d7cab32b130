"""The GPU's sorts, in Triton's interpreter where there is no GPU."""

import sys

import pytest
import torch

from graphslice.ops import aggregate_sort, column_sort
from graphslice.ops.aggregate_sort import _triton_aggregate_sort, _triton_backward
from graphslice.ops.triton_tiles import AggregateTile

pytest.importorskip("triton")
triton_sort = pytest.importorskip("graphslice.ops.triton_sort")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def descending(channels: int) -> torch.Tensor:
    return (torch.arange(channels) % 3 == 1).to(DEVICE)


def problem(batch: int, heads: int, width: int, head_dim: int, dtype: torch.dtype):
    """Sixteenths and small whole numbers: their products are exact, so the order is one and the same."""
    torch.manual_seed(width)
    attn_weights = torch.randint(0, 5, (batch, heads, width, width)) / 16
    v = torch.randint(-4, 5, (batch, width, heads * head_dim)).float()
    lengths = torch.randint(1, width + 1, (batch,))
    attn_weights *= (torch.arange(width) < lengths[:, None])[
        :, None, None
    ]  # no bf16 rounding, nothing from the padding
    return attn_weights.to(DEVICE, dtype), v.to(DEVICE, dtype), lengths.to(DEVICE)


def test_nothing_comes_from_the_padding():
    attn_weights, v, lengths = problem(2, 2, 9, 8, torch.float32)
    lengths[:] = torch.tensor([4, 9])
    leaves = attn_weights.requires_grad_(), v.requires_grad_()
    found = aggregate_sort.using("triton")(*leaves, lengths)
    assert not found[0, 4:].any()
    of_attn_weights, _ = torch.autograd.grad(found, leaves, torch.ones_like(found))
    assert not of_attn_weights[0, :, 4:].any() and of_attn_weights[0, :, :4].any()


def values_and_gradients(backend: str, attn_weights, v, lengths):
    """What sorts of these give by a backend but for the padding, and the gradients of its sum of squares."""
    found, rows = [], (torch.arange(v.shape[1], device=DEVICE) < lengths[:, None])[:, :, None]
    for op, leaves in ((aggregate_sort, (attn_weights, v)), (column_sort, (v,))):
        leaves = [leaf.clone().requires_grad_() for leaf in leaves]
        values = op.using(backend)(*leaves, lengths) * rows
        found += [values.detach(), *torch.autograd.grad(values.square().sum(), leaves)]
    return found


def test_one_length_may_stand_for_all_samples():
    """As a tensor of the stride 0, behind which is other memory."""
    attn_weights, v, _ = problem(3, 2, 9, 8, torch.float32)
    lengths = torch.tensor([4], device=DEVICE).expand(3)
    given = [values_and_gradients(backend, attn_weights, v, lengths) for backend in ("triton", "torch")]
    for one, other in zip(*given, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_lengths_beyond_the_rows_are_those_of_all():
    attn_weights, v, _ = problem(3, 2, 5, 8, torch.float32)
    beyond, whole = torch.tensor([5, 12, 2**40], device=DEVICE), torch.tensor([5, 5, 5], device=DEVICE)
    given = [values_and_gradients("triton", attn_weights, v, lengths) for lengths in (beyond, whole)]
    for one, other in zip(*given, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    seed = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    ranks = _triton_aggregate_sort(attn_weights, v, beyond, descending(16), seed, 0.0)[1]
    assert (ranks.sort(1).values == torch.arange(5, device=DEVICE)[:, None]).all()  # every row went somewhere


def test_opcheck():
    attn_weights, v, lengths = problem(1, 2, 3, 8, torch.float32)
    seed = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    arguments = (attn_weights.requires_grad_(), v.requires_grad_(), lengths, descending(16), seed, 0.1)
    torch.library.opcheck(_triton_aggregate_sort, arguments)
    ranks = _triton_aggregate_sort(*arguments)[1]
    arguments = (v.detach(), attn_weights.detach(), v.detach(), lengths, seed, ranks, 0.1)
    torch.library.opcheck(_triton_backward, arguments)


def test_what_is_too_long_or_of_another_dtype_is_refused():
    with pytest.raises(ValueError, match="1, 129, 8"):
        aggregate_sort.using("triton")(torch.rand(1, 1, 129, 129), torch.rand(1, 129, 8), torch.tensor([129]))
    with pytest.raises(ValueError, match="float64"):
        column_sort.using("triton")(torch.rand(1, 3, 8, dtype=torch.float64, device=DEVICE))
    with pytest.raises(ValueError, match="1, 5000, 2"):
        column_sort.using("triton")(torch.rand(1, 5000, 2, device=DEVICE))


def test_a_sample_may_be_cut_into_several_tiles(monkeypatch):
    """Of rows and of columns, as large ones are; small ones here, for the interpreter."""
    monkeypatch.setattr(triton_sort, "aggregate_tile", lambda *_: AggregateTile(32, 16, 16, True, 4))
    attn_weights, v, lengths = problem(2, 1, 19, 24, torch.float32)
    upstream = torch.randint(-3, 4, v.shape).to(v) * (torch.arange(19, device=DEVICE) < lengths[:, None])[:, :, None]
    results = []
    for backend in ("torch", "triton"):
        leaves = attn_weights.clone().requires_grad_(), v.clone().requires_grad_()
        found = aggregate_sort.using(backend)(*leaves, lengths)
        results.append([found.detach() * upstream, *torch.autograd.grad(found, leaves, upstream)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_older_gpus_take_the_reference(monkeypatch):
    """On a V100 Triton's compiler aborts the process."""
    attn_weights, v, lengths = problem(1, 1, 3, 8, torch.float32)
    for module in ("aggregate_sort", "column_sort"):
        monkeypatch.setattr(sys.modules[f"graphslice.ops.{module}"], "capability", lambda _: (7, 0))
    for op, args in ((aggregate_sort, (attn_weights, v, lengths)), (column_sort, (v,))):
        assert op.choose(*args) != "triton"
        with pytest.raises(ValueError, match="does not take"):
            op.using("triton")(*args)


def test_a_kernel_starts_on_the_device_of_its_tensors(started_on):
    """Not on the current one, which on a machine of several GPUs may be another."""
    attn_weights, v, lengths = problem(1, 1, 3, 8, torch.float32)
    aggregate_sort.using("triton")(attn_weights.requires_grad_(), v, lengths).sum().backward()
    column_sort.using("triton")(v)
    assert started_on == [v.device] * 3
