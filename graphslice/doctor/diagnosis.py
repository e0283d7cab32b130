"""Diagnosis of this machine for ``graphslice doctor``: hardware, correctness and speed of operators and presets."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from graphslice._version import __version__
from graphslice.doctor.operators import OperatorCheck, check_operator, operators_on
from graphslice.doctor.presets import PresetCheck, check_step
from graphslice.hardware import fast_dtype, hardware_info
from graphslice.ops.toolchain import compiler_missing
from graphslice.processes import ChildDied, run_in_child

_PACKAGES = ("torch", "triton", "numba", "rdkit", "pytorch-lightning", "torch-geometric", "ogb")


@dataclass
class Diagnosis:
    """Results of ``graphslice doctor``.

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
    hardware = hardware_info()
    return {
        "processor": hardware["machine"],
        "cores": hardware["cores"],
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


def check_operators(
    device: torch.device, progress: Callable[[str], None] = lambda description: None
) -> list[OperatorCheck]:
    """Check every operator that has a backend for a device in every dtype, in a child process.

    ``progress`` is called with a description of each check before it starts.
    """
    checks: list[OperatorCheck] = []
    names = operators_on(device)
    on_start = _numbered(progress, names, "operator")
    for name, found in run_in_child(check_operator, names, (device,), one_process=True, on_start=on_start):
        checks += [OperatorCheck(name, "?", "?", str(found))] if isinstance(found, ChildDied) else found
    return checks


def check_presets(
    device: torch.device, presets: Sequence[str], progress: Callable[[str], None] = lambda description: None
) -> list[PresetCheck]:
    """Check the training steps of presets on a device, eager and compiled, in child processes: one check per preset.

    ``progress`` is called with a description of each check before it starts.
    """
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    dtype = {"bf16": torch.bfloat16, "16": torch.float16, "32": torch.float32}[fast_dtype(capability)]
    checks = {preset: PresetCheck(preset, "", str(dtype).removeprefix("torch.")) for preset in presets}
    for compiled, what in ((False, "training step of"), (True, "compiled training step of")):
        passed = [preset for preset in presets if checks[preset].problem is None]
        on_start = _numbered(progress, passed, what)
        found = run_in_child(check_step, passed, (device, dtype, compiled), one_process=compiled, on_start=on_start)
        for preset, part in found:
            checks[preset] = _merge_checks(checks[preset], part)
    return list(checks.values())


def _numbered(progress: Callable[[str], None], names: Sequence[str], what: str) -> Callable[[str], None]:
    return lambda name: progress(f"{what} {name} ({names.index(name) + 1} of {len(names)})")


def _merge_checks(check: PresetCheck, part: PresetCheck | ChildDied) -> PresetCheck:
    """Add the results of a part of the checks to those of a preset."""
    if isinstance(part, ChildDied):
        return dataclasses.replace(check, problem=str(part))
    new = {name: value for name, value in vars(part).items() if value is not None}
    return dataclasses.replace(check, **new)
