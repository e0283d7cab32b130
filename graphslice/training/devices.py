"""Devices and precision of a run."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers import CSVLogger
from lightning_fabric.strategies import DDPStrategy, Strategy
from lightning_fabric.utilities.exceptions import MisconfigurationException

from graphslice.config import TrainerConfig
from graphslice.data.datamodule import DeviceShare
from graphslice.errors import InputError, check_number, first_line
from graphslice.nn.compiled import row_multiple
from graphslice.system.machine import default_device, fast_dtype

#: Smallest number of molecules per batch and GPU: fewer take a GPU about as long.
MIN_MOLECULES_PER_GPU = 32
#: Dtype of matrix products, by Lightning's name of the precision.
DTYPES = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass(frozen=True)
class Devices:
    """Devices and precision of a run."""

    accelerator: str  # cuda, cpu or mps
    count: int  # per machine
    machines: int
    precision: str  # 32-true, bf16-mixed or 16-mixed, as in Lightning
    note: str | None  # to print for the user

    @property
    def total(self) -> int:
        """Number of devices of all machines."""
        return self.machines * self.count


def choose_devices(settings: TrainerConfig) -> Devices:
    """Choose the devices and the precision of a run on this machine."""
    accelerator = default_device() if settings.accelerator == "auto" else settings.accelerator
    gpus = torch.cuda.device_count() if accelerator in ("cuda", "gpu") and torch.cuda.is_available() else 0
    launched, machines = launched_processes()
    note = None
    interactive = hasattr(sys, "ps1")  # in a notebook or Python prompt, further processes cannot be launched
    if settings.devices != "auto":
        count = int(settings.devices)
        check_number("trainer.devices", count, 1)
    else:
        worthwhile = 1 if interactive else min(gpus, settings.batch_size // MIN_MOLECULES_PER_GPU)
        count = launched or max(1, worthwhile)
        if count < gpus:
            note = f"{count} of {gpus} GPUs used for a batch of {settings.batch_size} molecules; see trainer.devices"
    if launched is not None and 1 < count != launched:
        raise InputError(
            f"trainer.devices is {count}, but the number of processes launched on each machine is {launched}: launch "
            f"one for each device, as with srun --ntasks-per-node {count}, or set trainer.devices to {launched}"
        )
    check_number(f"trainer.batch_size on {count * machines} devices", settings.batch_size, count * machines)
    used = range(min(count, gpus))
    precision = choose_precision(settings.precision, [torch.cuda.get_device_capability(i) for i in used])
    if accelerator == "mps":
        note = "training on mps is experimental: operators may be missing; use trainer.accelerator cpu instead"
    return Devices(accelerator, count, machines, precision, note)


def launched_processes() -> tuple[int | None, int]:
    """Return the processes per machine that ``torchrun`` or ``srun`` launched, if any, and the number of machines."""
    environment = os.environ
    if "LOCAL_WORLD_SIZE" in environment:  # torchrun, possibly within a Slurm job
        return int(environment["LOCAL_WORLD_SIZE"]), int(environment.get("GROUP_WORLD_SIZE", 1))
    if "SLURM_NTASKS" not in environment or environment.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None, 1
    machines = int(environment.get("SLURM_NNODES", 1))
    return int(environment.get("SLURM_NTASKS_PER_NODE", int(environment["SLURM_NTASKS"]) // machines)), machines


def choose_precision(wanted: str, capabilities: Sequence[tuple[int, int]]) -> str:
    """Choose the precision of a run, as named by Lightning, given the compute capability of every GPU used."""
    weakest = min(capabilities, default=None)
    if wanted == "bf16-mixed" and weakest is not None and weakest < (8, 0):
        raise InputError(
            f"a GPU of compute capability {weakest[0]}.{weakest[1]} has no bfloat16: leave out trainer.precision, "
            "or set it to 16-mixed or 32"
        )
    kind = fast_dtype(weakest) if wanted == "auto" else wanted.removesuffix("-mixed")
    return "32-true" if kind == "32" else f"{kind}-mixed"


def make_fabric(devices: Devices, out: Path, *, fresh: bool, log: bool = True) -> Fabric:
    """Make the access to the devices of a run, and its loggers to ``out``; every resumption has a log directory of its
    own. Raises :class:`InputError` if this machine does not support the devices."""
    version = 0 if fresh else len(list((out / "logs").glob("version_*")))
    # All buffers are constants and equal on all devices, so they need no broadcast.
    strategy: str | Strategy = "auto" if devices.total == 1 else DDPStrategy(broadcast_buffers=False)
    try:
        return Fabric(
            accelerator=devices.accelerator,
            strategy=strategy,
            devices=devices.count,
            num_nodes=devices.machines,
            precision=devices.precision,  # type: ignore[arg-type]
            loggers=[CSVLogger(out, "logs", version)] if log else [],
        )
    except (ValueError, RuntimeError, TypeError, ImportError, MisconfigurationException) as error:
        raise InputError(f"this machine cannot train with these settings: {first_line(error)}") from None


def device_share(fabric: Fabric) -> DeviceShare:
    """Return this process's device of a run, and the precision."""
    kind, precision = fabric.device.type, str(fabric.strategy.precision.precision)
    multiple = row_multiple(kind, torch.float32 if precision == "32-true" else torch.bfloat16)
    return DeviceShare(fabric.global_rank, fabric.world_size, kind, precision, multiple)


def autocast(fabric: Fabric) -> AbstractContextManager:
    """Return the context of a forward pass in the precision of a run."""
    dtype = DTYPES[device_share(fabric).precision]
    # Fabric's own context caches the casts of weights, for which torch.compile would compile again.
    return nullcontext() if dtype == torch.float32 else torch.autocast(fabric.device.type, dtype, cache_enabled=False)


class quiet_lightning(warnings.catch_warnings):
    """Context manager that hides Lightning's tips and banners, but not its errors."""

    def __enter__(self):
        super().__enter__()
        for name in ("lightning_fabric", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="lightning|torch.utils.data")
        warnings.filterwarnings("ignore", message=".*lr_scheduler.*")
