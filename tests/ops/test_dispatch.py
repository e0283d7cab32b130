"""Selection of backends."""

from __future__ import annotations

import inspect
import pydoc

import pytest
import torch
from torch import Tensor

from graphslice import ops
from graphslice.ops.dispatch import OPERATORS, Operator, operator

x = torch.randn(3, 16)


@pytest.fixture
def double():
    """An operator with two backends; every function returns its own name."""

    @operator
    def double(x: Tensor, times: int = 2) -> str:
        """Twice ``x``."""
        return "torch"

    @double.backend("triton", dtypes=(torch.float32,))
    def _triton(x: Tensor, times: int = 2) -> str:
        return "triton"

    @double.backend("numba", dtypes=(torch.float32, torch.float64), fits=lambda x, times=2: times < 5)
    def _numba(x: Tensor, times: int = 2) -> str:
        return "numba"

    yield double
    del OPERATORS["double"]


def test_operator_has_signature_and_docstring_of_reference(double):
    assert OPERATORS["double"] is double and list(double.backends) == ["triton", "numba"]
    assert list(inspect.signature(double).parameters) == ["x", "times"]
    assert double.__name__ == "double" and "Twice" in pydoc.render_doc(double)
    assert "double" in repr(double) and "numba" in repr(double)
    assert double.reference(x) == double.using("torch")(x) == "torch"


def test_device_dtype_and_shape_select_backend(double):
    for expected, calls in {
        "numba": [(x,), (x.double(),), (x, 4)],
        "torch": [(x.half(),), (x.long(),), (x, 5), (x[:0],), (x.to("meta"),), (x, x.double()), (x, x.to("meta"))],
    }.items():
        for args in calls:
            assert double(*args) == double.choose(*args) == expected, args
    assert double(x=x, times=4) == "numba"
    assert double(times=5, x=x) == "torch"


def test_forced_backend_rejects_unsupported_tensors(double):
    for args in [(x.half(),), (x, 5), (x[:0],), (x.to("meta"),)]:
        with pytest.raises(
            ValueError, match=r"^the numba backend of double does not support float(16|32) \[\d, 16\] on"
        ):
            double.using("numba")(*args)
    with pytest.raises(ValueError, match="no backend 'quick' on this machine: choose from torch, triton, numba"):
        double.using("quick")


def test_triton_runs_on_cpu_only_when_forced_and_interpreted(double, monkeypatch):
    monkeypatch.setattr("graphslice.ops.dispatch.TRITON_INTERPRETED", True)
    assert double.choose(x, 5) == "torch"
    assert double.using("triton")(x) == "triton"
    monkeypatch.setattr("graphslice.ops.dispatch.TRITON_INTERPRETED", False)
    with pytest.raises(ValueError, match="on cuda"):
        double.using("triton")(x)


def test_every_operator_has_its_own_shape_limits():
    v, weights, lengths = torch.randn(1, 300, 16), torch.rand(1, 2, 300, 300), torch.tensor([300])
    assert ops.gelu.choose(x) == "numba"
    assert ops.gelu.choose(x[:, :5]) == ops.add_norm.choose(x, x, x[0], x[0].double()) == "torch"
    assert ops.aggregate.choose(weights, v) == ops.column_sort.choose(v.bfloat16()) == "numba"
    assert ops.aggregate_sort.choose(weights, v, lengths) == ops.linear_attention.choose(v, v, v, lengths, 2) == "torch"
    assert ops.max_exchange.choose(v.double(), v[:, :, 0] > 9) == "numba"
    types = torch.zeros(1, 3, 3, dtype=torch.int16)
    for gap, expected in ((500.0, "numba"), (700.0, "torch")):
        assert ops.path_softmax.choose(torch.tensor([[0.0], [gap]]), types, torch.tensor([3])) == expected


def compiled(function, *args, dynamic: bool = False):
    return torch.compile(function, backend="eager", fullgraph=True, dynamic=dynamic)(*args)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_graph_contains_reference(dynamic):
    chosen = []

    def run(x: Tensor) -> Tensor:
        chosen.append(ops.gelu.choose(x))
        return ops.gelu(x)

    assert torch.equal(compiled(run, x, dynamic=dynamic), ops.gelu.reference(x))
    assert set(chosen) == {"torch"}


@pytest.mark.parametrize("dynamic", [False, True])
def test_compilable_backend_is_in_compiled_graph(dynamic):
    v = torch.randn(2, 7, 16)
    targets = []

    def record_targets(graph: torch.fx.GraphModule, _):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    result = torch.compile(ops.column_sort, backend=record_targets, fullgraph=True, dynamic=dynamic)(
        v, order="descending"
    )
    assert torch.equal(result, v.sort(dim=1, descending=True).values)
    assert any("graphslice.column_sort" in target for target in targets)


def test_forced_uncompilable_backend_raises_in_compiled_graph():
    def forced(x: Tensor) -> Tensor:
        try:
            return ops.gelu.using("numba")(x)
        except ValueError:  # caught inside, since torch 2.6 does not propagate the type of the error
            return x + 1

    assert torch.equal(compiled(forced, x), x + 1)
    assert not torch.equal(forced(x), x + 1)


def test_package_exports_every_operator():
    assert all(isinstance(op, Operator) and getattr(ops, name) is op for name, op in OPERATORS.items())
