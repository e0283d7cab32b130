"""Detection of the compilers that torch needs: Triton and a C compiler for a GPU, a C++ compiler for a CPU."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
import sysconfig
from functools import cache
from pathlib import Path

_log = logging.getLogger("graphslice")


@cache
def compiler_missing(device_type: str) -> str | None:
    """Return the missing requirement for kernels and :func:`torch.compile` on a device type.

    Searches ``PATH`` and the programs named by ``CC`` and ``CXX`` once per process and runs nothing.

    Args:
        device_type: ``"cuda"`` or ``"cpu"``.

    Returns:
        A noun phrase such as ``"a C compiler (gcc or clang)"``, or None if nothing is missing.
    """
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


@cache
def warn_of_missing_compiler(device_type: str) -> bool:
    """True if a requirement is missing; the first such call in a process also logs a warning.

    Args:
        device_type: ``"cuda"`` or ``"cpu"``.
    """
    missing = compiler_missing(device_type)
    if missing is not None:
        _log.warning("compilation is off, so GraphSlice runs more slowly: install %s", missing)
    return missing is not None


def _on_path(command: str | None, *programs: str) -> bool:
    """True if the program of ``command`` exists or, without a command, one of ``programs``."""
    return any(shutil.which(name) for name in ((command.split()[0],) if command and command.split() else programs))
