"""Selection of backends."""

import inspect
import pydoc

import pytest
import torch
from torch import Tensor

from graphslice import ops
from graphslice.ops.dispatch import OPERATORS, Operator, operator
from graphslice.program.function import run_program
from graphslice.program.layout import N
from graphslice.program.trace import RULES, Trace

x = torch.randn(3, 16)


@pytest.fixture
def removed_afterwards():
    before = set(OPERATORS)
    yield
    for name in set(OPERATORS) - before:
        RULES.pop(OPERATORS.pop(name))


@pytest.fixture
def double(removed_afterwards):
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

    return double


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
        with pytest.raises(ValueError, match=r"^the numba backend of double does not support this call"):
            double.using("numba")(*args)
    with pytest.raises(ValueError, match="no backend 'quick' on this machine: choose from torch, triton, numba"):
        double.using("quick")


def test_triton_runs_on_cpu_only_when_forced_and_interpreted(double, monkeypatch):
    monkeypatch.setattr("graphslice.ops.dispatch.TRITON_INTERPRETED", True)
    assert double.choose(x, 5) == "torch"
    assert double.using("triton")(x) == "triton"
    monkeypatch.setattr("graphslice.ops.dispatch.TRITON_INTERPRETED", False)
    with pytest.raises(ValueError, match="triton backend of double does not support"):
        double.using("triton")(x)


def test_arguments_by_name_and_optional_ones_run_on_the_kernel():
    v, lengths = torch.randn(1, 300, 16), torch.tensor([300])
    for kwargs in ({"order": "descending", "x": v}, {"x": v, "lengths": lengths}):
        assert ops.column_sort.choose(**kwargs) == "numba"
        assert torch.equal(ops.column_sort(**kwargs), ops.column_sort.reference(**kwargs))


def test_compiled_graph_contains_reference():
    chosen = []

    def run(x: Tensor) -> Tensor:
        chosen.append(ops.column_sort.choose(x))
        return ops.column_sort(x)

    x = torch.randn(2, 3, 16)
    compiled = torch.compile(run, backend="eager", fullgraph=True, dynamic=True)
    assert torch.equal(compiled(x), ops.column_sort.reference(x))
    assert set(chosen) == {"torch"}


def test_operator_without_backend_is_traced_by_its_reference(removed_afterwards):
    @operator
    def gelu_of_twice(x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(2.0 * x)

    trace = Trace(backward=True)
    program = trace.finish(gelu_of_twice(trace.input(0, (N, 16))))
    v = torch.randn(2, 3, 16, requires_grad=True)
    actual, expected = run_program(program, [v], 2, 3), torch.nn.functional.gelu(2 * v)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    grads = [torch.autograd.grad(out.sum(), v)[0] for out in (actual, expected)]
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-6)


def test_package_exports_every_operator():
    assert all(isinstance(op, Operator) and getattr(ops, name) is op for name, op in OPERATORS.items())
