"""Each operator's backends against its plain torch function, on small cases and in time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from graphslice.doctor.agreement import one_line
from graphslice.doctor.operator_cases import CASES, TYPICAL, Case
from graphslice.ops.dispatch import DEVICE_TYPES, OPERATORS, Operator, reference_only

#: What the results of a backend may differ by, relative to 1 plus the size of the number.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}


@dataclass
class OperatorCheck:
    """What one operator does in one dtype.

    Attributes:
        operator: its name.
        dtype: float32, bfloat16 or float16.
        backend: that serves a batch of molecules, torch for the plain function.
        problem: None where all cases agree, else the first that does not.
        error: the largest difference of a value or a gradient from the plain function's, relative to 1 plus its size.
        speed: the time of the plain function over that of the backend, forward and backward, on a batch of molecules.
    """

    operator: str
    dtype: str
    backend: str
    problem: str | None = None
    error: float | None = None
    speed: float | None = None


def check_operator(name: str, device: torch.device, heads: int = 8, head_dim: int = 16) -> Iterator[OperatorCheck]:
    """Check an operator in every dtype.

    Args:
        name: of :data:`~graphslice.ops.dispatch.OPERATORS`.
        device: whose backends are checked.
        heads, head_dim: of the batch of molecules that is timed.
    """
    op = OPERATORS[name]
    for dtype in TOLERANCES:
        label = str(dtype).removeprefix("torch.")
        typical = TYPICAL[name](torch.Generator().manual_seed(0), heads, head_dim, [24, 20, 17, 14] * 16)
        try:
            backend = op.choose(*arguments(typical, dtype, device))
            if backend == "torch":
                yield OperatorCheck(name, label, backend)
                continue
            cases = [case for case in _cases(name, device) if backend not in case.unsupported_by]
            error = max(_error(op, backend, dtype, case, device) for case in cases)
            problem = None if error <= TOLERANCES[dtype] else f"differs from plain torch by {error:.2g}"  # nan differs
            speed = _speed(op, arguments(typical, dtype, device), device)
            yield OperatorCheck(name, label, backend, problem, error, speed)
        except Exception as failed:  # whatever a compiler or a driver raises
            yield OperatorCheck(name, label, "?", f"{type(failed).__name__}: {one_line(failed)}")


def _cases(name: str, device: torch.device) -> list[Case]:
    generator = torch.Generator().manual_seed(0)
    cases = CASES[name](generator)
    # Tiles on a GPU grow with the rows and the channels of a head, and so does what they ask of it.
    large = [(4, 16, [60, 41]), (2, 32, [100, 70]), (2, 64, [128])] if device.type == "cuda" else [(4, 16, [60, 41])]
    return cases + [TYPICAL[name](generator, *shape) for shape in large]


def arguments(case: Case, dtype: torch.dtype, device: torch.device) -> list:
    """The arguments of a case, of which those in floating point are leaves."""
    args = [arg.detach().to(device) if isinstance(arg, Tensor) else arg for arg in case.args]
    return [arg.to(dtype, copy=True).requires_grad_() if is_float(arg) else arg for arg in args]


def is_float(arg: object) -> bool:
    """Whether it is a tensor in floating point."""
    return isinstance(arg, Tensor) and arg.is_floating_point()


def outputs_and_gradients(function: Callable, args: list, valid: Tensor | None = None) -> list[Tensor]:
    """What comes out, and the gradients of all arguments in floating point; 0 where a row means nothing."""
    outs = function(*args)
    outs = outs if isinstance(outs, tuple) else (outs,)
    if valid is not None:
        outs = tuple(out.masked_fill(~valid.to(out.device)[:, :, None], 0) for out in outs)
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randint(-3, 4, out.shape, generator=generator).to(out) for out in outs]
    gradients = torch.autograd.grad(outs, [arg for arg in args if is_float(arg)], upstream)
    return [tensor.detach() for tensor in (*outs, *gradients)]


def _error(op: Operator, backend: str, dtype: torch.dtype, case: Case, device: torch.device) -> float:
    found = outputs_and_gradients(op.using(backend), arguments(case, dtype, device), case.valid)
    plain = arguments(case, dtype if case.same_dtype else torch.float64, device)
    with reference_only():
        expected = outputs_and_gradients(op, plain, case.valid)
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        one, other = one.double(), other.double()
        same = (one == other) | (one.isnan() & other.isnan())
        apart = torch.where(same, 0, (one - other).abs() / (1 + other.abs()))
        worst = max(worst, float(apart.nan_to_num(nan=torch.inf).max()) if apart.numel() else 0.0)
    return worst


def _speed(op: Operator, args: list, device: torch.device) -> float:
    leaves = [arg for arg in args if is_float(arg)]
    with torch.no_grad():
        outs = op(*args)
    upstream = [torch.ones_like(out) for out in (outs if isinstance(outs, tuple) else (outs,))]

    def seconds() -> float:
        synchronize(device)
        begin = time.perf_counter()
        torch.autograd.grad(op(*args), leaves, upstream)
        synchronize(device)
        return time.perf_counter() - begin

    fast, plain = [], []
    for _ in range(12):
        fast.append(seconds())
        with reference_only():
            plain.append(seconds())
    return statistics.median(plain[2:]) / statistics.median(fast[2:])  # the first turns compile and fill caches


def synchronize(device: torch.device) -> None:
    """Return when a GPU has done what it was given; at once for any other device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def operators_on(device: torch.device) -> list[str]:
    """The names of the operators that have a backend for a device."""
    return [
        name for name, op in OPERATORS.items() if any(DEVICE_TYPES[backend] == device.type for backend in op.backends)
    ]
