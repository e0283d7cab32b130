"""Train a single model: from a labelled dataset to a run directory."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from lightning_fabric import Fabric
from rich.console import Console

from graphslice.config import RunConfig
from graphslice.data.datamodule import MoleculeData
from graphslice.errors import InputError
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.run_files import (
    BEST,
    CONFIG,
    HELD_OUT,
    LAST,
    MOLECULES,
    REJECTED,
    REPORT,
    TRAINING,
    is_finished,
    read_metrics,
    read_training,
    remove_run,
    write_csv,
    write_json,
    write_splits,
    write_start,
)
from graphslice.system.files import atomic_write
from graphslice.system.machine import device_name, peak_memory
from graphslice.system.processes import is_first_process
from graphslice.training.data_summary import print_data_summary
from graphslice.training.devices import device_share, make_fabric, quiet_lightning
from graphslice.training.fine_tuning import load_pretrained_weights
from graphslice.training.loop import Part, TrainingLoop
from graphslice.training.module import PropertyModule
from graphslice.training.network import fold_steps, initialise_weights, new_module, run_loop, train_without
from graphslice.training.resolve import NO_STEP_LIMIT, CompleteConfig
from graphslice.training.stack import FOLDS, Stack, evaluate_run, num_held_out


@dataclass
class RunResult:
    """Result of a training run."""

    folder: Path  # run directory; ``graphslice.load(folder)`` loads the model
    metrics: dict  # scores of the best checkpoint by split (valid, test), as in ``metrics.json``
    training: dict
    """As in ``training.json``: parameters, steps, seconds, molecules per second, peak memory in bytes (of the first
    device), name and number of devices, precision, and whether the last steps were compiled."""
    data: MoleculeData | None = field(default=None, repr=False)  # None in all but the first process

    def to_dict(self) -> dict:
        """Convert to plain values: ``folder``, ``report`` (None if none was written), ``metrics`` and ``training``."""
        report = self.folder / REPORT
        paths = {"folder": str(self.folder), "report": str(report) if report.is_file() else None}
        return {**paths, "metrics": self.metrics, "training": self.training}


def run(
    complete: CompleteConfig,
    data: MoleculeData,
    out: Path,
    *,
    fresh: bool,
    command: str | None = None,
    console: Console,
) -> RunResult:
    """Train a single model, or continue its training unless ``fresh``; ``complete`` and ``data`` are the result of
    :func:`~graphslice.training.resolve.resolve`. Raises Interrupted if the user stops the run."""
    if not fresh and is_finished(out) and (out / BEST).exists():
        return finished_result(out, data, console)
    # A new run ignores last.ckpt: other processes may still see that of a previous run, which the first one removes.
    last = None if fresh or not (out / LAST).exists() else out / LAST
    config, metric = complete.config, complete.metric
    module = new_module(complete, data)
    initialise_weights(module, data, last is None, console)
    with quiet_lightning():
        fabric = make_fabric(complete.devices, out, fresh=fresh)
        if fresh and is_first_process():
            init_run_directory(out, config, data, command)
        print_data_summary(console, data)
        _describe_run(console, module, complete, fabric)
        folds = data.inner_folds(FOLDS)[: num_held_out(data)] if config.trainer.refit == "on" else []
        stack = Stack(data, folds, console) if config.trainer.baselines == "on" and is_first_process() else None
        parts = _parts(complete, data, folds)
        networks = [
            train_without(fold, complete, data, out / f"{HELD_OUT}{number}", part, console)
            for number, (fold, part) in enumerate(zip(folds, parts, strict=False), 1)
        ]
        if networks and last is None:  # a warm restart (Loshchilov and Hutter 2017) on all rows
            first = read_checkpoint(out / f"{HELD_OUT}1")
            load_pretrained_weights(module.model, first, module.tasks, config.data.descriptors)
        loop = run_loop(last, fabric, module, data, out, complete.steps, console, part=parts[-1])
    if not fabric.is_global_zero:
        return RunResult(out, {}, {})
    training = _training_summary(module, fabric, loop)
    write_json(out / TRAINING, training)
    scores, held_out = stack.finish(out, metric, fabric.device, networks) if stack is not None else (None, None)
    metrics = evaluate_run(out, data, metric, fabric.device, console, scores, held_out)
    for number in range(len(folds)):
        shutil.rmtree(out / f"{HELD_OUT}{number + 1}", ignore_errors=True)
    return RunResult(out, metrics, training, data)


def _parts(complete: CompleteConfig, data: MoleculeData, folds: Sequence[np.ndarray]) -> list[Part]:
    if not folds:
        return [Part()]
    steps = [fold_steps(complete, data.without(fold)) for fold in folds]
    total, before = sum(steps) + complete.steps, np.cumsum([0, *steps]).tolist()
    parts = [
        Part(f"network without fold {number} of {FOLDS}", done, total - done - count)
        for number, (done, count) in enumerate(zip(before, steps, strict=False), 1)
    ]
    return [*parts, Part("network", before[-1])]


def init_run_directory(folder: Path, config: RunConfig, data: MoleculeData, command: str | None = None) -> None:
    """Create a run directory with everything known before training, and remove a previous run in it; raises
    :class:`InputError` if it cannot be written."""
    dataset, settings = data.dataset, config.to_yaml()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_run(folder.resolve(), config.data.dataset if dataset.table is None else None)
        write_start(folder, command)
        if dataset.table is not None:
            pq.write_table(dataset.table, folder / MOLECULES)
        # Not for cross-validation, where each fold has its own split, nor for OGB's fixed split of millions of rows.
        if not dataset.is_pcqm4m and not config.data.is_cross_validation:
            write_splits(folder, data.splits, dataset.smiles, dataset.identifiers)
        smiles, identifiers = dataset.smiles, dataset.identifiers
        invalid = {row: f"{reason}; used without this label" for row, reason in data.invalid_labels().items()}
        rejected = (
            [row + 1, smiles[row] if smiles else "", reason, *(texts[row] for texts in identifiers.values())]
            for row, reason in sorted((invalid | data.rejected).items())
        )
        write_csv(folder / REJECTED, ["row", "smiles", "reason", *identifiers], rejected)
        with atomic_write(folder / CONFIG) as new:
            new.write_text(settings)
    except OSError as error:
        raise InputError(f"cannot write the run directory {folder}: {error.strerror}") from None


def finished_result(out: Path, data: MoleculeData, console: Console) -> RunResult:
    """Return the result of a run that was already trained and evaluated."""
    console.out(f"the run is already finished: {out}", highlight=False)
    return RunResult(out, read_metrics(out), read_training(out), data)


def _training_summary(module: PropertyModule, fabric: Fabric, loop: TrainingLoop) -> dict:
    steps, seconds = loop.state.step, loop.budget.seconds
    molecules = steps * len(loop.data.splits["train"]) / max(1, len(loop.train_batches))  # the last batch is smaller
    return {
        "parameters": module.model.num_parameters,
        **({"auxiliary_mae": module.auxiliary_errors} if module.auxiliary_errors else {}),
        "steps": steps,
        "seconds": round(seconds, 3),
        "molecules_per_second": round(molecules / max(seconds, 1e-9), 3),
        "peak_memory_bytes": peak_memory(fabric.device),
        "device": device_name(fabric.device),
        "devices": fabric.world_size,
        "precision": device_share(fabric).precision,
        "compiled": loop.fast.compiled,
    }


def _describe_run(console: Console, module: PropertyModule, complete: CompleteConfig, fabric: Fabric) -> None:
    """Print the mixer, the number of parameters, the limits of the run, the device and the precision."""
    config, devices, minutes = complete.config, complete.devices, complete.config.trainer.max_minutes
    limits = [] if complete.steps >= NO_STEP_LIMIT else [f"{complete.steps:,} steps"]
    limit = " or ".join([*limits, *([] if minutes is None else [f"{minutes:g} minutes"])])
    count = f"{devices.total} x " if devices.total > 1 else ""
    lines = [
        f"{config.model.mixer}: {module.model.num_parameters:,} parameters, {limit}",
        f"on {count}{device_name(fabric.device)}, precision {device_share(fabric).precision}",
    ]
    console.print("\n".join(filter(None, [*lines, devices.note])), highlight=False)
