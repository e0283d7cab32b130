"""Values and gradients of every backend of every operator, compared with its reference."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphslice.doctor.checks import (
    CASES,
    LARGE_SHAPES,
    SHAPES,
    Case,
    arguments,
    case_of,
    is_float,
    outputs_and_gradients,
)
from graphslice.ops import OPERATORS
from graphslice.ops.dispatch import DEVICE_TYPES, Operator
from graphslice.program import run

SHARE_ENDS = run.share_ends
CPU = torch.device("cpu")
DEVICES = {"numba": CPU, "triton": torch.device("cuda" if torch.cuda.is_available() else "cpu")}
#: Names of the operators with kernels for a CPU.
WITH_KERNELS = [name for name, op in OPERATORS.items() if "numba" in op.backends]
TOLERANCES = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 1e-2, "atol": 1e-5},
    torch.float16: {"rtol": 1e-2, "atol": 1e-5},
}


SHAPE = 2, 16, [9, 4, 7, 2, 8]


def calls() -> list:
    params = []
    for name, op in OPERATORS.items():
        for backend_name, backend in op.backends.items():
            for dtype in backend.dtypes:
                # Triton's interpreter is slow, so it gets one case of each dtype.
                interpreted = DEVICES[backend_name].type != DEVICE_TYPES[backend_name]
                shapes = SHAPES + (LARGE_SHAPES if backend_name == "triton" else [])
                for shape in [(2, 8, [7, 3])] if interpreted else shapes:
                    label = f"{name}-{backend_name}-{str(dtype).removeprefix('torch.')}-{shape}"
                    params.append(pytest.param(name, backend_name, dtype, shape, id=label))
    return params


@pytest.mark.parametrize(("name", "backend", "dtype", "shape"), calls())
def test_backend_matches_reference(name, backend, dtype, shape):
    check(OPERATORS[name], backend, dtype, case_of(name, *shape))


def check(op: Operator, backend: str, dtype: torch.dtype, case: Case) -> None:
    args = arguments(case, dtype, DEVICES[backend])
    actual = outputs_and_gradients(op.using(backend), args, case.valid)
    reference_args = arguments(case, dtype if case.same_dtype else torch.float64, DEVICES[backend])
    for one, other in zip(actual, outputs_and_gradients(op.reference, reference_args, case.valid), strict=True):
        torch.testing.assert_close(one.double(), other.double(), equal_nan=True, **TOLERANCES[dtype])
    with torch.no_grad():
        without_grad = valid_part(op.using(backend)(*args), case)
    torch.testing.assert_close(without_grad, actual[0], rtol=0, atol=0, equal_nan=True)


def valid_part(out: Tensor, case: Case) -> Tensor:
    return out if case.valid is None else out.masked_fill(~case.valid.to(out.device), 0)


# Numbers of heads and channels per head: 16 divides their product.
HEADS = [(1, 16), (2, 8), (4, 12), (2, 24), (1, 48), (4, 20), (2, 40), (8, 10), (16, 9)]


@pytest.mark.parametrize("name", ["aggregate", "attention"])  # the others are compared with a loop
@settings(max_examples=30)
@given(st.integers(0, 2**20), st.sampled_from(HEADS), st.lists(st.integers(1, 21), min_size=1, max_size=3))
def test_kernels_match_reference_at_any_shape(name, seed, sizes, lengths):
    case = case_of(name, *sizes, lengths, seed)
    check(OPERATORS[name], "numba", torch.float32, case)


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_kernels_match_reference_for_hundreds_of_samples(name):
    """Several groups of samples per core, the last one smaller than the others."""
    lengths = [1 + number % 7 for number in range(101)]
    check(OPERATORS[name], "numba", torch.float32, case_of(name, 2, 16, lengths))


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_compiles(name):
    """Without a graph break."""
    op, case = OPERATORS[name], case_of(name, *SHAPE)
    torch._dynamo.reset()
    actual = torch.compile(op, backend="eager", fullgraph=True)(*case.args)
    expected = valid_part(op(*case.args), case)
    torch.testing.assert_close(valid_part(actual, case), expected, rtol=1e-4, atol=1e-5, equal_nan=True)


#: Arguments that all samples share. Every core sums their gradients over its samples.
SHARED = {"values", "types", "rings", "table", "in_degree", "out_degree", "token", "scales", "shifts"}


def names_of(name: str) -> list[str]:
    return list(inspect.signature(OPERATORS[name]).parameters)


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_result_is_independent_of_number_of_threads(name, monkeypatch):
    monkeypatch.setattr(run, "_MIN_ROWS", 1)
    ranges = []
    monkeypatch.setattr(run, "share_ends", lambda *args: ranges.append(SHARE_ENDS(*args)) or ranges[-1])
    case, actual = case_of(name, *SHAPE), []
    args = arguments(case, torch.float32, CPU)
    for count in (1, 3):
        torch.set_num_threads(count)
        actual.append(outputs_and_gradients(OPERATORS[name].using("numba"), args, case.valid))
    assert [len(ends) for ends in ranges] == ([] if name == "path_values" else [1, 3])  # path_values has no samples
    leaves = [name for name, arg in zip(names_of(name), args, strict=False) if is_float(arg)]
    for argument, one, other in zip(["result", *leaves], *actual, strict=True):
        rtol = 1e-5 if argument in SHARED and name != "path_values" else 0
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol, equal_nan=True)


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_non_contiguous_arguments_and_upstream_gradients(name):
    def strided(arg: object) -> object:
        if not isinstance(arg, Tensor) or arg.dim() < 1:
            return arg
        other = torch.stack([arg.detach(), arg.detach()], dim=-1)[..., 0]
        if arg.dim() > 1:
            other = arg.detach().transpose(-1, -2).contiguous().transpose(-1, -2)
        return other.requires_grad_() if is_float(arg) else other

    case, results = case_of(name, *SHAPE), []
    args = arguments(case, torch.float32, CPU)
    for given_args, expanded in ((args, False), ([strided(arg) for arg in args], True)):
        out = valid_part(OPERATORS[name].using("numba")(*given_args), case)
        upstream = torch.full((), 0.5).expand(out.shape)
        leaves = [arg for arg in given_args if is_float(arg)]
        results.append([out, *torch.autograd.grad(out, leaves, upstream if expanded else upstream.contiguous())])
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_has_a_case_and_supports_an_empty_batch(name):
    assert name in CASES, f"add a case of {name} to graphslice/doctor/checks.py"
    assert OPERATORS[name].backends, f"{name} has no backend: make it a plain function"
    args = case_of(name, 2, 16, [2] * 7).args
    empty = [
        arg[:0] if isinstance(arg, Tensor) and len(arg) == 7 and argument not in SHARED else arg
        for argument, arg in zip(names_of(name), args, strict=False)
    ]
    if name == "path_values":  # it has path types in place of samples
        empty = [*args[:5], *(arg[:0] for arg in args[5:])]
    assert len(OPERATORS[name](*empty)) == (name == "path_values")  # the graph token has a row
