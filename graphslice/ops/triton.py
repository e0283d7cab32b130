"""What the Triton backends share: the compilers of this machine, limits, tile sizes and the launch of a kernel.

Importing this file does not need Triton. The shared memory of a program stays below 48 KiB, which every GPU provides
per block, with all Triton versions that torch installs, so the limit of the device is never queried.
tests/ops/test_triton_compiles.py compiles for several GPU architectures, without such a GPU, and measures it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

#: True if Triton interprets its kernels on the CPU, slowly. For tests; ``Operator.using`` only.
TRITON_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
#: Largest number of rows of the column sort.
MAX_SORT_ROWS = 4096
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Bytes of shared memory per block that every GPU provides.
SHARED_MEMORY = 48 << 10
#: Oldest supported compute capability (Turing); Triton's compiler aborts for older ones.
MIN_CAPABILITY = 75
# Oldest compute capability with bfloat16 instructions and full 16-bit matrix products (Ampere).
_AMPERE = 80

_log = logging.getLogger("graphslice")


@cache
def compiler_missing(device_type: str) -> str | None:
    """Return what kernels and :func:`torch.compile` lack on a device type, ``"cuda"`` or ``"cpu"``: a noun phrase such
    as ``"a C compiler (gcc or clang)"``, or None. Searches ``PATH``, ``CC`` and ``CXX`` once and runs nothing."""
    if device_type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "Triton"
        if sys.platform == "win32":  # Triton for Windows includes a compiler
            return None
        if not _on_path(os.environ.get("CC"), "gcc", "clang"):
            return "a C compiler (gcc or clang)"
        if not Path(sysconfig.get_path("include"), "Python.h").is_file():
            return "the Python headers (package python3-dev on Debian)"
        return None
    compilers = {"win32": ("cl",), "darwin": ("clang++", "g++")}.get(sys.platform, ("g++",))
    return None if _on_path(os.environ.get("CXX"), *compilers) else f"a C++ compiler ({' or '.join(compilers)})"


def _on_path(command: str | None, *programs: str) -> bool:
    """True if the program of ``command`` exists or, without a command, one of ``programs``."""
    return any(shutil.which(name) for name in ((command.split()[0],) if command and command.split() else programs))


@cache
def warn_of_missing_compiler(device_type: str) -> bool:
    """True if a requirement is missing; the first such call in a process also logs a warning."""
    missing = compiler_missing(device_type)
    if missing is not None:
        _log.warning("compilation is off, so GraphSlice runs more slowly: install %s", missing)
    return missing is not None


@cache
def triton_runs() -> bool:
    """True if Triton kernels can run on this machine. Triton is imported only then, as that takes a second."""
    if TRITON_INTERPRETED:
        return importlib.util.find_spec("triton") is not None
    return torch.cuda.is_available() and not warn_of_missing_compiler("cuda")


def capability(device: torch.device) -> int:
    """Return ten times the compute capability of a GPU; 90 for other devices, on which Triton's interpreter runs."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def supports_dtype(dtype: torch.dtype, capability: int) -> bool:
    """True if kernels with arithmetic support a dtype on a GPU; bfloat16 needs Ampere."""
    return capability >= (_AMPERE if dtype == torch.bfloat16 else MIN_CAPABILITY)


def launch(kernel: Any, grid: tuple[int, int], *operands: Any, **constants: Any) -> None:
    """Launch a kernel on the device of its first operand; Triton's own launch takes the current device."""
    with torch.cuda.device_of(operands[0]):
        kernel[grid](*operands, **constants)


def opaque(outputs: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let :func:`torch.compile` call a function as an opaque operator, since it cannot trace a launch (decorator);
    ``outputs`` returns empty outputs for its arguments. Eager calls avoid the operator: torch takes 30 microseconds to
    dispatch it."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        operator = torch.library.custom_op(f"graphslice::{function.__name__}", function, mutates_args=())
        operator.register_fake(outputs)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return operator(*args, **kwargs) if torch.compiler.is_compiling() else function(*args, **kwargs)

        return call

    return decorate


def sort_tile(width: int, channels: int, dtype: torch.dtype) -> dict[str, int]:
    """Return rows and columns of a program that sorts ``width`` rows, at most ``MAX_SORT_ROWS``, and its warps.

    Of up to 64 rows every thread sorts one column, without a value of another thread; for more rows, its registers do
    not hold a column. ``HEIGHT`` is the number of rows that are compared.
    """
    rows = _power_of_two(max(2, width))
    if rows <= 64:
        return {"HEIGHT": -(-width // 8) * 8, "ROWS": rows, "COLUMNS": 32, "num_warps": 1}
    # Fewer for float32: with more, Triton 3.2 and 3.3 spill several times as many registers.
    columns = max(1, min(_power_of_two(channels), (1024 if dtype == torch.float32 else 4096) // rows))
    return {"HEIGHT": rows, "ROWS": rows, "COLUMNS": columns, "num_warps": 4}


def _power_of_two(minimum: int) -> int:
    return 1 << (minimum - 1).bit_length()
