"""Every backend of every operator against the operator's plain reference: values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphslice.ops import OPERATORS, threads
from graphslice.ops.dispatch import DEVICE_TYPES, Operator

DEVICES = {"numba": "cpu", "triton": "cuda" if torch.cuda.is_available() else "cpu"}


@dataclass
class Case:
    """The arguments of a call, in float32.

    Attributes:
        args: positional.
        refused_by: the backends that do not take it.
        valid: bool ``[B, N]``, the rows of the result that mean something; None for all.
        same_dtype: whether the reference runs in the dtype of the backend, not in float64: where rounding
            decides which values are equal.
    """

    args: tuple
    refused_by: tuple[str, ...] = ()
    valid: Tensor | None = None
    same_dtype: bool = False


#: The cases of each operator: a function of a generator for each.
CASES: dict[str, Callable[[torch.Generator], list[Case]]] = {}


def cases_of(name: str):
    def add(make: Callable[[torch.Generator], list[Case]]):
        CASES[name] = make
        return make

    return add


# Heads, channels of a head, and the lengths of samples: one row, a head of 8, of 16 over a whole and a broken
# vector of columns, of 32, and channels that are no multiple of 16.
SHAPES = [(1, 16, [1]), (2, 8, [7, 1, 3]), (4, 16, [19, 11]), (1, 32, [16, 9]), (2, 10, [5, 2])]
NARROW_HEADS = (2, 4, [6, 3])


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def with_ties(generator: torch.Generator, *shape: int) -> Tensor:
    """Few different values, whose sums and products with sixteenths are exact."""
    return torch.randint(-4, 5, shape, generator=generator).float()


def mask_of(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def weights(generator: torch.Generator, heads: int, lengths: list[int]) -> Tensor:
    """Sixteenths, 0 in the columns of the padding."""
    width = max(lengths)
    drawn = torch.randint(0, 5, (len(lengths), heads, width, width), generator=generator) / 16
    return drawn * mask_of(lengths)[:, None, None]


@cases_of("add_norm")
def add_norm_cases(generator):
    shapes = {(1, 16): (), (2, 7, 48): (), (130, 16): (), (5, 2, 80): (), (2, 3, 24): ("numba",), (4, 5): ("numba",)}
    return [
        Case(tuple(normal(generator, *size) for size in [shape, shape, *[shape[-1:]] * 2]), refused)
        for shape, refused in shapes.items()
    ]


def aggregate_case(generator, heads, head_dim, lengths, refused=()):
    drawn = torch.rand(len(lengths), heads, max(lengths), max(lengths), generator=generator)
    return Case((drawn, normal(generator, len(lengths), max(lengths), heads * head_dim)), refused)


@cases_of("aggregate")
def aggregate_cases(generator):
    case = partial(aggregate_case, generator)
    return [*(case(*shape) for shape in SHAPES), case(*NARROW_HEADS, ("numba",))]


def aggregate_sort_case(generator, heads, head_dim, lengths, refused=(), order="ascending"):
    v = with_ties(generator, len(lengths), max(lengths), heads * head_dim)
    args = (weights(generator, heads, lengths), v, torch.tensor(lengths), order)
    return Case(args, refused, mask_of(lengths), same_dtype=True)


@cases_of("aggregate_sort")
def aggregate_sort_cases(generator):
    case = partial(aggregate_sort_case, generator)
    return [
        *(case(*shape) for shape in (SHAPES[0], SHAPES[1], (1, 24, [19]), (2, 10, [5, 2]))),
        case(*NARROW_HEADS, ("numba",)),
        case(2, 8, [4, 7], order="descending"),
        case(2, 8, [4, 7], order=torch.arange(16) % 3 == 1),
    ]


def attention_case(generator, heads, head_dim, lengths, refused=(), bias_shape=None):
    batch, width = len(lengths), max(lengths)
    bias = 3 * normal(generator, *(bias_shape or (batch, heads, width, width)))
    bias = bias.masked_fill(~mask_of(lengths)[:, None, None], -torch.inf)
    return Case((*(normal(generator, batch, width, heads * head_dim) for _ in range(3)), bias, heads), refused)


@cases_of("attention")
def attention_cases(generator):
    case = partial(attention_case, generator)
    shared = case(2, 8, [4, 9], ("numba",), (2, 1, 1, 9))
    return [*(case(*shape) for shape in SHAPES), case(*NARROW_HEADS, ("numba",)), shared]


@cases_of("broadcast_max")
def broadcast_max_cases(generator):
    return [
        Case((draw(generator, len(lengths), max(lengths), channels), mask_of(lengths), torch.arange(channels) % 2 == 0))
        for channels, lengths in ((1, [1]), (9, [7, 1, 3]), (40, [19, 11]))
        for draw in (normal, with_ties)
    ]


@cases_of("column_sort")
def column_sort_cases(generator):
    cases = [
        Case((with_ties(generator, len(lengths), max(lengths), channels), torch.tensor(lengths), order))
        for channels, lengths, order in (
            (1, [1], "ascending"),
            (5, [7, 0, 3], "descending"),
            (5, [8, 2], "ascending"),
            (18, [5, 9], torch.arange(18) % 3 == 1),
        )
    ]
    special = with_ties(generator, 2, 8, 3)
    special.view(-1)[:40:4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0]).repeat(2)
    return [*cases, Case((special, torch.tensor([8, 6]))), Case((with_ties(generator, 1, 300, 1),))]


@cases_of("dropout")
def dropout_cases(generator):
    return [Case((normal(generator, *shape), 0.0)) for shape in ((), (1,), (3, 5), (2, 3, 32))]


@cases_of("gelu")
def gelu_cases(generator):
    shapes = {(1, 16): (), (4, 4): (), (3, 5, 48): (), (300, 32): (), (4, 7): ("numba",)}
    return [Case((3 * normal(generator, *shape),), refused) for shape, refused in shapes.items()]


def linear_attention_case(generator, heads, head_dim, lengths, refused=()):
    tensors = (normal(generator, len(lengths), max(lengths), heads * head_dim) for _ in range(3))
    return Case((*tensors, torch.tensor(lengths), heads), refused)


@cases_of("linear_attention")
def linear_attention_cases(generator):
    case = partial(linear_attention_case, generator)
    return [
        *(case(*shape) for shape in SHAPES),
        case(2, 8, [4, 0, 1]),
        case(*NARROW_HEADS, ("numba",)),
        case(1, 8, [257, 3], ("numba",)),
    ]


@cases_of("max_exchange")
def max_exchange_cases(generator):
    return [
        Case((draw(generator, len(lengths), max(lengths), channels), mask_of(lengths)))
        for channels, lengths in ((1, [1]), (9, [7, 1, 3]), (40, [19, 11]))
        for draw in (normal, with_ties)
    ]


@cases_of("path_softmax")
def path_softmax_cases(generator):
    def case(heads, lengths, scale, refused=()):
        width = max(lengths)
        types = torch.randint(0, 6, (len(lengths), width, width), generator=generator).to(torch.int16)
        types[~(mask_of(lengths)[:, :, None] & mask_of(lengths)[:, None])] = -1
        values = torch.linspace(-scale / 2, scale / 2, 7 * heads).view(7, heads)
        return Case((values, types, torch.tensor(lengths)), refused)

    return [case(3, [1], 1.0), case(3, [7, 1, 4], 3.0), case(2, [5, 9], 60.0), case(1, [3], 2000.0, ("numba",))]


def calls() -> list:
    """Every backend of every operator with every case and every dtype."""
    params = []
    for name, op in OPERATORS.items():
        made = CASES[name](torch.Generator().manual_seed(0)) if name in CASES else []
        for backend_name, backend in op.backends.items():
            for dtype in backend.dtypes:
                # Triton's interpreter is slow: there the two types of 16 bits share the cases.
                interpreted = DEVICES[backend_name] != DEVICE_TYPES[backend_name]
                taken = {torch.bfloat16: slice(0, None, 2), torch.float16: slice(1, None, 2)} if interpreted else {}
                for number, case in list(enumerate(made))[taken.get(dtype, slice(None))]:
                    label = f"{name}-{backend_name}-{str(dtype).removeprefix('torch.')}-{number}"
                    params.append(pytest.param(name, backend_name, dtype, case, id=label))
    return params


def moved(case: Case, dtype: torch.dtype, device: str) -> list:
    """The arguments, of which those in floating point are leaves."""
    args = [arg.detach().to(device) if isinstance(arg, Tensor) else arg for arg in case.args]
    return [arg.to(dtype, copy=True).requires_grad_() if is_float(arg) else arg for arg in args]


def is_float(arg: object) -> bool:
    return isinstance(arg, Tensor) and arg.is_floating_point()


def results(function: Callable, args: list, valid: Tensor | None = None) -> list[Tensor]:
    """What comes out, and the gradients of all arguments in floating point; 0 where a row means nothing."""
    outs = function(*args)
    outs = outs if isinstance(outs, tuple) else (outs,)
    if valid is not None:
        outs = tuple(out.masked_fill(~valid.to(out.device)[:, :, None], 0) for out in outs)
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randint(-3, 4, out.shape, generator=generator).to(out) for out in outs]
    gradients = torch.autograd.grad(outs, [arg for arg in args if is_float(arg)], upstream)
    return [tensor.detach() for tensor in (*outs, *gradients)]


TOLERANCES = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-12},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 1e-2, "atol": 1e-5},
    torch.float16: {"rtol": 1e-2, "atol": 1e-5},
}


@pytest.mark.parametrize(("name", "backend", "dtype", "case"), calls())
def test_a_backend_computes_what_the_reference_does(name, backend, dtype, case):
    op, device = OPERATORS[name], DEVICES[backend]
    args = moved(case, dtype, device)
    if backend in case.refused_by:
        with pytest.raises(ValueError, match=f"the {backend} backend of {name} does not take"):
            op.using(backend)(*args)
        assert op.choose(*args) != backend
        return
    check(op, backend, dtype, case)


def check(op: Operator, backend: str, dtype: torch.dtype, case: Case) -> None:
    args = moved(case, dtype, DEVICES[backend])
    found = results(op.using(backend), args, case.valid)
    plain = moved(case, dtype if case.same_dtype else torch.float64, DEVICES[backend])
    for one, other in zip(found, results(op.reference, plain, case.valid), strict=True):
        torch.testing.assert_close(one.double(), other.double(), equal_nan=True, **TOLERANCES[dtype])
    with torch.no_grad():
        again = op.using(backend)(*args)
    rows = ... if case.valid is None else case.valid
    for one, other in zip(again if isinstance(again, tuple) else (again,), found, strict=False):
        torch.testing.assert_close(one[rows], other[rows], rtol=0, atol=0, equal_nan=True)


BUILDERS = {
    "aggregate": aggregate_case,
    "aggregate_sort": aggregate_sort_case,
    "attention": attention_case,
    "linear_attention": linear_attention_case,
}


@pytest.mark.parametrize("name", BUILDERS)
@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**20),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([8, 10, 16, 24, 40]),
    st.lists(st.integers(1, 21), min_size=1, max_size=3),
)
def test_the_kernels_of_attention_at_any_shape(name, seed, heads, head_dim, lengths):
    generator = torch.Generator().manual_seed(seed)
    check(OPERATORS[name], "numba", torch.float32, BUILDERS[name](generator, heads, head_dim, lengths))


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_compiles(name):
    """Without a break in the graph, but for path_softmax, which looks at its values."""
    op, case = OPERATORS[name], CASES[name](torch.Generator().manual_seed(0))[1]
    torch._dynamo.reset()
    found = torch.compile(op, backend="eager", fullgraph=name != "path_softmax")(*case.args)
    rows = ... if case.valid is None else case.valid
    outs = (out if isinstance(out, tuple) else (out,) for out in (found, op(*case.args)))
    for one, other in zip(*outs, strict=True):
        torch.testing.assert_close(one[rows], other[rows], rtol=1e-4, atol=1e-5)


def largest_cases() -> list:
    """The last case that each backend for the CPU takes."""
    taken = {
        param.values[0]: param for param in calls() if param.values[1] == "numba" and not param.values[3].refused_by
    }
    return [pytest.param(*param.values, id=name) for name, param in taken.items()]


@pytest.mark.parametrize(("name", "backend", "dtype", "case"), largest_cases())
def test_threads_change_nothing(name, backend, dtype, case, monkeypatch):
    monkeypatch.setattr(threads, "_MIN_VALUES", 1)
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            found.append(results(OPERATORS[name].using(backend), moved(case, dtype, "cpu")))
        finally:
            torch.set_num_threads(1)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "backend", "dtype", "case"), largest_cases())
def test_what_is_not_contiguous_gives_the_same(name, backend, dtype, case):
    def strided(arg: object) -> object:
        if not is_float(arg) or arg.dim() < 2:
            return arg
        return arg.detach().transpose(-1, -2).contiguous().transpose(-1, -2).requires_grad_()

    args = moved(case, dtype, "cpu")
    found = results(OPERATORS[name].using(backend), [strided(arg) for arg in args])
    for one, other in zip(found, results(OPERATORS[name].using(backend), args), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_cases_and_a_batch_may_be_empty(name):
    assert name in CASES, f"give {name} cases in this file"
    assert OPERATORS[name].backends
    case = CASES[name](torch.Generator().manual_seed(0))[-1]
    first = next(arg for arg in case.args if is_float(arg) and arg.dim())
    if name == "path_softmax":
        first = case.args[1]
    empty = [arg[:0] if isinstance(arg, Tensor) and arg.dim() and len(arg) == len(first) else arg for arg in case.args]
    out = OPERATORS[name](*empty)
    assert len(out[0] if isinstance(out, tuple) else out) == 0
