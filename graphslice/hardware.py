"""The machine: what it computes on, and what a figure measured on it has to be read with."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def default_device() -> str:
    """Where a model computes when nobody says: ``"cuda"`` where there is such a GPU, else ``"cpu"``.

    Never ``"mps"``, the GPU of a Mac: it lacks some of the operators.
    """
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def fast_dtype(capability: tuple[int, int] | None) -> str:
    """The numbers that a device multiplies fastest: ``"bf16"``, ``"16"`` or ``"32"``.

    GPUs compute with bfloat16 from compute capability 8.0 (A100, RTX 30) on: those before (V100, T4, RTX 20)
    emulate it, slower than float32, but have float16 from 7.0 on.

    Args:
        capability: of a GPU; None for any other device.
    """
    if capability is None or capability < (7, 0):
        return "32"
    return "bf16" if capability >= (8, 0) else "16"


def device_name(device: torch.device | str = "cpu") -> str:
    """What a device is called: the model of the GPU, or of the processor."""
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
    return name


def visible_gpus(accelerator: str) -> list[str]:
    """The GPUs that runs can have, as ``CUDA_VISIBLE_DEVICES`` names them; none where they train on something else.

    Args:
        accelerator: of the configuration.
    """
    import torch

    if accelerator not in ("auto", "cuda", "gpu"):
        return []
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(count)] if named is None else [name.strip() for name in named.split(",")]
    return names[:count]


def cores() -> int:
    """The cores that this process may use, which a container or a scheduler may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hardware_info() -> dict[str, str | int | None]:
    """What a figure has to be read with."""
    import rdkit
    import torch

    found: dict[str, str | int | None] = {
        "machine": device_name(),
        "cores": cores(),
        "torch": torch.__version__,
        "rdkit": rdkit.__version__,
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def peak_memory(device: torch.device | str = "cpu") -> int | None:
    """The most bytes in use so far by this process: of the GPU ``device``, as torch counts, or of the main memory.

    None where the system does not tell.
    """
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    # In KiB, but for macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
