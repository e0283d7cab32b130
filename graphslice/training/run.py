"""Train a single model: from a labelled dataset to a run directory."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytorch_lightning as pl
import torch
from rich.console import Console
from rich.markup import escape

from graphslice.checkpoint import read_checkpoint
from graphslice.config import RunConfig
from graphslice.data.batch_samplers import batches_per_epoch
from graphslice.data.datamodule import MoleculeData
from graphslice.data.labelled_dataset import LabelledDataset
from graphslice.data.splits import Splits
from graphslice.evaluation.evaluate import read_splits
from graphslice.hardware import device_name, peak_memory
from graphslice.package_data import is_packaged_model
from graphslice.progress import molecule_progress
from graphslice.run_files import BEST, LAST, is_finished, read_metrics, read_training
from graphslice.threads import single_threaded_torch
from graphslice.training.backend_check import BackendCheck
from graphslice.training.baselines import train_baselines
from graphslice.training.callbacks import RunProgress, StepLimit, StepProfile, TimeBudget
from graphslice.training.compilation import Compilation
from graphslice.training.data_summary import print_data_summary
from graphslice.training.devices import Devices, choose_devices
from graphslice.training.evaluate_run import choose_metric, evaluate_run
from graphslice.training.fine_tuning import choose_init_from, freeze, load_pretrained_weights, seen_in_pretraining
from graphslice.training.linear_probe import fit_linear_probe
from graphslice.training.module import PropertyModule
from graphslice.training.run_directory import init_run_directory, write_training
from graphslice.training.schedule import NO_STEP_LIMIT, run_steps
from graphslice.training.trainer import make_trainer, quiet_lightning


@dataclass
class RunResult:
    """Result of a training run.

    Attributes:
        folder: run directory; ``graphslice.load(folder)`` loads the model.
        metrics: scores of the best checkpoint by split (valid, test), as in ``metrics.json``.
        training: training summary, as in ``training.json``: number of parameters, steps, seconds, molecules per
            second, peak memory in bytes (of the first device), name and number of devices, precision, and whether
            the last steps were compiled.
        data: molecules of the run; None in all but the first process.
    """

    folder: Path
    metrics: dict
    training: dict
    data: MoleculeData | None = field(default=None, repr=False)


class Interrupted(KeyboardInterrupt):
    """Raised when the user stops the run."""


def is_first_process() -> bool:
    """True in the first process of a distributed run, and in an ordinary process."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "RANK", "NODE_RANK", "SLURM_PROCID"))


def run(
    config: RunConfig,
    dataset: LabelledDataset,
    out: Path,
    *,
    fresh: bool,
    splits: Splits | None = None,
    profile: bool = False,
    command: str | None = None,
    console: Console | None,
) -> RunResult:
    """Train a single model, or continue its training.

    Args:
        config: configuration of the run, with everything that is inferred from the data.
        dataset: labelled molecules.
        out: run directory.
        fresh: start a new run; otherwise continue the one in ``out``.
        splits: split of the run that is continued.
        profile: report the time per stage of a training step at the end.
        command: command line that started the run, or None if started from Python.
        console: where to report; by default standard error.

    Returns:
        The run directory, the scores and the training summary.

    Raises:
        InputError: if the data or the configuration cannot be used.
        Interrupted: if the user stops the run.
    """
    console = (console or Console(stderr=True, soft_wrap=True)) if is_first_process() else Console(quiet=True)
    data = load_molecule_data(config, dataset, console, splits)
    if fresh:
        config = choose_init_from(config, data.store, data.splits["train"])
    devices = choose_devices(config.trainer)
    steps_per_epoch = batches_per_epoch(len(data.splits["train"]), config.trainer.batch_size, devices.total)
    steps = run_steps(config.trainer, len(data.splits["train"]), steps_per_epoch)
    evaluated = not fresh and is_finished(out) and (out / BEST).exists()
    budget = TimeBudget(config.trainer.max_minutes, evaluated)
    metric = choose_metric(config.trainer.metric, data)
    module = PropertyModule(
        config, dataset.tasks, data.train_labels, metric, steps, lambda: budget.fraction, data.train_auxiliary_labels()
    )
    if module.model.descriptors is not None:
        module.model.descriptors.fit(torch.from_numpy(data.train_descriptors()))
    # A new run ignores last.ckpt: other processes may still see that of a previous run, which the first one removes.
    last = None if fresh or not (out / LAST).exists() else out / LAST
    _initialise_weights(config, module, data, last is None, console)

    progress = RunProgress(steps, config.trainer.batch_size, metric, console, elapsed=lambda: budget.fraction)
    compilation = Compilation(config, steps, seconds_left=lambda: budget.seconds_left, console=console)
    limit = StepLimit(steps)
    callbacks = [budget, limit, BackendCheck(console), compilation, progress]
    if profile:
        callbacks.insert(0, StepProfile(console, data.loader_wait_seconds))
    trainer = make_trainer(config, devices, out, steps, metric, callbacks, fresh)
    if fresh and is_first_process():
        init_run_directory(out, config, data, command)
    print_data_summary(console, data)
    _describe_run(console, module, devices, trainer)
    on_cpu = trainer.strategy.root_device.type == "cpu"
    with quiet_lightning(), single_threaded_torch() if on_cpu else nullcontext():
        try:
            trainer.fit(module, datamodule=data, ckpt_path=last, weights_only=True)
        except SystemExit:
            if trainer.interrupted:
                raise Interrupted from None
            raise
        if trainer.interrupted:
            raise Interrupted
    if not trainer.is_global_zero:
        return RunResult(out, {}, {})
    if evaluated and limit.steps_done == 0:
        return finished_result(out, data, console)
    training = _training_summary(module, trainer, budget.seconds, compilation.compiled)
    write_training(out, training)
    device, baselines = trainer.strategy.root_device, None
    if config.trainer.baselines == "on":
        baselines = train_baselines(out, data, metric, device, console)
    return RunResult(out, evaluate_run(out, data, metric, device, console, baselines), training, data)


def finished_result(out: Path, data: MoleculeData, console: Console) -> RunResult:
    """Return the result of a run that was already trained and evaluated."""
    console.print(f"the run is already finished: {out}", highlight=False, markup=False, soft_wrap=True)
    return RunResult(out, read_metrics(out), read_training(out), data)


def saved_splits(config: RunConfig, folder: Path) -> Splits | None:
    """Return the split that a run was started with, which an older version may have made differently.

    None if the split is recomputed: that of OGB, which is not saved, and that of merged duplicates, whose rows are not
    saved.
    """
    return None if config.data.duplicates == "merge" else read_splits(folder)


def load_molecule_data(
    config: RunConfig, dataset: LabelledDataset, console: Console, splits: Splits | None = None
) -> MoleculeData:
    """Featurize and split the molecules of a run, with a progress bar.

    Args:
        config, dataset, console, splits: as in :func:`run`.

    Raises:
        InputError: if the molecules cannot be used, or not be split as configured.
    """
    console.print(f"[bold]{escape(dataset.name)}[/]: {len(dataset):,} rows; reading molecules", highlight=False)
    with molecule_progress("reading molecules", len(dataset), console) as advance:
        return MoleculeData(dataset, config, advance, splits)


def _initialise_weights(
    config: RunConfig, module: PropertyModule, data: MoleculeData, fresh: bool, console: Console
) -> None:
    """Initialise a new run from its pretrained checkpoint, if it has one, and freeze the configured parameters."""
    if config.origin is None:
        return
    if fresh:
        origin = read_checkpoint(config.origin)
        message = load_pretrained_weights(module.model, origin, module.tasks, config.data.descriptors)
        if module.tasks != origin.tasks and fit_linear_probe(module.model, data):
            message += "; a linear probe initialises the output layer"
        message = f"fine-tuning from {config.init_from}: {message}; peak learning rate {config.optimizer.peak_lr:g}"
        console.print(message, highlight=False, markup=False, soft_wrap=True)
        if is_packaged_model(str(config.init_from)) and (note := seen_in_pretraining(origin, data)) is not None:
            console.print(f"[yellow]note[/]: {escape(note)}", highlight=False, soft_wrap=True)
    freeze(module.model, config.trainer.freeze)
    if config.trainer.freeze != "none":
        trainable = sum(p.numel() for p in module.model.parameters() if p.requires_grad)
        console.print(f"frozen: {config.trainer.freeze}; {trainable:,} trainable parameters", highlight=False)


def _training_summary(module: PropertyModule, trainer: pl.Trainer, seconds: float, compiled: bool) -> dict:
    """Return the contents of ``training.json``."""
    steps, device = trainer.global_step, trainer.strategy.root_device  # the module itself was moved back to the CPU
    return {
        "parameters": module.model.num_parameters,
        **({"auxiliary_mae": module.auxiliary_errors} if module.auxiliary_errors else {}),
        "steps": steps,
        "seconds": round(seconds, 3),
        "molecules_per_second": round(steps * module.config.trainer.batch_size / max(seconds, 1e-9), 3),
        "peak_memory_bytes": peak_memory(device),
        "device": device_name(device),
        "devices": trainer.world_size,
        "precision": trainer.precision,
        "compiled": compiled,
    }


def _describe_run(console: Console, module: PropertyModule, devices: Devices, trainer: pl.Trainer) -> None:
    """Print the mixer, the number of parameters, the limits of the run, the device and the precision."""
    minutes = module.config.trainer.max_minutes
    limits = [] if module.steps >= NO_STEP_LIMIT else [f"{module.steps:,} steps"]
    limit = " or ".join([*limits, *([] if minutes is None else [f"{minutes:g} minutes"])])
    console.print(
        f"{module.config.model.mixer}: {module.model.num_parameters:,} parameters, {limit}",
        highlight=False,
    )
    count = f"{trainer.world_size} x " if trainer.world_size > 1 else ""
    on = f"on {count}{device_name(trainer.strategy.root_device)}, precision {trainer.precision}"
    console.print("\n".join(filter(None, [on, devices.note])), highlight=False)
