"""The machine that a figure was measured on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path


def machine() -> dict[str, str | int | None]:
    """What a figure has to be read with."""
    import rdkit
    import torch

    name = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {"machine": name, "cores": cores, "torch": torch.__version__, "rdkit": rdkit.__version__}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def peak_memory(device_type: str = "cpu") -> int | None:
    """The most bytes in use so far: of the GPU by torch, or of this process; None where the system does not tell."""
    if device_type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # Windows
        return None
    # In KiB, but for macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
