"""Values and gradients of every backend of every operator, compared with its reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphslice import threads
from graphslice.doctor.operator_cases import CASES, TYPICAL, Case
from graphslice.doctor.operators import arguments, is_float, outputs_and_gradients
from graphslice.ops import OPERATORS
from graphslice.ops.dispatch import DEVICE_TYPES, Operator

DEVICES = {"numba": "cpu", "triton": "cuda" if torch.cuda.is_available() else "cpu"}


def calls() -> list:
    """Return all combinations of operator, backend, dtype and case."""
    params = []
    for name, op in OPERATORS.items():
        cases = CASES[name](torch.Generator().manual_seed(0)) if name in CASES else []
        for backend_name, backend in op.backends.items():
            for dtype in backend.dtypes:
                # Triton's interpreter is slow, so each 16-bit dtype gets half of the cases.
                interpreted = DEVICES[backend_name] != DEVICE_TYPES[backend_name]
                selection = {torch.bfloat16: slice(0, None, 2), torch.float16: slice(1, None, 2)} if interpreted else {}
                for number, case in list(enumerate(cases))[selection.get(dtype, slice(None))]:
                    label = f"{name}-{backend_name}-{str(dtype).removeprefix('torch.')}-{number}"
                    params.append(pytest.param(name, backend_name, dtype, case, id=label))
    return params


TOLERANCES = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-12},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 1e-2, "atol": 1e-5},
    torch.float16: {"rtol": 1e-2, "atol": 1e-5},
}


@pytest.mark.parametrize(("name", "backend", "dtype", "case"), calls())
def test_backend_matches_reference(name, backend, dtype, case):
    op, device = OPERATORS[name], DEVICES[backend]
    args = arguments(case, dtype, torch.device(device))
    if backend in case.unsupported_by:
        with pytest.raises(ValueError, match=f"the {backend} backend of {name} does not support"):
            op.using(backend)(*args)
        assert op.choose(*args) != backend
        return
    check(op, backend, dtype, case)


def check(op: Operator, backend: str, dtype: torch.dtype, case: Case) -> None:
    args = arguments(case, dtype, torch.device(DEVICES[backend]))
    actual = outputs_and_gradients(op.using(backend), args, case.valid)
    reference_args = arguments(case, dtype if case.same_dtype else torch.float64, torch.device(DEVICES[backend]))
    for one, other in zip(actual, outputs_and_gradients(op.reference, reference_args, case.valid), strict=True):
        torch.testing.assert_close(one.double(), other.double(), equal_nan=True, **TOLERANCES[dtype])
    with torch.no_grad():
        without_grad = op.using(backend)(*args)
    rows = ... if case.valid is None else case.valid
    for one, other in zip(without_grad if isinstance(without_grad, tuple) else (without_grad,), actual, strict=False):
        torch.testing.assert_close(one[rows], other[rows], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["aggregate", "aggregate_sort", "attention", "linear_attention"])
@settings(max_examples=30)
@given(
    st.integers(0, 2**20),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([8, 10, 16, 24, 40]),
    st.lists(st.integers(1, 21), min_size=1, max_size=3),
)
def test_attention_kernels_match_reference_at_any_shape(name, seed, heads, head_dim, lengths):
    generator = torch.Generator().manual_seed(seed)
    check(OPERATORS[name], "numba", torch.float32, TYPICAL[name](generator, heads, head_dim, lengths))


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_compiles(name):
    """Without a graph break, except for path_softmax, which reads its values."""
    op, case = OPERATORS[name], CASES[name](torch.Generator().manual_seed(0))[-1]
    torch._dynamo.reset()
    actual = torch.compile(op, backend="eager", fullgraph=name != "path_softmax")(*case.args)
    rows = ... if case.valid is None else case.valid
    outs = (out if isinstance(out, tuple) else (out,) for out in (actual, op(*case.args)))
    for one, other in zip(*outs, strict=True):
        torch.testing.assert_close(one[rows], other[rows], rtol=1e-4, atol=1e-5)


def largest_cases() -> list:
    """Return the last supported case of each CPU backend."""
    last = {
        param.values[0]: param for param in calls() if param.values[1] == "numba" and not param.values[3].unsupported_by
    }
    return [pytest.param(*param.values, id=name) for name, param in last.items()]


@pytest.mark.parametrize(("name", "backend", "dtype", "case"), largest_cases())
def test_result_is_independent_of_number_of_threads(name, backend, dtype, case, monkeypatch):
    monkeypatch.setattr(threads, "_MIN_VALUES", 1)
    actual = []
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            actual.append(
                outputs_and_gradients(OPERATORS[name].using(backend), arguments(case, dtype, torch.device("cpu")))
            )
        finally:
            torch.set_num_threads(1)
    for one, other in zip(*actual, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "backend", "dtype", "case"), largest_cases())
def test_non_contiguous_arguments(name, backend, dtype, case):
    def strided(arg: object) -> object:
        if not is_float(arg) or arg.dim() < 2:
            return arg
        return arg.detach().transpose(-1, -2).contiguous().transpose(-1, -2).requires_grad_()

    args = arguments(case, dtype, torch.device("cpu"))
    actual = outputs_and_gradients(OPERATORS[name].using(backend), [strided(arg) for arg in args])
    for one, other in zip(actual, outputs_and_gradients(OPERATORS[name].using(backend), args), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "backend", "dtype", "case"), largest_cases())
def test_non_contiguous_upstream_gradients(name, backend, dtype, case):
    """Such as that of a sum, which is an expanded scalar."""
    args = arguments(case, dtype, torch.device("cpu"))
    leaves = [arg for arg in args if is_float(arg)]

    def gradients(expanded: bool) -> tuple[Tensor, ...]:
        outs = OPERATORS[name].using(backend)(*args)
        outs = outs if isinstance(outs, tuple) else (outs,)
        upstream = [torch.full((), 0.5, dtype=out.dtype).expand(out.shape) for out in outs]
        return torch.autograd.grad(outs, leaves, upstream if expanded else [grad.contiguous() for grad in upstream])

    for one, other in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_has_cases_and_supports_empty_batch(name):
    assert name in CASES and name in TYPICAL, f"add cases of {name} to graphslice/doctor/operator_cases.py"
    assert OPERATORS[name].backends, f"{name} has no backend: make it a plain function"
    case = CASES[name](torch.Generator().manual_seed(0))[-1]
    first = next(arg for arg in case.args if is_float(arg) and arg.dim())
    if name in ("path_softmax", "path_values"):
        first = case.args[{"path_softmax": 1, "path_values": 5}[name]]
    empty = [arg[:0] if isinstance(arg, Tensor) and arg.dim() and len(arg) == len(first) else arg for arg in case.args]
    out = OPERATORS[name](*empty)
    token = name == "path_values"  # the graph token has a row
    assert len(out[0] if isinstance(out, tuple) else out) == token
