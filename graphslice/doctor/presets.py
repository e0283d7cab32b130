"""Checks of a training step of each preset on this machine: agreement, time and memory, eager and compiled."""

from __future__ import annotations

import csv
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from graphslice.batch import GraphBatch
from graphslice.chem.molecule import read_smiles
from graphslice.config import RunConfig
from graphslice.data.batch_loader import collate_rows, extreme_batches
from graphslice.data.store import GraphStore
from graphslice.doctor.operators import synchronize
from graphslice.hardware import peak_memory
from graphslice.inference.gpu import free_memory
from graphslice.nn import GraphTransformer
from graphslice.nn.agreement import compile_checked, compute_step, faulty_backends, one_line
from graphslice.package_data import DEMO_CSV

# Number of layers of the compiled model: all layers are alike, and each takes seconds to compile.
_COMPILED_LAYERS = 2
# Maximum batch size on a CPU; on a GPU the batch size of the preset is used.
_CPU_BATCH = 16


@dataclass
class PresetCheck:
    """Check of a training step of a preset on molecules of the demo dataset.

    Attributes:
        preset: name of the preset.
        mixer: mixer of the preset.
        dtype: dtype of the matrix products.
        problem: None, or the error message.
        batch_size: number of molecules of the timed steps.
        eager_seconds: time of a step (forward, backward, AdamW) in seconds, the shortest of three.
        compile_seconds: time in seconds to compile two layers and run their first step; shorter if torch has them in
            its cache.
        compiled_speed: speed-up of two compiled layers over two eager ones, forward and backward (ratio of median
            times).
        bytes_per_molecule: memory in bytes per additional molecule of a batch.
        largest_batch: largest batch size that fits in the memory with a tenth left free; tested on a GPU, extrapolated
            on a CPU.
    """

    preset: str
    mixer: str
    dtype: str
    problem: str | None = None
    batch_size: int | None = None
    eager_seconds: float | None = None
    compile_seconds: float | None = None
    compiled_speed: float | None = None
    bytes_per_molecule: int | None = None
    largest_batch: int | None = None


def check_step(preset: str, device: torch.device, dtype: torch.dtype, compiled: bool) -> PresetCheck:
    """Check a training step of a preset, with products in ``dtype``, as far as there is no problem.

    Time and memory of an eager step are measured, then its backends are compared with plain torch; call it in a process
    of its own, because the peak memory is that of the lifetime of the process. A compiled step is compared with the
    eager one, and both are timed.
    """
    config = RunConfig.preset(preset)
    check = PresetCheck(preset, config.model.mixer, str(dtype).removeprefix("torch."))
    molecules = _DemoBatches(config, device)
    for part in (_compiled,) if compiled else (_time_and_memory, _backends):
        try:
            check = replace(check, **part(config, molecules, device, dtype))
        except Exception as error:  # compilers and drivers raise many kinds
            check = replace(check, problem=f"{part.__doc__}: {type(error).__name__}: {one_line(error)}")
        if check.problem:
            break
    return check


class _DemoBatches:
    """Batches of molecules of the demo dataset."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        with Path(DEMO_CSV).open(newline="", encoding="utf-8") as file:
            smiles = [row["smiles"] for row in csv.DictReader(file)][:1000]
        arrays, reasons, _ = read_smiles(smiles)
        self.store = GraphStore.from_arrays(arrays, reasons)
        self.rows = np.flatnonzero(self.store.sizes > 0)
        self.settings, self.device = config.collate_settings, device

    def batch(self, size: int, multiple: int = 1) -> GraphBatch:
        """Collate ``size`` random molecules, with the number of atoms padded to a multiple."""
        rows = np.random.default_rng(0).choice(self.rows, size)
        return collate_rows(self.store, rows, multiple=multiple, **self.settings).to(self.device)

    def extremes(self) -> list[GraphBatch]:
        """Collate a batch of small molecules and a batch of large ones."""
        return [batch.to(self.device) for batch in extreme_batches(self.store, self.rows, **self.settings)]


def _time_and_memory(config: RunConfig, molecules: _DemoBatches, device: torch.device, dtype: torch.dtype) -> dict:
    """an eager step"""
    size = config.trainer.batch_size if device.type == "cuda" else min(_CPU_BATCH, config.trainer.batch_size)
    run = _training_step(config, device, dtype)
    small, large = molecules.batch(max(1, size // 4)), molecules.batch(size)
    run(small)
    run(small)
    before = peak_memory(device)
    seconds = [_seconds(lambda: run(large), device) for _ in range(3)]
    results: dict = {"batch_size": size, "eager_seconds": min(seconds)}
    after, free = peak_memory(device), _free_memory(device)
    if before is None or after is None or after <= before:
        return results
    bytes_per_molecule = (after - before) / (size - max(1, size // 4))
    results["bytes_per_molecule"] = int(bytes_per_molecule)
    if free is not None:
        largest = min(1 << 16, int(size + 0.9 * free / bytes_per_molecule))
        results["largest_batch"] = (
            _largest_fitting_batch(lambda n: run(molecules.batch(n)), largest) if device.type == "cuda" else largest
        )
    return results


def _training_step(config: RunConfig, device: torch.device, dtype: torch.dtype) -> Callable[[GraphBatch], None]:
    torch.manual_seed(0)
    model = GraphTransformer(config.model).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def run(batch: GraphBatch) -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            predictions = model.standardised(batch)
        predictions.abs().mean().backward()
        optimizer.step()

    return run


def _largest_fitting_batch(run: Callable[[int], None], size: int) -> int:
    """Reduce the batch size by a quarter until a step fits in the memory of the GPU."""
    while size > 1:
        try:
            run(size)
            return size
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            size = size * 3 // 4
    return size


def _backends(config: RunConfig, molecules: _DemoBatches, device: torch.device, dtype: torch.dtype) -> dict:
    """a step with plain torch"""
    model = _shallow_model(config, device)
    faulty = faulty_backends(model, molecules.extremes(), dtype)
    return {"problem": "; ".join(f"{name}: {reason}" for name, reason in faulty.items()) or None}


def _shallow_model(config: RunConfig, device: torch.device) -> GraphTransformer:
    torch.manual_seed(0)
    layers = min(_COMPILED_LAYERS, config.model.layers)
    return GraphTransformer(replace(config.model, layers=layers)).to(device)


def _compiled(config: RunConfig, molecules: _DemoBatches, device: torch.device, dtype: torch.dtype) -> dict:
    """a compiled step"""
    model, size = _shallow_model(config, device), 32
    batch = molecules.batch(size, multiple=8)
    compute_step(model, batch, dtype)
    seconds = [_seconds(lambda: compute_step(model, batch, dtype), device) for _ in range(5)]
    start = time.perf_counter()
    problem = compile_checked(model, [batch], dtype, mode="reduce-overhead" if device.type == "cuda" else "default")
    results: dict = {"compile_seconds": time.perf_counter() - start}
    if problem is not None:
        return results | {"problem": f"compiled: {problem}"}
    fast = [_seconds(lambda: compute_step(model, batch, dtype), device) for _ in range(7)]
    # The first two steps record CUDA graphs.
    return results | {"compiled_speed": statistics.median(seconds) / statistics.median(fast[2:])}


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def _free_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return free_memory(device)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, AttributeError):  # Windows, macOS
        return None
