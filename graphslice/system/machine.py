"""The machine: devices, cores, memory. The installation: compiled kernels, packaged files, the user's cache."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Microseconds of processor time in each period that a container may use (cgroup v2).
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def default_device() -> str:
    """Return ``"cuda"`` if a CUDA GPU is available, else ``"cpu"``, for which torch is not imported; never ``"mps"``
    (the GPU of a Mac), which lacks operators."""
    if "torch" not in sys.modules and not has_gpu_driver():
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def has_gpu_driver() -> bool:
    """True if the machine has the library of NVIDIA's driver or the device of AMD's, or runs Windows."""
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        return True
    return Path("/dev/kfd").exists() or sys.platform == "win32"


def fast_dtype(capability: tuple[int, int] | None) -> str:
    """Return the precision in which a device of this compute capability (None: no GPU) multiplies fastest: bfloat16 is
    native from 8.0 (A100, RTX 30), float16 from 7.0 (V100, T4, RTX 20)."""
    if capability is None or capability < (7, 0):
        return "32"
    return "bf16" if capability >= (8, 0) else "16"


def device_name(device: torch.device | str = "cpu") -> str:
    """Return the model name of a GPU, or of the processor."""
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError):
        if found := re.search(r"^model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return found[1]
    return platform.processor()


def visible_gpus(accelerator: str) -> list[str]:
    """Return the GPUs for ``trainer.accelerator`` as named in ``CUDA_VISIBLE_DEVICES``; none for other accelerators."""
    import torch

    if accelerator not in ("auto", "cuda", "gpu"):
        return []
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(count)] if named is None else [name.strip() for name in named.split(",")]
    return names[:count]


def allowed_cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """Return the number of cores whose time this process may use, which a container may limit."""
    count = allowed_cores()
    with suppress(OSError, ValueError):  # no such file, or "max" where there is no limit
        quota, period = map(int, _CPU_QUOTA.read_text().split())
        count = min(count, max(1, math.ceil(quota / period)))
    return count


def hardware_info() -> dict[str, str | int | None]:
    """Describe the machine and the library versions, to be stored with measurements."""
    import rdkit
    import torch

    info: dict[str, str | int | None] = {"machine": device_name(), "cores": cores()}
    info |= {"torch": torch.__version__, "rdkit": rdkit.__version__}
    if torch.cuda.is_available():
        info["gpu"] = torch.cuda.get_device_name()
    return info


def peak_memory(device: torch.device | str = "cpu") -> int | None:
    """Return the peak memory in bytes of a GPU, as allocated by torch, or of this process; None if not reported."""
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


def remove_kernels_of_other_versions(package: Path, version: str) -> None:
    """Remove the compiled kernels in a package's folders, unless its ``__pycache__`` names this version.

    Numba compiles a kernel again if its own file has changed, but not if the file of a function that it calls has.
    """
    stamp = package / "__pycache__" / "kernels"
    with suppress(OSError):  # where the folder cannot be written, numba writes elsewhere
        if not stamp.is_file() or stamp.read_text() != version:
            for index in package.rglob("__pycache__/*.nb[ic]"):
                index.unlink(missing_ok=True)
            stamp.parent.mkdir(exist_ok=True)
            stamp.write_text(version)


def choose_kernel_folder(package: Path, version: str) -> None:
    """Let numba, not yet imported, keep kernels in the user's cache if the folder of the package cannot be written."""
    if "NUMBA_CACHE_DIR" not in os.environ and not os.access(package, os.W_OK):
        with suppress(OSError):
            os.environ["NUMBA_CACHE_DIR"] = str(default_cache() / f"kernels-{version}")


_PACKAGE = Path(__file__).parents[1]


def package_directory(folder: str) -> Path:
    """Return the folder ``configs`` or ``data`` of this installation."""
    packaged = _PACKAGE / "_files" / folder
    return packaged if packaged.is_dir() else _PACKAGE.parent / folder


CONFIGS = package_directory("configs")
DEMO_CSV = package_directory("data") / "demo.csv"
#: Checkpoints of the packaged models by name; a name can be given instead of a run directory.
MODELS = {path.stem: path for path in sorted((_PACKAGE / "weights").glob("*.safetensors"))}

#: The packaged model that is fine-tuned on small datasets. Its architecture is that of the preset of this name.
PRETRAINED_MODEL = "small"


def is_packaged_model(path: str | Path) -> bool:
    """True if ``path`` is the name of a packaged model and not an existing file or folder."""
    return str(path) in MODELS and not Path(path).exists()


def default_cache() -> Path:
    """Return ``$GRAPHSLICE_CACHE``, else one in the user's cache directory, or for temporary files if not writable."""
    if directory := os.environ.get("GRAPHSLICE_CACHE"):
        return Path(directory)
    with suppress(OSError, RuntimeError):  # there may be no home
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "graphslice")
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return temporary_cache()


@cache
def temporary_cache() -> Path:
    """Return a folder for temporary files that belongs to this user, since what is read there may be run."""
    user = os.getuid() if hasattr(os, "getuid") else "user"  # elsewhere the folder is the user's own
    folder = Path(tempfile.gettempdir()) / f"graphslice-cache-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    is_own = user in ("user", folder.lstat().st_uid)
    return folder if is_own else Path(tempfile.mkdtemp(prefix="graphslice-cache-"))
