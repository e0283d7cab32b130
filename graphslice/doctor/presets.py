"""A training step of each preset on this machine: compiled against eager, its time and its memory."""

from __future__ import annotations

import csv
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from graphslice.batch import GraphBatch
from graphslice.chem.molecule import read_smiles
from graphslice.config import RunConfig
from graphslice.data.collate import collate_rows
from graphslice.data.store import GraphStore
from graphslice.doctor.agreement import compile_checked, compute_step, extreme_batches, faulty_backends, one_line
from graphslice.doctor.operators import synchronize
from graphslice.hardware import peak_memory
from graphslice.inference.gpu import free_memory
from graphslice.nn import GraphTransformer
from graphslice.package_data import DEMO_CSV

# Layers of the model that is compiled: they are all alike, and each takes seconds.
_COMPILED_LAYERS = 2
# Molecules of a step on a CPU; a GPU takes the batch of the preset.
_CPU_BATCH = 16


@dataclass
class PresetCheck:
    """A training step of a preset, of molecules of the demo set.

    Attributes:
        preset: its name.
        mixer: of the preset.
        dtype: of the products.
        problem: None, or what went wrong.
        batch_size: molecules of the steps that were timed.
        eager_seconds: of a step, the shortest of three: forward, backward, AdamW.
        compile_seconds: until two compiled layers had made their first step; less where torch has them in its cache.
        compiled_speed: the time of two eager layers over that of the compiled ones, forward and backward.
        bytes_per_molecule: that a larger batch takes.
        largest_batch: whose memory there is, with a tenth left free; tried on a GPU, computed on a CPU.
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


def check_eager(preset: str, device: torch.device, dtype: torch.dtype) -> Iterator[PresetCheck]:
    """The time and the memory of a step, then the backends in it; what is known so far after each.

    Call it in a process of its own: the most memory that a process took is known for all of its life only.
    """
    return _checks(preset, device, dtype, (_time_and_memory, _backends))


def check_compiled(preset: str, device: torch.device, dtype: torch.dtype) -> Iterator[PresetCheck]:
    """The compiled step."""
    return _checks(preset, device, dtype, (_compiled,))


def _checks(preset: str, device: torch.device, dtype: torch.dtype, parts: Sequence[Callable]) -> Iterator[PresetCheck]:
    config = RunConfig.preset(preset)
    check = PresetCheck(preset, config.model.mixer, str(dtype).removeprefix("torch."))
    molecules = _DemoBatches(config, device)
    for part in parts:
        try:
            check = replace(check, **part(config, molecules, device, dtype))
        except Exception as error:  # whatever a compiler or a driver raises
            check = replace(check, problem=f"{part.__doc__}: {type(error).__name__}: {one_line(error)}")
        yield check
        if check.problem:
            return


class _DemoBatches:
    """Batches of molecules of the demo set."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        with Path(DEMO_CSV).open(newline="", encoding="utf-8") as file:
            smiles = [row["smiles"] for row in csv.DictReader(file)][:1000]
        arrays, reasons = read_smiles(smiles)
        self.store = GraphStore.from_arrays(arrays, reasons)
        self.rows = np.flatnonzero(self.store.sizes > 0)
        self.settings, self.device = config.collate_settings, device

    def batch(self, size: int, multiple: int = 1) -> GraphBatch:
        """So many molecules, drawn at random."""
        rows = np.random.default_rng(0).choice(self.rows, size)
        return collate_rows(self.store, rows, multiple=multiple, **self.settings).to(self.device)

    def extremes(self) -> list[GraphBatch]:
        """Small molecules and large ones."""
        return [batch.to(self.device) for batch in extreme_batches(self.store, self.rows, self.settings)]


def _time_and_memory(config: RunConfig, molecules: _DemoBatches, device: torch.device, dtype: torch.dtype) -> dict:
    """an eager step"""
    size = config.trainer.batch_size if device.type == "cuda" else min(_CPU_BATCH, config.trainer.batch_size)
    run = _training_step(config, device, dtype)
    small, large = molecules.batch(max(1, size // 4)), molecules.batch(size)
    run(small)
    run(small)
    before = _peak_memory(device)
    seconds = [_seconds(lambda: run(large), device) for _ in range(3)]
    found: dict = {"batch_size": size, "eager_seconds": min(seconds)}
    after, free = _peak_memory(device), _free_memory(device)
    if before is None or after is None or after <= before:
        return found
    each = (after - before) / (size - max(1, size // 4))
    found["bytes_per_molecule"] = int(each)
    if free is not None:
        largest = min(1 << 16, int(size + 0.9 * free / each))
        found["largest_batch"] = (
            _largest_fitting_batch(lambda n: run(molecules.batch(n)), largest) if device.type == "cuda" else largest
        )
    return found


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
    """The largest batch that fits, at most ``size``."""
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
    begin = time.perf_counter()
    problem = compile_checked(model, [batch], dtype, mode="reduce-overhead" if device.type == "cuda" else "default")
    found: dict = {"compile_seconds": time.perf_counter() - begin}
    if problem is not None:
        return found | {"problem": f"compiled: {problem}"}
    fast = [
        _seconds(lambda: compute_step(model, batch, dtype), device) for _ in range(7)
    ]  # the first ones record CUDA graphs
    return found | {"compiled_speed": statistics.median(seconds) / statistics.median(fast[2:])}


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    begin = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - begin


def _peak_memory(device: torch.device) -> int | None:
    """The most bytes that this process had in use; None where the system does not tell."""
    if device.type == "cuda":
        return peak_memory(device)
    status = Path("/proc/self/status")  # getrusage begins with the most of the parent
    if not status.exists():
        return None
    line = next((line for line in status.read_text().splitlines() if line.startswith("VmHWM:")), None)
    return None if line is None else int(line.split()[1]) * 1024


def _free_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return free_memory(device)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, AttributeError):  # Windows, macOS
        return None
