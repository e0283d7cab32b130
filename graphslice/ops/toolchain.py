"""What a machine needs beside torch to compile: for a GPU Triton and a C compiler, for a CPU one of C++."""

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
    """What is missing for kernels and :func:`torch.compile` on a type of device; None if nothing is.

    Looked up once in a process, among the programs in ``PATH`` and what ``CC`` and ``CXX`` name; nothing is run.

    Args:
        device_type: ``"cuda"`` or ``"cpu"``.

    Returns:
        A phrase such as ``"a C compiler (gcc or clang)"``.
    """
    if device_type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "Triton"
        if sys.platform == "win32":  # Triton brings one
            return None
        if not _on_path(os.environ.get("CC"), "gcc", "clang"):
            return "a C compiler (gcc or clang)"
        if not Path(sysconfig.get_path("include"), "Python.h").is_file():
            return "the headers of Python (such as the package python3-dev)"
        return None
    known = {"win32": ("cl",), "darwin": ("clang++", "g++")}.get(sys.platform, ("g++",))
    return None if _on_path(os.environ.get("CXX"), *known) else f"a C++ compiler ({' or '.join(known)})"


@cache
def warn_of_missing_compiler(device_type: str) -> bool:
    """Whether something is missing; if so, one line on stderr says it, once in a process."""
    missing = compiler_missing(device_type)
    if missing is not None:
        _log.warning("graphslice computes with plain torch, which is slower: this machine has not %s", missing)
    return missing is not None


def _on_path(chosen: str | None, *programs: str) -> bool:
    """Whether the program that an environment variable names is there or, where it names none, one of these."""
    return any(shutil.which(program) for program in ((chosen.split()[0],) if chosen and chosen.split() else programs))
