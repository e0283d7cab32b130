"""Correctness and speed of the backends of every operator, compared with its plain torch implementation.

Every operator has a case of any size, a call on which every backend is compared with the
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
#: On a GPU the tile size, and with it the demand for shared memory, grows with rows and channels per head.
LARGE_SHAPES = [(2, 32, [100, 70]), (2, 64, [128])]
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
    typical = arguments(case_of(name, 8, 16, [24, 20, 17, 14] * 16), dtype, device)
    shapes = SHAPES + (LARGE_SHAPES if device.type == "cuda" else [])
    try:
        backend = op.choose(*typical)
        if backend == "torch":
            return OperatorCheck(name, label, backend)
        error = max(_largest_error(op, backend, dtype, case_of(name, *shape), device) for shape in shapes)
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


def case_of(name: str, heads: int, head_dim: int, lengths: list[int], seed: int = 0) -> Case:
    """Draw a case of an operator: heads, channels per head, and the number of rows (or atoms) of each sample."""
    return CASES[name](_Draw(torch.Generator().manual_seed(seed), heads, head_dim, lengths))


@dataclass
class _Draw:
    """Random tensors of B samples of at most N rows with C channels."""

    generator: Generator
    heads: int
    head_dim: int
    sizes: list[int]

    def __post_init__(self) -> None:
        self.lengths = torch.tensor(self.sizes)
        self.shape = len(self.sizes), max(self.sizes), self.heads * self.head_dim
        self.every_third = torch.arange(self.shape[2]) % 3 == 1  # of the channels

    def mask(self, more: int = 0) -> Tensor:
        """Return the valid rows, bool ``[B, N, 1]``, with ``more`` rows in every sample."""
        return torch.arange(self.shape[1] + more)[:, None] < self.lengths[:, None, None] + more

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape or self.shape, generator=self.generator)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape or self.shape, generator=self.generator)

    def ties(self, *shape: int) -> Tensor:
        """Draw few integer values, whose products with sixteenths and sums are exact."""
        return self.integers(-4, 5, *shape).float()

    def special(self) -> Tensor:
        """Draw few integer values, and nan, infinity and both zeros."""
        values = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0])
        return torch.where(self.normal() < -1, values[self.integers(0, 5)], self.ties())

    def pairs(self) -> tuple[int, ...]:
        return self.shape[0], self.heads, self.shape[1], self.shape[1]


def _attention(draw: _Draw) -> Case:
    bias = (3 * draw.normal(*draw.pairs())).masked_fill(~draw.mask().mT[:, None], -torch.inf)
    return Case((draw.normal(), draw.normal(), draw.normal(), bias, draw.heads))


def _bond_messages(draw: _Draw) -> Case:
    batch, width, channels = draw.shape
    # A fifth of the pairs are bonded, with 3 bond types and 2 ring classes.
    upper = draw.integers(0, 30, batch, width, width).triu(1)
    upper = torch.where(upper <= 6, upper, 0)
    x = draw.ties()  # exact, so that rounding does not change signs
    return Case((x, (upper + upper.mT).to(torch.int16), draw.ties(3, channels), draw.ties(2, channels)))


def _read_out(draw: _Draw) -> Case:
    batch, atoms, channels = draw.shape
    rows, contributions = draw.normal(batch, atoms + 1, channels), draw.normal(batch, atoms + 1, channels)
    return Case((rows, draw.lengths + 1, ("mean", "atomwise", "token", "max", "sum"), contributions))


def _path_types(draw: _Draw) -> Case:
    types, (batch, atoms, _) = 400, draw.shape
    drawn = draw.integers(0, types, batch, atoms, atoms).to(torch.int16)
    drawn[~(draw.mask() & draw.mask().mT)] = -1
    return Case((draw.normal(types + 1, draw.heads), drawn, draw.lengths + 1), draw.mask(1)[:, None])


def _path_values(draw: _Draw) -> Case:
    heads, paths, entries = -(-draw.heads // 8) * 8, 10 * sum(draw.sizes), 40 * sum(draw.sizes)
    shapes = (1, heads), (6, heads), (9, heads), (5, heads, heads)
    parameters = [draw.normal(*shape) for shape in shapes]
    distances, codes = draw.integers(0, 9, paths).int(), draw.integers(0, 5 * 11, entries).int()
    starts = draw.integers(0, entries + 1, paths).sort().values.int()
    distances[:1], starts[:1] = 510, 0
    return Case((*parameters, draw.integers(0, 9, 11, 3), distances, starts, codes, draw.normal(entries)))


def _embed_atoms(draw: _Draw) -> Case:
    batch, atoms, channels = draw.shape
    features = draw.integers(0, 4, batch, atoms, 9).to(torch.uint8)
    degrees = draw.integers(0, 9, batch, atoms).to(torch.uint8)
    tables = [draw.normal(rows, channels) for rows in (36, 6, 6, 1)]
    return Case((features, degrees, draw.lengths + 1, 4 * torch.arange(9), *tables), draw.mask(1))


#: Cases by operator name.
CASES: dict[str, Callable[[_Draw], Case]] = {
    "aggregate": lambda draw: Case((draw.normal(*draw.pairs()).abs(), draw.normal())),
    "attention": _attention,
    "bond_messages": _bond_messages,
    "broadcast_max": lambda draw: Case((draw.ties(), draw.lengths, draw.every_third)),
    "column_sort": lambda draw: Case((draw.special(), draw.lengths, draw.every_third)),
    "dropout": lambda draw: Case((draw.normal(), 0.0)),
    "embed_atoms": _embed_atoms,
    "head_norm": lambda draw: Case((draw.normal(), *(draw.normal(2, draw.heads, draw.head_dim) for _ in range(2)), 1)),
    "linear_attention": lambda draw: Case((*(draw.normal() for _ in range(3)), draw.lengths, draw.heads)),
    # Soft, and with one head hard.
    "max_exchange": lambda draw: Case((draw.normal(), draw.lengths, draw.heads == 1)),
    "path_bias": _path_types,
    "path_softmax": _path_types,
    "path_values": _path_values,
    "read_out": _read_out,
    # In one group, and with one head in groups of two.
    "sort_by_first": lambda draw: Case((draw.ties(), draw.lengths, int(draw.heads > 1)), same_dtype=True),
}
