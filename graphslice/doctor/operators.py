"""Correctness and speed of the backends of every operator, compared with its plain torch implementation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from graphslice.doctor.operator_cases import CASES, TYPICAL, Case
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
    """Compute the output of ``function(*args)``, then the gradients of its floating-point arguments.

    Rows outside of ``valid``, bool ``[B, N]``, are set to 0. Upstream gradients are fixed pseudo-random integers.
    """
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
