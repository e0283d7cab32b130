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
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: True if Triton interprets its kernels on the CPU, slowly. For tests; ``Operator.using`` only.
TRITON_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
#: Largest number of rows of the column sort and of the fused product and sort.
MAX_SORT_ROWS, MAX_AGGREGATE_ROWS = 4096, 128
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Bytes of shared memory per block that every GPU provides.
SHARED_MEMORY = 48 << 10
#: Oldest supported compute capability (Turing); Triton's compiler aborts for older ones.
MIN_CAPABILITY = 75
# Oldest compute capability with bfloat16 instructions and full 16-bit matrix products (Ampere).
_AMPERE = 80
# Columns, inner and warps of the fastest tiles for 16-bit values on an H100, forward and backward, by number of rows.
_FASTEST_TILES = {
    16: ((32, 16, 1), (32, 16, 1)),
    32: ((32, 16, 1), (16, 32, 2)),
    64: ((16, 16, 1), (16, 64, 2)),
    128: ((32, 16, 2), (16, 64, 4)),
}

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


def opaque(outputs: Callable[..., tuple[Tensor, ...]]) -> Callable[[Callable[..., tuple]], Callable[..., tuple]]:
    """Let :func:`torch.compile` call a function as an opaque operator, since it cannot trace a launch (decorator);
    ``outputs`` returns empty outputs for its arguments. Eager calls avoid the operator: torch takes 30 microseconds to
    dispatch it."""

    def decorate(function: Callable[..., tuple]) -> Callable[..., tuple]:
        operator = torch.library.custom_op(f"graphslice::{function.__name__}", function, mutates_args=())
        operator.register_fake(outputs)

        @wraps(function)
        def call(*args: Any) -> tuple:
            return operator(*args) if torch.compiler.is_compiling() else function(*args)

        return call

    return decorate


# --- tiles ----------------------------------------------------------------------------------------------------------


class AggregateTile(NamedTuple):
    """Tile of a program of the fused product and sort, forward or backward."""

    rows: int  # of a sample, rounded up to a power of two
    columns: int  # channels of a head that are processed at once
    inner: int  # rows of V per step of the product (forward), or rows per program (backward)
    in_float32: bool  # the factors are converted to float32 before the product
    warps: int  # per program


def sort_tile(width: int, channels: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return the rows and columns, powers of two, of a sort of ``width`` rows, at most ``MAX_SORT_ROWS``."""
    rows = _power_of_two(max(2, width))
    # Fewer for float32: with more, Triton 3.2 and 3.3 spill several times as many registers.
    values = 1024 if dtype == torch.float32 else 4096
    return rows, max(1, min(_power_of_two(channels), values // rows, 64))


def aggregate_tile(
    width: int, head_dim: int, dtype: torch.dtype, capability: int, backward: bool = False
) -> AggregateTile:
    """Return the tile for ``Sort_col(P V)`` of ``width <= MAX_AGGREGATE_ROWS`` rows and ``head_dim`` channels."""
    in_float32 = dtype == torch.float32 or capability < _AMPERE
    rows, channels = max(16, _power_of_two(width)), max(16, _power_of_two(head_dim))
    if not in_float32 and rows in _FASTEST_TILES:
        columns, inner, warps = _FASTEST_TILES[rows][backward]
        return AggregateTile(rows, min(channels, columns), inner, in_float32, warps)
    # A float32 packed with its row number takes twice the registers of a packed 16-bit value.
    columns = min(channels, 32, (2048 if dtype == torch.float32 else 4096) // rows)
    return AggregateTile(rows, columns, min(rows, 32 if in_float32 else 64), in_float32, {16: 1, 32: 4}.get(rows, 8))


def _power_of_two(minimum: int) -> int:
    return 1 << (minimum - 1).bit_length()
