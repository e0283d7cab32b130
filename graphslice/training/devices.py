"""What a run computes on, and with which numbers, decided before anything is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from graphslice.config import TrainerConfig
from graphslice.errors import InputError
from graphslice.hardware import default_device, fast_dtype
from graphslice.nn.encodings import encodings_supported

#: The fewest molecules of a batch that are worth a GPU of their own: a smaller share takes it about as long.
MIN_MOLECULES_PER_GPU = 32


@dataclass(frozen=True)
class Devices:
    """What a run computes on.

    Attributes:
        accelerator: cuda, cpu or mps.
        count: devices of each machine.
        machines: how many.
        precision: 32-true, bf16-mixed or 16-mixed, in Lightning's words.
        note: what the user should know, or None.
    """

    accelerator: str
    count: int
    machines: int
    precision: str
    note: str | None

    @property
    def total(self) -> int:
        """Devices of all machines."""
        return self.machines * self.count


def choose_devices(settings: TrainerConfig) -> Devices:
    """What this machine gives a run.

    Raises:
        InputError: if its GPUs cannot compute with the precision that was asked for, or several devices
            are asked for where only one process can be.
    """
    accelerator = default_device() if settings.accelerator == "auto" else settings.accelerator
    gpus = torch.cuda.device_count() if accelerator in ("cuda", "gpu") and torch.cuda.is_available() else 0
    launched, machines = launched_processes(os.environ)
    note = None
    interactive = hasattr(sys, "ps1")  # a notebook, or Python's prompt: no other process can begin again from there
    if settings.devices.isascii() and settings.devices.isdigit() and int(settings.devices) > 0:
        count = int(settings.devices)
        if interactive and count != 1:
            raise InputError("a notebook trains on one device: for several use graphslice train on the command line")
    elif settings.devices != "auto":
        raise InputError(
            f"trainer.devices is auto or a number from 1 on, not {settings.devices!r}; which GPUs are taken, "
            "CUDA_VISIBLE_DEVICES says"
        )
    else:
        count = launched or (1 if interactive else worthwhile_gpus(gpus, settings.batch_size))
        if gpus > 1 and launched is None and count < gpus:
            reason = (
                "a notebook trains on one" if interactive else f"batches of {settings.batch_size} keep no more busy"
            )
            note = f"{count} of {gpus} GPUs used: {reason}; --trainer.devices decides otherwise"
    if count * machines > settings.batch_size:
        raise InputError(
            f"{count * machines} devices need at least as many molecules in a batch: "
            f"trainer.batch_size is {settings.batch_size}"
        )
    used = range(min(count, gpus))
    precision = choose_precision(settings.precision, [torch.cuda.get_device_capability(i) for i in used])
    if accelerator == "mps":
        if not encodings_supported("mps"):
            raise InputError(
                "torch has not all that the model needs on mps here: without --trainer.accelerator the CPU is taken"
            )
        note = "training on mps is not proven: some operators may be missing or slow; --trainer.accelerator cpu is"
    return Devices(accelerator, count, machines, precision, note)


def launched_processes(environment: Mapping[str, str]) -> tuple[int | None, int]:
    """Processes a machine that ``torchrun`` or ``srun`` has begun, None where neither did; and machines.

    Args:
        environment: variables of this process.
    """
    if "LOCAL_WORLD_SIZE" in environment:  # torchrun, which may run within a job of Slurm
        return int(environment["LOCAL_WORLD_SIZE"]), int(environment.get("GROUP_WORLD_SIZE", 1))
    if "SLURM_NTASKS" not in environment or environment.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None, 1
    machines = int(environment.get("SLURM_NNODES", 1))
    return int(environment.get("SLURM_NTASKS_PER_NODE", int(environment["SLURM_NTASKS"]) // machines)), machines


def worthwhile_gpus(gpus: int, batch_size: int) -> int:
    """How many of some GPUs have enough to do when they share a batch; 1 of none, the CPU.

    Args:
        gpus: there are.
        batch_size: molecules of a step, over all devices.
    """
    return max(1, min(gpus, batch_size // MIN_MOLECULES_PER_GPU))


def choose_precision(wanted: str, capabilities: Sequence[tuple[int, int]]) -> str:
    """The precision of a run, in Lightning's words.

    Args:
        wanted: auto, 32, bf16-mixed or 16-mixed.
        capabilities: compute capability of every GPU used; none on another device.

    Raises:
        InputError: if bfloat16 is wanted of a GPU that has none.
    """
    weakest = min(capabilities, default=None)
    if wanted == "bf16-mixed" and weakest is not None and weakest < (8, 0):
        raise InputError(
            f"a GPU of compute capability {weakest[0]}.{weakest[1]} has no bfloat16: leave out --trainer.precision, "
            "or give 16-mixed or 32"
        )
    kind = fast_dtype(weakest) if wanted == "auto" else wanted.removesuffix("-mixed")
    return "32-true" if kind == "32" else f"{kind}-mixed"
