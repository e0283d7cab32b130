"""Training of a single model: from its complete configuration to a run directory, and of each of its networks."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from lightning_fabric import Fabric
from rich.console import Console

from graphslice.config import RunConfig
from graphslice.data.datamodule import MoleculeData
from graphslice.errors import file_errors
from graphslice.inference.predictor import Predictor
from graphslice.runs import run_files
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.system.console import QUIET, Report, divide, remark, silent
from graphslice.system.files import atomic_write
from graphslice.system.machine import device_name, peak_memory
from graphslice.system.processes import is_first_process
from graphslice.system.threads import single_threaded_torch
from graphslice.training.data_summary import WITHOUT_LABEL, print_data_summary
from graphslice.training.devices import device_share, make_fabric, quiet_lightning
from graphslice.training.fine_tuning import fit_linear_probe, leakage_notes, load_pretrained_weights
from graphslice.training.loop import Interrupted, TrainingLoop, freeze
from graphslice.training.module import PropertyModule
from graphslice.training.resolve import NO_STEP_LIMIT, CompleteConfig, run_steps
from graphslice.training.stack import FOLDS, Stack, evaluate_run, num_held_out

_log = logging.getLogger("graphslice")


@dataclass
class RunResult:
    """Result of a training run."""

    folder: Path  # run directory; ``graphslice.load(folder)`` loads the model
    metrics: dict  # scores of the best checkpoint by split (valid, test), as in ``metrics.json``
    training: dict  # as in ``training.json``, such as parameters, steps, seconds and memory
    data: MoleculeData | None = field(default=None, repr=False)  # None in all but the first process

    def to_dict(self) -> dict:
        """Convert to plain values: ``folder``, ``report`` (None if none was written), ``metrics`` and ``training``."""
        report = self.folder / run_files.REPORT
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
    report: Report = silent,
) -> RunResult:
    """Train a single model, or continue its training unless ``fresh``; ``complete`` and ``data`` are the result of
    :func:`~graphslice.training.resolve.resolve`. Raises Interrupted if the user stops the run."""
    if not fresh and run_files.is_finished(out) and (out / run_files.BEST).exists():
        return finished_result(out, data, console)
    # A new run ignores last.ckpt: other processes may still see that of a previous run, which the first one removes.
    last = None if fresh or not (out / run_files.LAST).exists() else out / run_files.LAST
    config, metric = complete.config, complete.metric
    module = new_module(complete, data)
    initialise_weights(module, data, last is None, console)
    with quiet_lightning():
        fabric = make_fabric(complete.devices, out, fresh=fresh)
        if fresh and is_first_process():
            init_run_directory(out, config, data, console, command)
        print_data_summary(console, data)
        _describe_run(console, module, complete, fabric)
        folds = data.inner_folds(FOLDS)[: num_held_out(data)] if config.trainer.refit == "on" else []
        shares = _shares(complete, data, folds, module.model.num_parameters)
        base, *of_folds, of_all, evaluation = divide(report, *shares)
        stacked = config.trainer.baselines == "on" and is_first_process()
        stack = Stack(data, folds, console, base) if stacked else None
        networks, count = [], len(folds) + 1
        for number, (fold, part) in enumerate(zip(folds, of_folds, strict=True), 1):
            folder, name = out / f"{run_files.HELD_OUT}{number}", f"network {number} of {count}"
            networks.append(train_without(fold, complete, data, folder, name, console, part))
        if networks and last is None:  # a warm restart (Loshchilov and Hutter 2017) on all rows
            first = read_checkpoint(out / f"{run_files.HELD_OUT}1")
            load_pretrained_weights(module.model, first, module.tasks, config.data.descriptors)
        name = f"network {count} of {count}" if folds else "network"
        loop = run_loop(last, fabric, module, data, out, complete.steps, console, name, of_all)
    if not fabric.is_global_zero:
        return RunResult(out, {}, {})
    training = _training_summary(module, fabric, loop)
    run_files.write_json(out / run_files.TRAINING, training)
    evaluation(0.0, "calibration and evaluation")
    scores, held_out = stack.finish(out, metric, fabric.device, networks) if stack is not None else (None, None)
    metrics = evaluate_run(out, data, metric, fabric.device, console, scores, held_out)
    for number in range(len(folds)):
        shutil.rmtree(out / f"{run_files.HELD_OUT}{number + 1}", ignore_errors=True)
    return RunResult(out, metrics, training, data)


# Seconds on one core of an AMD EPYC: of a training step for each molecule and parameter, of the base models for each
# molecule and target, and of the evaluation for each molecule (tables of 1,128 and 2,039 molecules, November 2026).
_STEP_SECONDS, _FIT_SECONDS, _EVALUATION_SECONDS = 3e-9, 2.5e-3, 1e-3


def _shares(complete: CompleteConfig, data: MoleculeData, folds: Sequence[np.ndarray], parameters: int) -> list[float]:
    """Estimate the seconds of the base models, of each network and of the calibration and evaluation."""
    settings, count = complete.config.trainer, {split: len(rows) for split, rows in data.splits.items()}
    limit = np.inf if settings.max_minutes is None else 60 * settings.max_minutes
    steps = [*(fold_steps(complete, data.without(fold)) for fold in folds), complete.steps]
    held_out = [len(fold) for fold in folds] or [count.get("valid", 0)]
    fitted = count["train"] + sum(count["train"] - len(fold) for fold in folds)
    return [
        _FIT_SECONDS * fitted * len(data.dataset.tasks) if settings.baselines == "on" else 0.0,
        *(min(limit, _STEP_SECONDS * parameters * settings.batch_size * each) for each in steps),
        _EVALUATION_SECONDS * (sum(held_out) + count.get("test", 0)),
    ]


def init_run_directory(
    folder: Path, config: RunConfig, data: MoleculeData, console: Console, command: str | None = None
) -> None:
    """Create a run directory with everything known before training, and remove a previous run in it; print what the
    initial model was trained on. Raises :class:`InputError` if the directory cannot be written."""
    dataset, settings, notes = data.dataset, config.to_yaml(), leakage_notes(config, data)
    for note in notes:
        remark(note, console)
    with file_errors("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        run_files.remove_run(folder.resolve(), config.data.dataset if dataset.table is None else None)
        run_files.write_start(folder, command, notes)
        if dataset.table is not None:
            pq.write_table(dataset.table, folder / run_files.MOLECULES)
        # Not for cross-validation, where each fold has its own split, nor for OGB's fixed split of millions of rows.
        if not dataset.is_pcqm4m and not config.data.is_cross_validation:
            run_files.write_splits(folder, data.splits, dataset.smiles, dataset.identifiers)
        smiles, identifiers = dataset.smiles, dataset.identifiers
        invalid = {row: f"{reason}; {WITHOUT_LABEL}" for row, reason in data.invalid_labels().items()}
        rejected = (
            [row + 1, smiles[row] if smiles else "", reason, *(texts[row] for texts in identifiers.values())]
            for row, reason in sorted((invalid | data.rejected).items())
        )
        run_files.write_csv(folder / run_files.REJECTED, ["row", "smiles", "reason", *identifiers], rejected)
        with atomic_write(folder / run_files.CONFIG) as new:
            new.write_text(settings)


def finished_result(out: Path, data: MoleculeData, console: Console) -> RunResult:
    """Return the result of a run that was already trained and evaluated."""
    remark(f"the run is already finished: {out}", console)
    return RunResult(out, run_files.read_metrics(out), run_files.read_training(out), data)


def _training_summary(module: PropertyModule, fabric: Fabric, loop: TrainingLoop) -> dict:
    steps, seconds = loop.state.step, loop.seconds
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
    """Print the limits of the run and the device; log the mixer, the number of parameters and the precision."""
    config, devices, minutes = complete.config, complete.devices, complete.config.trainer.max_minutes
    limits = [] if complete.steps >= NO_STEP_LIMIT else [f"{complete.steps:,} steps"]
    limit = " or ".join([*limits, *([] if minutes is None else [f"{minutes:g} minutes"])])
    count = f"{devices.total} x " if devices.total > 1 else ""
    console.out(f"training: {limit} on {count}{device_name(fabric.device)}", highlight=False)
    if devices.note:
        remark(devices.note, console)
    precision = device_share(fabric).precision
    _log.info("%s: %s parameters, precision %s", config.model.mixer, f"{module.model.num_parameters:,}", precision)


def new_module(complete: CompleteConfig, data: MoleculeData) -> PropertyModule:
    """Make the training module of a run, with random weights."""
    labels, tasks = data.train_auxiliary_labels(), data.dataset.tasks
    return PropertyModule(complete.config, tasks, data.train_labels, complete.metric, labels, complete.devices.total)


def fold_steps(complete: CompleteConfig, rest: MoleculeData) -> int:
    """Number of steps of the training without a fold; ``rest``: the other molecules."""
    return run_steps(complete.config, rest.dataset.tasks, len(rest.splits["train"]))


def train_without(
    fold: np.ndarray,
    complete: CompleteConfig,
    data: MoleculeData,
    folder: Path,
    name: str,  # for the progress
    console: Console,
    report: Report = silent,
    after_epoch: Callable[[TrainingLoop], object] | None = None,
) -> Predictor:
    """Train the network without the rows of a fold, or continue its training in a folder; return its predictor."""
    rest = data.without(fold)
    fabric = make_fabric(complete.devices, folder, fresh=True, log=False)
    if not (folder / run_files.BEST).exists():
        folder.mkdir(exist_ok=True)
        last = folder / run_files.LAST if (folder / run_files.LAST).exists() else None
        module = new_module(complete, rest)
        initialise_weights(module, rest, last is None, QUIET)
        steps = fold_steps(complete, rest)
        run_loop(last, fabric, module, rest, folder, steps, console, name, report, after_epoch)
    report(1.0, "")
    return Predictor(read_checkpoint(folder / run_files.BEST), fabric.device)


def run_loop(last: Path | None, fabric: Fabric, *arguments: Any, **options: Any) -> TrainingLoop:
    """Make and run a :class:`TrainingLoop` on all devices, from scratch or from the checkpoint ``last``; return it."""
    on_cpu = fabric.device.type == "cpu"
    with _all_devices(fabric), single_threaded_torch() if on_cpu else nullcontext():
        loop = TrainingLoop(fabric, *arguments, **options)
        loop.run(last)
    return loop


@contextmanager
def _all_devices(fabric: Fabric) -> Iterator[None]:
    """Launch a process for every other device, and stop all of them if one is stopped or fails."""
    try:
        fabric.launch()
        yield
    except Interrupted:  # all devices have stopped; the first one reports it
        if fabric.is_global_zero:
            raise
    except BaseException as error:
        for process in getattr(fabric.strategy.launcher, "procs", []):  # those that this one launched
            process.kill()  # they may wait for it forever
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted from None
        raise


def initialise_weights(module: PropertyModule, data: MoleculeData, fresh: bool, console: Console) -> None:
    """Initialise a new run from its pretrained checkpoint, if it has one, and freeze the configured parameters."""
    config = module.config
    reads_graph = any(block.mixer.reads for block in module.model.blocks)
    if module.world > 1 and not reads_graph:  # DDP expects a gradient of every parameter
        module.model.pairs.requires_grad_(False)
    if module.model.descriptors is not None:
        module.model.descriptors.fit(torch.from_numpy(data.train_descriptors()))
    if config.origin is None:
        return
    if fresh:
        origin = read_checkpoint(config.origin)
        message, is_all = load_pretrained_weights(module.model, origin, module.tasks, config.data.descriptors)
        if not is_all and fit_linear_probe(module, data):
            message += "; a linear probe initialises the output layer"
        console.out(f"fine-tuning from {config.init_from}: {message}", highlight=False)
        _log.info("peak learning rate %g", config.optimizer.max_lr)
    freeze(module.model, config.trainer.freeze)
    if config.trainer.freeze != "none":
        trainable = sum(p.numel() for p in module.model.parameters() if p.requires_grad)
        console.print(f"frozen: {config.trainer.freeze}; {trainable:,} trainable parameters", highlight=False)
