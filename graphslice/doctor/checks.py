"""Correctness and speed of the backends of every operator, compared with its plain torch implementation.

Every operator has a function that creates a typical case of any size, and at least two test cases, which are its
arguments: calls on which every backend is compared with the reference. The last one has the batch as the first
dimension of its arguments. If rounding decides which values are equal, the values are chosen so that no product and
no sum is rounded.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from graphslice.nn.agreement import one_line
from graphslice.ops.dispatch import DEVICE_TYPES, OPERATORS, Operator, reference_only

#: Largest accepted error of a backend: absolute difference over 1 plus the absolute reference value.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}


@dataclass
class OperatorCheck:
    """Check of one operator in one dtype."""

    operator: str
    dtype: str  # float32, bfloat16 or float16
    backend: str  # chosen for a batch of molecules; torch is the plain implementation
    problem: str | None = None  # None if all cases agree
    error: float | None = None  # the largest, as in TOLERANCES, of an output or gradient
    speed: float | None = None  # over plain torch, forward and backward, on a batch of molecules


def check_operator(name: str, device: torch.device) -> list[OperatorCheck]:
    """Check the backends that a device has of an operator: one check per dtype of :data:`TOLERANCES`."""
    return [_check_dtype(name, dtype, device) for dtype in TOLERANCES]


def _check_dtype(name: str, dtype: torch.dtype, device: torch.device) -> OperatorCheck:
    op, label = OPERATORS[name], str(dtype).removeprefix("torch.")
    typical = TYPICAL[name](torch.Generator().manual_seed(0), 8, 16, [24, 20, 17, 14] * 16)
    try:
        backend = op.choose(*arguments(typical, dtype, device))
        if backend == "torch":
            return OperatorCheck(name, label, backend)
        cases = [case for case in _cases(name, device) if backend not in case.unsupported_by]
        error = max(_largest_error(op, backend, dtype, case, device) for case in cases)
        passed = error <= TOLERANCES[dtype]  # not if it is nan
        problem = None if passed else f"differs from plain torch by {error:.2g}"
        return OperatorCheck(
            name, label, backend, problem, error, _speed(op, arguments(typical, dtype, device), device)
        )
    except Exception as exception:  # compilers and drivers raise many kinds
        return OperatorCheck(name, label, "?", f"{type(exception).__name__}: {one_line(exception)}")


def _cases(name: str, device: torch.device) -> list[Case]:
    generator = torch.Generator().manual_seed(0)
    cases = CASES[name](generator)
    # On a GPU the tile size, and with it the demand for shared memory, grows with rows and channels per head.
    large = [(4, 16, [60, 41]), (2, 32, [100, 70]), (2, 64, [128])] if device.type == "cuda" else [(4, 16, [60, 41])]
    return cases + [TYPICAL[name](generator, *shape) for shape in large]


def arguments(case: Case, dtype: torch.dtype, device: torch.device) -> list:
    """Return the arguments of a case on a device; floating-point tensors are in ``dtype`` and require gradients."""
    args = [arg.detach().to(device) if isinstance(arg, Tensor) else arg for arg in case.args]
    return [arg.to(dtype, copy=True).requires_grad_() if is_float(arg) else arg for arg in args]


def is_float(arg: object) -> bool:
    """True if the argument is a floating-point tensor."""
    return isinstance(arg, Tensor) and arg.is_floating_point()


def outputs_and_gradients(function: Callable, args: list, valid: Tensor | None = None) -> list[Tensor]:
    """Compute the output of ``function(*args)``, then the gradients of its floating-point arguments, with fixed
    pseudo-random integers as upstream gradients; rows outside of ``valid``, bool ``[B, N]``, are set to 0."""
    out = function(*args)
    if valid is not None:
        out = out.masked_fill(~valid.to(out.device)[:, :, None], 0)
    upstream = torch.randint(-3, 4, out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    gradients = torch.autograd.grad(out, [arg for arg in args if is_float(arg)], upstream)
    return [tensor.detach() for tensor in (out, *gradients)]


def _largest_error(op: Operator, backend: str, dtype: torch.dtype, case: Case, device: torch.device) -> float:
    actual = outputs_and_gradients(op.using(backend), arguments(case, dtype, device), case.valid)
    plain = arguments(case, dtype if case.same_dtype else torch.float64, device)
    with reference_only():
        expected = outputs_and_gradients(op, plain, case.valid)
    largest = 0.0
    for result, reference in zip(actual, expected, strict=True):
        result, reference = result.double(), reference.double()
        equal = (result == reference) | (result.isnan() & reference.isnan())
        error = torch.where(equal, 0, (result - reference).abs() / (1 + reference.abs()))
        largest = max(largest, float(error.nan_to_num(nan=torch.inf).max()) if error.numel() else 0.0)
    return largest


def _speed(op: Operator, args: list, device: torch.device) -> float:
    leaves = [arg for arg in args if is_float(arg)]
    with torch.no_grad():
        upstream = torch.ones_like(op(*args))

    def seconds() -> float:
        synchronize(device)
        start = time.perf_counter()
        torch.autograd.grad(op(*args), leaves, upstream)
        synchronize(device)
        return time.perf_counter() - start

    fast, plain = [], []
    for _ in range(12):
        fast.append(seconds())
        with reference_only():
            plain.append(seconds())
    return statistics.median(plain[2:]) / statistics.median(fast[2:])  # the first runs compile and fill caches


def synchronize(device: torch.device) -> None:
    """Wait for the queued work of a GPU; return immediately for any other device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def operators_on(device: torch.device) -> list[str]:
    """Return the names of the operators that have a backend for a device."""
    return [
        name for name, op in OPERATORS.items() if any(DEVICE_TYPES[backend] == device.type for backend in op.backends)
    ]


@dataclass
class Case:
    """Arguments of a call, in float32."""

    args: tuple
    unsupported_by: tuple[str, ...] = ()  # names of backends
    valid: Tensor | None = None  # bool [B, N], the rows of the output to compare; None for all
    same_dtype: bool = False  # the reference is not in float64, because rounding decides which values are equal


#: Test cases by operator name: functions of a random number generator.
CASES: dict[str, Callable[[Generator], list[Case]]] = {}

#: Typical case by operator name: functions of a generator, the number of heads, channels per head and sample lengths.
TYPICAL: dict[str, Callable[..., Case]] = {}


def _cases_of(name: str, *sizes: tuple):
    """Register the typical case of an operator, and the arguments after the generator of its test cases (decorator)."""

    def add(make: Callable[..., Case]):
        TYPICAL[name] = make
        CASES[name] = lambda generator: [make(generator, *arguments) for arguments in sizes]
        return make

    return add


NUMBA = ("numba",)
# Heads, channels per head, and lengths of the samples: one row; 8 channels; 16 channels, with full and partial vectors
# of columns; 32 channels; 24 channels, which are no whole number of vectors.
SHAPES = [(1, 16, [1]), (2, 8, [7, 1, 3]), (4, 16, [19, 11]), (1, 32, [16, 9]), (2, 24, [35, 2])]
NARROW_HEADS = (2, 4, [6, 3])


def _normal(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def _with_ties(generator: Generator, *shape: int) -> Tensor:
    """Draw from few integer values, whose products with sixteenths and sums are exact."""
    return torch.randint(-4, 5, shape, generator=generator).float()


def _with_special_values(generator: Generator, *shape: int) -> Tensor:
    x = _with_ties(generator, *shape)
    x.view(-1)[:200:4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0]).repeat(10)
    return x


# Heads, channels per head, lengths, backends that do not support the channels, and the function that draws the values.
POOLING = [
    (*shape, unsupported_by, draw)
    for *shape, unsupported_by in ((1, 16, [1], ()), (1, 9, [7, 1, 3], NUMBA), (2, 24, [19, 11], ()))
    for draw in (_normal, _with_ties)
]


def _values(generator, heads, head_dim, lengths, draw=_normal) -> Tensor:
    return draw(generator, len(lengths), max(lengths), heads * head_dim)


def _mask_of(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


@_cases_of("aggregate", *SHAPES, (*NARROW_HEADS, NUMBA))
def _aggregate_case(generator, heads, head_dim, lengths, unsupported_by=()):
    weights = torch.rand(len(lengths), heads, max(lengths), max(lengths), generator=generator)
    return Case((weights, _values(generator, heads, head_dim, lengths)), unsupported_by)


@_cases_of(
    "aggregate_sort",
    *(SHAPES[0], SHAPES[1], (1, 24, [19]), (2, 10, [5, 2]), NARROW_HEADS),
    (2, 8, [4, 7], "descending"),
    (2, 8, [4, 7], torch.arange(16) % 3 == 1),
)
def _aggregate_sort_case(generator, heads, head_dim, lengths, order="ascending"):
    v, width, valid = _values(generator, heads, head_dim, lengths, _with_ties), max(lengths), _mask_of(lengths)
    weights = torch.randint(0, 5, (len(lengths), heads, width, width), generator=generator) / 16
    args = weights * valid[:, None, None], v, torch.tensor(lengths), order
    return Case(args, valid=valid, same_dtype=True)


@_cases_of("attention", *SHAPES, (*NARROW_HEADS, NUMBA), (2, 8, [4, 9], NUMBA, (2, 1, 1, 9)))
def _attention_case(generator, heads, head_dim, lengths, unsupported_by=(), bias_shape=None):
    bias = 3 * _normal(generator, *(bias_shape or (len(lengths), heads, max(lengths), max(lengths))))
    bias = bias.masked_fill(~_mask_of(lengths)[:, None, None], -torch.inf)
    return Case((*(_values(generator, heads, head_dim, lengths) for _ in range(3)), bias, heads), unsupported_by)


@_cases_of("bond_messages", (1, 16, [1]), (2, 24, [7, 1, 3]), (1, 8, [4, 9], NUMBA))
def _bond_messages_case(generator, heads, head_dim, lengths, unsupported_by=()):
    width, channels = max(lengths), heads * head_dim
    # A fifth of the pairs are bonded, with 3 bond types and 2 ring classes.
    upper = torch.randint(0, 30, (len(lengths), width, width), generator=generator).triu(1)
    upper = torch.where(upper <= 6, upper, 0)
    tables = _with_ties(generator, 3, channels), _with_ties(generator, 2, channels)
    x = _with_ties(generator, len(lengths), width, channels)  # exact, so that rounding does not change signs
    return Case((x, (upper + upper.mT).to(torch.int16), *tables), unsupported_by)


@_cases_of("broadcast_max", *POOLING)
def _broadcast_max_case(generator, heads, head_dim, lengths, unsupported_by=(), draw=_normal):
    x, local_channels = _values(generator, heads, head_dim, lengths, draw), torch.arange(heads * head_dim) % 2 == 0
    return Case((x, torch.tensor(lengths), local_channels), unsupported_by)


@_cases_of(
    "column_sort",
    (1, 16, [1]),
    (1, 5, [7, 0, 3], "descending", NUMBA),
    (1, 16, [8, 0, 2], "descending"),
    (1, 48, [5, 9], torch.arange(48) % 3 == 1),
    (1, 16, [8, 6], "ascending", (), _with_special_values),
    (1, 1, [300], "ascending", NUMBA),
    (1, 16, [300]),
)
def _column_sort_case(generator, heads, head_dim, lengths, order="ascending", unsupported_by=(), draw=_with_ties):
    all_rows = len(lengths) == 1
    x = _values(generator, heads, head_dim, lengths, draw)
    return Case((x, None if all_rows else torch.tensor(lengths), order), unsupported_by)


@_cases_of("sort_by_first", *POOLING)
def _sort_by_first_case(generator, heads, head_dim, lengths, unsupported_by=(), draw=_with_ties):
    args = _values(generator, heads, head_dim, lengths, draw), torch.tensor(lengths)
    return Case(args, unsupported_by, same_dtype=True)


@_cases_of("dropout", (1, 16, [1]), (1, 8, [4]), (2, 16, [3, 3]))
def _dropout_case(generator, heads, head_dim, lengths):
    return Case((_values(generator, heads, head_dim, lengths), 0.0))


@_cases_of("linear_attention", *SHAPES, (2, 8, [4, 0, 1]), (*NARROW_HEADS, NUMBA), (1, 8, [257, 3], NUMBA))
def _linear_attention_case(generator, heads, head_dim, lengths, unsupported_by=()):
    tensors = (_values(generator, heads, head_dim, lengths) for _ in range(3))
    return Case((*tensors, torch.tensor(lengths), heads), unsupported_by)


@_cases_of("head_norm", *SHAPES, (*NARROW_HEADS, NUMBA))
def _head_norm_case(generator, heads, head_dim, lengths, unsupported_by=()):
    scales, shifts = (_normal(generator, 2, heads, head_dim) for _ in range(2))
    return Case((_values(generator, heads, head_dim, lengths), scales, shifts, 1), unsupported_by)


@_cases_of("max_exchange", *POOLING)
def _max_exchange_case(generator, heads, head_dim, lengths, unsupported_by=(), draw=_normal):
    return Case((_values(generator, heads, head_dim, lengths, draw), torch.tensor(lengths)), unsupported_by)


_READOUTS = ("mean", "max"), ("sum", "atomwise", "token", "mean")


@_cases_of(
    "read_out",
    *((2, 24, [18, 10], kinds, (), draw) for kinds in _READOUTS for draw in (_normal, _with_ties)),
    (1, 16, [3], ("quantiles",), NUMBA),
)
def _read_out_case(generator, heads, head_dim, lengths, kinds=_READOUTS[0], unsupported_by=(), draw=_normal):
    lengths = [length + 1 for length in lengths]  # the graph token and the atoms
    x, contributions = (_values(generator, heads, head_dim, lengths, draw) for _ in range(2))
    rest = (contributions,) if "atomwise" in kinds else ()
    return Case((x, torch.tensor(lengths), kinds, *rest), unsupported_by)


def _path_types(generator, types, lengths):
    """Draw path types of atoms, int16 ``[B, N, N]``, and return them with the number of rows, graph token included."""
    width = max(lengths)
    drawn = torch.randint(0, types, (len(lengths), width, width), generator=generator).to(torch.int16)
    drawn[~(_mask_of(lengths)[:, :, None] & _mask_of(lengths)[:, None])] = -1
    return drawn, torch.tensor(lengths) + 1


@_cases_of("path_softmax", (3, 0, [1], 6, 1.0), (3, 0, [7, 1, 4], 6, 3.0), (2, 0, [5, 9, 33], 6, 60.0))
def _path_softmax_case(generator, heads, head_dim, lengths, types=400, range_of_values=None):
    values = _normal(generator, types + 1, heads)
    if range_of_values:
        values = torch.linspace(-range_of_values / 2, range_of_values / 2, values.numel()).view_as(values)
    return Case((values, *_path_types(generator, types, lengths)))


@_cases_of("path_bias", (3, 0, [1], 6), (8, 0, [7, 7], 6))
def _path_bias_case(generator, heads, head_dim, lengths, types=400):
    # The rows of the padding are undefined.
    return _path_softmax_case(generator, heads, head_dim, [max(lengths)] * len(lengths), types)


@_cases_of("embed_atoms", (1, 24, [3], NUMBA), (2, 24, [5, 5]))
def _embed_atoms_case(generator, heads, head_dim, lengths, unsupported_by=()):
    shape, channels = (len(lengths), max(lengths)), heads * head_dim
    features = torch.randint(0, 4, (*shape, 9), generator=generator).to(torch.uint8)
    degrees = torch.randint(0, 9, shape, generator=generator).to(torch.uint8)
    tables = [_normal(generator, rows, channels) for rows in (36, 6, 6, 1)]
    inputs = features, degrees, torch.tensor(lengths) + 1, 4 * torch.arange(9)
    return Case((*inputs, *tables), unsupported_by, _mask_of([length + 1 for length in lengths]))


@_cases_of(
    "path_values",
    (4, 0, [], (2, 5, 12), NUMBA),
    *((heads, 0, [], sizes) for heads, *sizes in ((8, 1, 1, 3), (16, 5, 40, 90), (24, 3, 13, 13))),
)
def _path_values_case(generator, heads, head_dim, lengths, sizes=None, unsupported_by=()):
    heads = heads if sizes else -(-heads // 8) * 8
    positions, paths, entries = sizes or (5, 10 * sum(lengths), 40 * sum(lengths))

    def integers(high, *shape):
        return torch.randint(0, high, shape, generator=generator)

    shapes = (1, heads), (6, heads), (9, heads), (positions, heads, heads)
    parameters = [_normal(generator, *shape) for shape in shapes]
    distances, codes = integers(9, paths).to(torch.int32), integers(positions * 11, entries).to(torch.int32)
    starts = integers(entries + 1, paths).sort().values.to(torch.int32)
    distances[:1], starts[:1] = 510, 0
    args = *parameters, integers(9, 11, 3), distances, starts, codes, _normal(generator, entries)
    return Case(args, unsupported_by)
