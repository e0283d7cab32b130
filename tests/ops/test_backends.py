"""Values and gradients of every backend of every operator, compared with its reference."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphslice.doctor.checks import CASES, TYPICAL, Case, arguments, is_float, outputs_and_gradients
from graphslice.ops import OPERATORS
from graphslice.ops.dispatch import DEVICE_TYPES, Operator
from graphslice.program import run

SHARE_ENDS = run.share_ends

DEVICES = {"numba": "cpu", "triton": "cuda" if torch.cuda.is_available() else "cpu"}


def calls() -> list:
    params = []
    for name, op in OPERATORS.items():
        cases = CASES[name](torch.Generator().manual_seed(0)) if name in CASES else []
        for backend_name, backend in op.backends.items():
            for dtype in backend.dtypes:
                # Triton's interpreter is slow, so it gets no large case, and each 16-bit dtype half of the others.
                interpreted = DEVICES[backend_name] != DEVICE_TYPES[backend_name]
                selection = {torch.bfloat16: slice(0, None, 2), torch.float16: slice(1, None, 2)} if interpreted else {}
                for number, case in list(enumerate(cases))[selection.get(dtype, slice(None))]:
                    if interpreted and max(arg.numel() for arg in case.args if isinstance(arg, Tensor)) > 4000:
                        continue
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
    torch.testing.assert_close(without_grad[rows], actual[0][rows], rtol=0, atol=0, equal_nan=True)


# Numbers of heads and channels per head: 16 divides their product.
HEADS = [(1, 16), (2, 8), (4, 12), (2, 24), (1, 48), (4, 20), (2, 40), (8, 10), (16, 9)]


@pytest.mark.parametrize(
    "name", ["aggregate", "attention", "embed_atoms", "head_norm", "linear_attention", "path_bias"]
)
@settings(max_examples=30)
@given(st.integers(0, 2**20), st.sampled_from(HEADS), st.lists(st.integers(1, 21), min_size=1, max_size=3))
def test_kernels_match_reference_at_any_shape(name, seed, sizes, lengths):
    heads, head_dim = sizes if name != "head_norm" or sizes[1] % 8 == 0 else (2, 8)
    generator = torch.Generator().manual_seed(seed)
    check(OPERATORS[name], "numba", torch.float32, TYPICAL[name](generator, heads, head_dim, lengths))


@pytest.mark.parametrize("name", [name for name, op in OPERATORS.items() if "numba" in op.backends])
def test_kernels_match_reference_for_hundreds_of_samples(name):
    """Several groups of samples per core, the last one smaller than the others."""
    lengths = [1 + number % 7 for number in range(101)]
    check(OPERATORS[name], "numba", torch.float32, TYPICAL[name](torch.Generator().manual_seed(0), 2, 16, lengths))


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_compiles(name):
    """Without a graph break."""
    op, case = OPERATORS[name], CASES[name](torch.Generator().manual_seed(0))[-1]
    torch._dynamo.reset()
    actual = torch.compile(op, backend="eager", fullgraph=True)(*case.args)
    rows = ... if case.valid is None else case.valid
    torch.testing.assert_close(actual[rows], op(*case.args)[rows], rtol=1e-4, atol=1e-5)


def largest_cases() -> list:
    last = {
        param.values[0]: param for param in calls() if param.values[1] == "numba" and not param.values[3].unsupported_by
    }
    return [pytest.param(*param.values, id=name) for name, param in last.items()]


#: Arguments that all samples share. Every core sums their gradients over its samples.
SHARED = {"values", "types", "rings", "table", "in_degree", "out_degree", "token", "scales", "shifts"}


def names_of(name: str) -> list[str]:
    return list(inspect.signature(OPERATORS[name]).parameters)


@pytest.mark.parametrize("name", [name for name, op in OPERATORS.items() if "numba" in op.backends])
def test_result_is_independent_of_number_of_threads(name, monkeypatch):
    monkeypatch.setattr(run, "_MIN_ROWS", 1)
    ranges = []
    monkeypatch.setattr(run, "share_ends", lambda *args: ranges.append(SHARE_ENDS(*args)) or ranges[-1])
    case, actual = TYPICAL[name](torch.Generator().manual_seed(0), 2, 16, [9, 4, 7, 2, 8]), []
    args = arguments(case, torch.float32, torch.device("cpu"))
    for count in (1, 3):
        torch.set_num_threads(count)
        actual.append(outputs_and_gradients(OPERATORS[name].using("numba"), args))
    assert [len(ends) for ends in ranges] == ([] if name == "path_values" else [1, 3])  # path_values has no samples
    leaves = [name for name, arg in zip(names_of(name), args, strict=False) if is_float(arg)]
    for argument, one, other in zip(["result", *leaves], *actual, strict=True):
        rtol = 1e-5 if argument in SHARED and name != "path_values" else 0
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol, equal_nan=True)


@pytest.mark.parametrize(("name", "backend", "dtype", "case"), largest_cases())
def test_non_contiguous_arguments(name, backend, dtype, case):
    def strided(arg: object) -> object:
        if not isinstance(arg, Tensor) or arg.dim() < 1:
            return arg
        other = torch.stack([arg.detach(), arg.detach()], dim=-1)[..., 0]
        if arg.dim() > 1:
            other = arg.detach().transpose(-1, -2).contiguous().transpose(-1, -2)
        return other.requires_grad_() if is_float(arg) else other

    args = arguments(case, dtype, torch.device("cpu"))
    actual = outputs_and_gradients(OPERATORS[name].using(backend), [strided(arg) for arg in args])
    torch.testing.assert_close(
        actual, outputs_and_gradients(OPERATORS[name].using(backend), args), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize(("name", "backend", "dtype", "case"), largest_cases())
def test_non_contiguous_upstream_gradients(name, backend, dtype, case):
    args = arguments(case, dtype, torch.device("cpu"))
    leaves = [arg for arg in args if is_float(arg)]

    def gradients(expanded: bool) -> tuple[Tensor, ...]:
        out = OPERATORS[name].using(backend)(*args)
        upstream = torch.full((), 0.5, dtype=out.dtype).expand(out.shape)
        return torch.autograd.grad(out, leaves, upstream if expanded else upstream.contiguous())

    torch.testing.assert_close(gradients(True), gradients(False), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_has_cases_and_supports_empty_batch(name):
    assert name in CASES and name in TYPICAL, f"add cases of {name} to graphslice/doctor/checks.py"
    assert OPERATORS[name].backends, f"{name} has no backend: make it a plain function"
    case = CASES[name](torch.Generator().manual_seed(0))[-1]
    first = next(arg for arg in case.args if is_float(arg) and arg.dim())
    if name in ("path_softmax", "path_bias", "path_values", "embed_atoms"):
        first = case.args[{"path_softmax": 1, "path_bias": 1, "path_values": 5, "embed_atoms": 0}[name]]
    empty = [
        arg[:0] if isinstance(arg, Tensor) and arg.dim() and len(arg) == len(first) and argument not in SHARED else arg
        for argument, arg in zip(names_of(name), case.args, strict=False)
    ]
    assert len(OPERATORS[name](*empty)) == (name == "path_values")  # the graph token has a row
