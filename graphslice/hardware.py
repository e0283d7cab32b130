"""Hardware: devices, cores, memory, and the description of the machine stored with measurements."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Microseconds of processor time in each period that a container may use (cgroup v2).
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def default_device() -> str:
    """Return the default device: ``"cuda"`` if a CUDA GPU is available, else ``"cpu"``.

    Never ``"mps"`` (the GPU of a Mac), which lacks some operators. Torch, which knows, is not imported on machines
    without the driver of a GPU.
    """
    if "torch" not in sys.modules and not _has_gpu_driver():
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _has_gpu_driver() -> bool:
    """True if the machine has the library of NVIDIA's driver or the device of AMD's, or runs Windows."""
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        return True
    return Path("/dev/kfd").exists() or sys.platform == "win32"


def fast_dtype(capability: tuple[int, int] | None) -> str:
    """Return the precision in which a device multiplies fastest: ``"bf16"``, ``"16"`` or ``"32"``.

    GPUs compute natively with bfloat16 from compute capability 8.0 (A100, RTX 30). Earlier ones (V100, T4, RTX 20)
    emulate it more slowly than float32, but support float16 from 7.0.

    Args:
        capability: compute capability of a GPU; None for any other device.
    """
    if capability is None or capability < (7, 0):
        return "32"
    return "bf16" if capability >= (8, 0) else "16"


def device_name(device: torch.device | str = "cpu") -> str:
    """Return the model name of a GPU, or of the processor."""
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
    return name


def visible_gpus(accelerator: str) -> list[str]:
    """Return the GPUs available for training, as named in ``CUDA_VISIBLE_DEVICES``; none for other accelerators.

    Args:
        accelerator: ``trainer.accelerator`` of the configuration.
    """
    import torch

    if accelerator not in ("auto", "cuda", "gpu"):
        return []
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(count)] if named is None else [name.strip() for name in named.split(",")]
    return names[:count]


def allowed_cores() -> int:
    """Return the number of cores on which this process may run, at most all of them at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """Return the number of cores that this process may use, which a container or scheduler may limit."""
    count = allowed_cores()
    with suppress(OSError, ValueError):  # no such file, or "max" where there is no limit
        quota, period = map(int, _CPU_QUOTA.read_text().split())
        count = min(count, max(1, math.ceil(quota / period)))
    return count


def hardware_info() -> dict[str, str | int | None]:
    """Describe the machine and the library versions, to be stored with measurements."""
    import rdkit
    import torch

    info: dict[str, str | int | None] = {
        "machine": device_name(),
        "cores": cores(),
        "torch": torch.__version__,
        "rdkit": rdkit.__version__,
    }
    if torch.cuda.is_available():
        info["gpu"] = torch.cuda.get_device_name()
    return info


def peak_memory(device: torch.device | str = "cpu") -> int | None:
    """Return the peak memory of this process in bytes.

    Args:
        device: a GPU, whose memory is counted as allocated by torch; for any other device, main memory is counted.

    Returns:
        The peak memory, or None if the system does not report it.
    """
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")  # on Linux, where ru_maxrss includes the peak of the parent process
    if status.exists() and (found := re.search(r"^VmHWM:\s+(\d+)", status.read_text(), re.MULTILINE)):
        return int(found[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    # Bytes on macOS, KiB elsewhere.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
