"""Correctness and speed of the backends of every operator, compared with its plain torch implementation.

Every operator has a function that creates a case of any size, a call on which every backend is compared with the
reference. If rounding decides which values are equal, the values are chosen so that no product and no sum is rounded.
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

#: Heads, channels per head, and lengths of the samples: one row; 8 channels; 16 channels, with full and partial vectors
#: of columns; 32 channels; 24 channels, which are no whole number of vectors; many rows.
SHAPES = [
    (1, 16, [1]),
    (2, 8, [7, 1, 3]),
    (4, 16, [19, 11]),
    (1, 32, [16, 9]),
    (2, 24, [35, 2]),
    (4, 16, [60, 41]),
]
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
    generator = torch.Generator().manual_seed(0)
    typical = arguments(CASES[name](generator, 8, 16, [24, 20, 17, 14] * 16), dtype, device)
    # On a GPU the tile size, and with it the demand for shared memory, grows with rows and channels per head.
    shapes = [*SHAPES, *([(2, 32, [100, 70]), (2, 64, [128])] if device.type == "cuda" else [])]
    try:
        backend = op.choose(*typical)
        if backend == "torch":
            return OperatorCheck(name, label, backend)
        error = max(_largest_error(op, backend, dtype, CASES[name](generator, *shape), device) for shape in shapes)
        passed = error <= TOLERANCES[dtype]  # not if it is nan
        problem = None if passed else f"differs from plain torch by {error:.2g}"
        return OperatorCheck(name, label, backend, problem, error, _speed(op, typical, device))
    except Exception as exception:  # compilers and drivers raise many kinds
        return OperatorCheck(name, label, "?", f"{type(exception).__name__}: {one_line(exception)}")


def arguments(case: Case, dtype: torch.dtype, device: torch.device) -> list:
    """Return the arguments of a case on a device; floating-point tensors are in ``dtype`` and require gradients."""
    args = [arg.detach().to(device) if isinstance(arg, Tensor) else arg for arg in case.args]
    return [arg.to(dtype, copy=True).requires_grad_() if is_float(arg) else arg for arg in args]


def is_float(arg: object) -> bool:
    """True if the argument is a floating-point tensor."""
    return isinstance(arg, Tensor) and arg.is_floating_point()


def outputs_and_gradients(function: Callable, args: list, valid: Tensor | None = None) -> list[Tensor]:
    """Compute the output of ``function(*args)``, then the gradients of its floating-point arguments, with fixed
    pseudo-random integers as upstream gradients; the output is 0 outside of ``valid``."""
    out = function(*args)
    if valid is not None:
        out = out.masked_fill(~valid.to(out.device), 0)
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
    valid: Tensor | None = None  # bool, broadcast over the output: what is compared; None for all
    same_dtype: bool = False  # the reference is not in float64, because rounding decides which values are equal


#: Cases by operator name: functions of a generator, the number of heads, channels per head and lengths of the samples.
CASES: dict[str, Callable[[Generator, int, int, list[int]], Case]] = {}


def _case_of(*names: str):
    return lambda make: CASES.update(dict.fromkeys(names, make)) or make


def _normal(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def _with_ties(generator: Generator, *shape: int) -> Tensor:
    """Draw from few integer values, whose products with sixteenths and sums are exact."""
    return torch.randint(-4, 5, shape, generator=generator).float()


def _with_special_values(generator: Generator, *shape: int) -> Tensor:
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0])
    chosen = special[torch.randint(0, 5, shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.2, chosen, _with_ties(generator, *shape))


def _values(generator, heads, head_dim, lengths, draw=_normal) -> Tensor:
    return draw(generator, len(lengths), max(lengths), heads * head_dim)


def _mask_of(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


@_case_of("aggregate")
def _aggregate_case(generator, heads, head_dim, lengths):
    weights = torch.rand(len(lengths), heads, max(lengths), max(lengths), generator=generator)
    return Case((weights, _values(generator, heads, head_dim, lengths)))


@_case_of("aggregate_sort")
def _aggregate_sort_case(generator, heads, head_dim, lengths):
    v, width, valid = _values(generator, heads, head_dim, lengths, _with_ties), max(lengths), _mask_of(lengths)
    weights = torch.randint(0, 5, (len(lengths), heads, width, width), generator=generator) / 16
    args = weights * valid[:, None, None], v, torch.tensor(lengths), torch.arange(heads * head_dim) % 3 == 1
    return Case(args, valid[:, :, None], same_dtype=True)


@_case_of("attention")
def _attention_case(generator, heads, head_dim, lengths):
    bias = 3 * _normal(generator, len(lengths), heads, max(lengths), max(lengths))
    bias = bias.masked_fill(~_mask_of(lengths)[:, None, None], -torch.inf)
    return Case((*(_values(generator, heads, head_dim, lengths) for _ in range(3)), bias, heads))


@_case_of("bond_messages")
def _bond_messages_case(generator, heads, head_dim, lengths):
    width, channels = max(lengths), heads * head_dim
    # A fifth of the pairs are bonded, with 3 bond types and 2 ring classes.
    upper = torch.randint(0, 30, (len(lengths), width, width), generator=generator).triu(1)
    upper = torch.where(upper <= 6, upper, 0)
    tables = _with_ties(generator, 3, channels), _with_ties(generator, 2, channels)
    x = _with_ties(generator, len(lengths), width, channels)  # exact, so that rounding does not change signs
    return Case((x, (upper + upper.mT).to(torch.int16), *tables))


@_case_of("broadcast_max")
def _broadcast_max_case(generator, heads, head_dim, lengths):
    x, local_channels = (
        _values(generator, heads, head_dim, lengths, _with_ties),
        torch.arange(heads * head_dim) % 2 == 0,
    )
    return Case((x, torch.tensor(lengths), local_channels))


@_case_of("column_sort")
def _column_sort_case(generator, heads, head_dim, lengths):
    x = _values(generator, heads, head_dim, lengths, _with_special_values)
    return Case((x, torch.tensor(lengths), torch.arange(heads * head_dim) % 3 == 1))


@_case_of("sort_by_first")
def _sort_by_first_case(generator, heads, head_dim, lengths):
    return Case((_values(generator, heads, head_dim, lengths, _with_ties), torch.tensor(lengths)), same_dtype=True)


@_case_of("dropout")
def _dropout_case(generator, heads, head_dim, lengths):
    return Case((_values(generator, heads, head_dim, lengths), 0.0))


@_case_of("linear_attention")
def _linear_attention_case(generator, heads, head_dim, lengths):
    tensors = (_values(generator, heads, head_dim, lengths) for _ in range(3))
    return Case((*tensors, torch.tensor(lengths), heads))


@_case_of("head_norm")
def _head_norm_case(generator, heads, head_dim, lengths):
    scales, shifts = (_normal(generator, 2, heads, head_dim) for _ in range(2))
    return Case((_values(generator, heads, head_dim, lengths), scales, shifts, 1))


@_case_of("max_exchange")
def _max_exchange_case(generator, heads, head_dim, lengths):
    return Case((_values(generator, heads, head_dim, lengths), torch.tensor(lengths)))


@_case_of("read_out")
def _read_out_case(generator, heads, head_dim, lengths):
    lengths = [length + 1 for length in lengths]  # the graph token and the atoms
    x, contributions = (_values(generator, heads, head_dim, lengths) for _ in range(2))
    return Case((x, torch.tensor(lengths), ("mean", "atomwise", "token", "max", "sum"), contributions))


@_case_of("path_softmax", "path_bias")
def _path_case(generator, heads, head_dim, lengths, types=400):
    inside, rows = _mask_of(lengths), [length + 1 for length in lengths]  # the graph token and the atoms
    drawn = torch.randint(0, types, (*inside.shape, max(lengths)), generator=generator).to(torch.int16)
    drawn[~(inside[:, :, None] & inside[:, None])] = -1
    args = _normal(generator, types + 1, heads), drawn, torch.tensor(rows)
    return Case(args, _mask_of(rows)[:, None, :, None])


@_case_of("embed_atoms")
def _embed_atoms_case(generator, heads, head_dim, lengths):
    shape, channels = (len(lengths), max(lengths)), heads * head_dim
    features = torch.randint(0, 4, (*shape, 9), generator=generator).to(torch.uint8)
    degrees = torch.randint(0, 9, shape, generator=generator).to(torch.uint8)
    tables = [_normal(generator, rows, channels) for rows in (36, 6, 6, 1)]
    inputs = features, degrees, torch.tensor(lengths) + 1, 4 * torch.arange(9)
    return Case((*inputs, *tables), _mask_of([length + 1 for length in lengths])[:, :, None])


@_case_of("path_values")
def _path_values_case(generator, heads, head_dim, lengths):
    heads, paths, entries = -(-heads // 8) * 8, 10 * sum(lengths), 40 * sum(lengths)

    def integers(high, *shape):
        return torch.randint(0, high, shape, generator=generator)

    shapes = (1, heads), (6, heads), (9, heads), (5, heads, heads)
    parameters = [_normal(generator, *shape) for shape in shapes]
    distances, codes = integers(9, paths).to(torch.int32), integers(5 * 11, entries).to(torch.int32)
    starts = integers(entries + 1, paths).sort().values.to(torch.int32)
    distances[:1], starts[:1] = 510, 0
    return Case((*parameters, integers(9, 11, 3), distances, starts, codes, _normal(generator, entries)))
