"""Diagnosis of this machine for ``graphslice doctor``: hardware, correctness and speed of operators."""

from __future__ import annotations

import csv
import dataclasses
import importlib.metadata
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphslice._version import __version__
from graphslice.chem.molecule import read_smiles
from graphslice.config import RunConfig
from graphslice.data.batches import extreme_batches
from graphslice.data.store import GraphStore
from graphslice.doctor.checks import OperatorCheck, check_operator, operators_on
from graphslice.nn import GraphTransformer
from graphslice.nn.agreement import faulty_backends
from graphslice.ops.triton import compiler_missing
from graphslice.system.machine import DEMO_CSV, fast_dtype, hardware_info

_PACKAGES = ("torch", "triton", "numba", "rdkit", "pytorch-lightning", "torch-geometric", "ogb")


@dataclass
class Diagnosis:
    """Results of ``graphslice doctor``."""

    machine: dict[str, Any]  # as of describe_machine
    device: str
    operators: list[OperatorCheck] = field(default_factory=list)  # one check per operator and dtype
    faults: dict[str, str] = field(default_factory=dict)  # what is wrong in a training step of a model, by operator

    @property
    def problems(self) -> list[str]:
        """Messages of the failed checks; empty if all passed."""
        operators = [f"{c.operator} in {c.dtype}: {c.problem}" for c in self.operators if c.problem]
        return operators + [f"model: {name}: {reason}" for name, reason in self.faults.items()]

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON-serialisable dictionary, with ``problems``."""
        return dataclasses.asdict(self) | {"problems": self.problems}


def describe_machine() -> dict[str, Any]:
    """Describe processor, cores, GPUs, compilers and package versions, None for a package that is not installed."""
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
    """Check every operator that has a backend for a device in every dtype; ``progress`` is called before each."""
    checks: list[OperatorCheck] = []
    names = operators_on(device)
    for number, name in enumerate(names, 1):
        progress(f"operator {name} ({number} of {len(names)})")
        checks += check_operator(name, device)
    return checks


def check_model(device: torch.device) -> dict[str, str]:
    """Check a training step of a model of two layers: the faults by operator, as of :func:`faulty_backends`."""
    config = RunConfig.preset("small")
    with Path(DEMO_CSV).open(newline="", encoding="utf-8") as file:
        store = GraphStore.from_arrays(*read_smiles([row["smiles"] for row in islice(csv.DictReader(file), 1000)])[:2])
    batches = extreme_batches(store, np.flatnonzero(store.sizes > 0), **config.collate_settings)
    torch.manual_seed(0)
    model = GraphTransformer(dataclasses.replace(config.model, layers=2)).to(device)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    dtype = {"bf16": torch.bfloat16, "16": torch.float16, "32": torch.float32}[fast_dtype(capability)]
    return faulty_backends(model, [batch.to(device) for batch in batches], dtype)
