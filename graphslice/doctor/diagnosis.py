"""Diagnosis of this machine for ``graphslice doctor``: hardware, correctness and speed of operators and presets."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from graphslice._version import __version__
from graphslice.doctor.operators import OperatorCheck, check_operator, operators_on
from graphslice.doctor.presets import PresetCheck, check_compiled, check_eager
from graphslice.hardware import fast_dtype, hardware_info
from graphslice.ops.toolchain import compiler_missing
from graphslice.processes import ChildDied, run_in_child

_PACKAGES = ("torch", "triton", "numba", "rdkit", "pytorch-lightning", "torch-geometric", "torch-scatter", "ogb")


@dataclass
class Diagnosis:
    """Results of :func:`diagnose`.

    Attributes:
        machine: processor, cores, GPUs, compiler and package versions by name, as of :func:`describe_machine`.
        device: the tested device.
        operators: one check per operator and dtype.
        presets: one check per preset.
    """

    machine: dict[str, Any]
    device: str
    operators: list[OperatorCheck] = field(default_factory=list)
    presets: list[PresetCheck] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Messages of the failed checks; empty if all passed."""
        operators = [f"{c.operator} in {c.dtype}: {c.problem}" for c in self.operators if c.problem]
        return operators + [f"preset {c.preset}: {c.problem}" for c in self.presets if c.problem]

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON-serialisable dictionary, with ``problems``."""
        return dataclasses.asdict(self) | {"problems": self.problems}


def describe_machine() -> dict[str, Any]:
    """Describe the hardware and software: processor, cores, GPUs, compilers and package versions.

    Returns:
        Values by name; the version of a package that is not installed is None, and ``gpus`` is a list of dictionaries.
    """
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    gpus = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(number)
        gpus.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "processors": properties.multi_processor_count,
            }
        )
    return {
        "processor": hardware_info()["machine"],
        "cores": hardware_info()["cores"],
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "graphslice": __version__,
        **versions,
        "cuda": torch.version.cuda,
        "missing for torch.compile": compiler_missing("cpu"),
        "missing for Triton": compiler_missing("cuda"),
        "gpus": gpus,
        "mps": torch.backends.mps.is_available(),
    }


def diagnose(
    device: torch.device | None, presets: Sequence[str], progress: Callable[[str], None] = lambda description: None
) -> Diagnosis:
    """Check all operators and the training steps of presets on a device, in child processes.

    Args:
        device: the CPU or a GPU; None for the GPU if there is one, else the CPU.
        presets: names of :data:`~graphslice.config.PRESETS`.
        progress: called with a description of each check before it starts.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    dtype = {"bf16": torch.bfloat16, "16": torch.float16, "32": torch.float32}[fast_dtype(capability)]
    diagnosis = Diagnosis(describe_machine(), str(device))
    diagnosis.operators = list(_check_operators(device, progress))
    checks = {preset: PresetCheck(preset, "", str(dtype).removeprefix("torch.")) for preset in presets}
    for check, one_process, prefix in (
        (check_eager, False, "a training step of"),
        (check_compiled, True, "a compiled training step of"),
    ):
        passed = [preset for preset in presets if checks[preset].problem is None]
        on_start = partial(_report_progress, progress, prefix)
        for preset, part in run_in_child(check, passed, (device, dtype), one_process=one_process, on_start=on_start):
            checks[preset] = _merge_checks(checks[preset], part)
    diagnosis.presets = list(checks.values())
    return diagnosis


def _report_progress(progress: Callable[[str], None], prefix: str, name: str) -> None:
    progress(f"{prefix} {name}")


def _check_operators(device: torch.device, progress: Callable[[str], None]) -> Iterator[OperatorCheck]:
    for name, part in run_in_child(
        check_operator, operators_on(device), (device,), one_process=True, on_start=progress
    ):
        yield OperatorCheck(name, "?", "?", str(part)) if isinstance(part, ChildDied) else part


def _merge_checks(check: PresetCheck, part: PresetCheck | ChildDied) -> PresetCheck:
    """Add the results of a part of the checks to those of a preset."""
    if isinstance(part, ChildDied):
        return dataclasses.replace(check, problem=str(part))
    new = {name: value for name, value in vars(part).items() if value is not None}
    return dataclasses.replace(check, **new)
