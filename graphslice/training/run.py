"""A run from start to finish: data in, a run folder out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytorch_lightning as pl
from rich.console import Console
from rich.markup import escape

from graphslice.checkpoint import CONFIG, LAST, read_checkpoint
from graphslice.config import RunConfig, read_yaml
from graphslice.data.datamodule import MoleculeData
from graphslice.data.loader import batches_per_epoch
from graphslice.data.sources import Source, load_source, pyg_source, resolved
from graphslice.errors import InputError
from graphslice.machine import device_name, peak_memory
from graphslice.nn.mixers import check_mixer
from graphslice.progress import molecule_progress
from graphslice.training.advice import advise, describe_tasks
from graphslice.training.backend_check import BackendCheck
from graphslice.training.callbacks import RunProgress, StepLimit, StepProfile, TimeBudget
from graphslice.training.compilation import Compilation
from graphslice.training.devices import Devices, choose_devices
from graphslice.training.fine_tuning import freeze, take_weights
from graphslice.training.judge import choose_metric, judge
from graphslice.training.lightning import make_trainer, quiet_lightning
from graphslice.training.module import PropertyModule
from graphslice.training.run_folder import REJECTED, holds_run, write_start, write_training

if TYPE_CHECKING:
    from torch_geometric.data import Data


# Fewer usable rows than these are worth a warning.
_FEW_ROWS = 10


@dataclass
class RunResult:
    """What came of a run.

    Attributes:
        folder: of the run; ``graphslice.load(folder)`` gives the model.
        metrics: scores of the best checkpoint by split (valid, test), as in ``metrics.json``.
        training: what it took, as in ``training.json``: parameters, steps, seconds, molecules per second,
            peak memory in bytes (of the first device), the name of the device and how many there were, the
            precision, and whether its last steps were compiled.
    """

    folder: Path
    metrics: dict
    training: dict


class Interrupted(Exception):
    """The user stopped the run."""


def train(
    config: RunConfig,
    out: str | Path,
    *,
    data: Iterable[Data] | None = None,
    target_names: Sequence[str] | None = None,
    overwrite: bool = False,
    profile: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Train a model into a run folder.

    Args:
        config: of the run.
        out: the run folder; must not hold a run already.
        data: a PyG dataset or list of ``Data`` with OGB features and ``y``, in place of
            ``config.data.dataset``.
        target_names: names of the targets of ``data``.
        overwrite: replace the run that ``out`` holds.
        profile: report at the end where the time of training went.
        console: where to report.

    Returns:
        The run folder and the scores. The folder holds ``best.ckpt``, ``last.ckpt``,
        ``config.yaml``, ``metrics.json``, ``training.json``, ``split.csv``, ``rejected.csv``, ``test.png``
        (predicted against true) and ``logs``.

    Raises:
        InputError: if the data or the configuration cannot be used; nothing is written then.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise InputError(f"cannot write the run folder {out}: it is a file")
    if is_first_process() and holds_run(out) and not overwrite:
        raise InputError(
            f"{out} holds a run already: choose another --out, continue it with --resume {out}, or give --overwrite"
        )
    check_mixer(config.model.mixer, config.model.mixer_settings)
    source = pyg_source(data, target_names, config.data) if data is not None else load_source(config.data)
    config = resolved(config, source)
    return _run(config, source, out, fresh=True, profile=profile, console=console)


def resume(folder: str | Path, *, data: Iterable[Data] | None = None, console: Console | None = None) -> RunResult:
    """Continue a run that was stopped or killed, to the result it would have had.

    Args:
        folder: of the run.
        data: the same PyG data again, if the run was trained on such.

    Raises:
        InputError: if the folder holds no run, or its data has changed since.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"{folder} holds no run to continue: it has no {CONFIG}, which is written when the molecules are read; "
            "begin it with the command that was meant to, without --resume"
        )
    config = RunConfig.from_dict(read_yaml(folder / CONFIG))
    if config.data.dataset == "pyg" and data is None:
        raise InputError(
            f"{folder} was trained on PyG data: continue it with graphslice.training.resume(folder, data=...)"
        )
    if config.data.fingerprint is None:
        raise InputError(f"{folder} holds a model that was not trained there: there is no run to continue")
    targets = (config.data.targets or "").split(",")
    source = pyg_source(data, targets, config.data) if data is not None else load_source(config.data)
    if source.fingerprint() != config.data.fingerprint:
        raise InputError(f"the data of {folder} has changed since it was trained: start a new run instead")
    if (folder / LAST).exists():
        read_checkpoint(folder / LAST)  # a damaged one is told apart here
    return _run(config, source, folder, fresh=False, console=console)


def is_first_process() -> bool:
    """Whether no other process of a distributed run started before this one."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "RANK", "NODE_RANK", "SLURM_PROCID"))


def _run(
    config: RunConfig, source: Source, out: Path, *, fresh: bool, profile: bool = False, console: Console | None
) -> RunResult:
    console = (console or Console(stderr=True)) if is_first_process() else Console(quiet=True)
    console.print(f"[bold]{source.name}[/]: {len(source):,} rows; reading molecules", highlight=False)
    with molecule_progress("reading molecules", len(source), console) as advance:
        data = MoleculeData(source, config, advance)
    devices = choose_devices(config.trainer)
    steps_per_epoch = batches_per_epoch(len(data.splits["train"]), config.trainer.batch_size, devices.total or 1)
    steps = config.trainer.max_steps or config.trainer.max_epochs * steps_per_epoch
    steps = min(steps, config.trainer.max_epochs * steps_per_epoch)
    budget = TimeBudget(config.trainer.max_minutes)
    metric = choose_metric(config.trainer.metric, data)
    module = PropertyModule(config, source.tasks, data.train_labels, metric, steps, elapsed=lambda: budget.fraction)
    # A run that begins has none; what another process may still see there is of the run that the first one removes.
    last = None if fresh or not (out / LAST).exists() else out / LAST
    _start_from(config, module, last is None, console)

    progress = RunProgress(steps, config.trainer.batch_size, metric, console, elapsed=lambda: budget.fraction)
    compilation = Compilation(config, steps, seconds_left=lambda: budget.seconds_left, console=console)
    watching = [budget, StepLimit(steps), BackendCheck(console), compilation, progress]
    if profile:
        watching.insert(0, StepProfile(console, data.seconds_waited))
    trainer = make_trainer(config, devices, out, steps, metric, watching, fresh)
    if fresh and is_first_process():
        write_start(out, config, data)
    _describe(console, data, module, devices, trainer)
    with quiet_lightning():
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
    training = _what_it_took(module, trainer, budget.seconds, compilation.compiled)
    write_training(out, training)
    return RunResult(out, judge(out, data, metric, trainer.strategy.root_device, console), training)


def _start_from(config: RunConfig, module: PropertyModule, begins: bool, console: Console) -> None:
    """Take the weights of another run, and let some stay as they are; a run that goes on has its own by then."""
    if config.init_from is None:
        return
    if begins:
        said = take_weights(module.model, read_checkpoint(config.init_from), module.tasks)
        console.print(f"start from {config.init_from}: {said}", highlight=False, soft_wrap=True)
    freeze(module.model, config.trainer.freeze)
    if config.trainer.freeze != "none":
        learning = sum(p.numel() for p in module.model.parameters() if p.requires_grad)
        console.print(f"frozen: {config.trainer.freeze}; {learning:,} parameters learn", highlight=False)


def _what_it_took(module: PropertyModule, trainer: pl.Trainer, seconds: float, compiled: bool) -> dict:
    """What a comparison of runs asks for beside their errors."""
    steps, device = trainer.global_step, trainer.strategy.root_device  # the module is back in the main memory
    return {
        "parameters": module.model.num_parameters,
        "steps": steps,
        "seconds": round(seconds, 3),
        "molecules_per_second": round(steps * module.config.trainer.batch_size / max(seconds, 1e-9), 3),
        "peak_memory_bytes": peak_memory(device),
        "device": device_name(device),
        "devices": trainer.world_size,
        "precision": trainer.precision,
        "compiled": compiled,
    }


def _describe(
    console: Console, data: MoleculeData, module: PropertyModule, devices: Devices, trainer: pl.Trainer
) -> None:
    if len(data.kept) < _FEW_ROWS:
        few = (
            f"{len(data.kept)} of {len(data.source):,} rows can be used: too few to learn from, or to judge a model by"
        )
        console.print(f"[yellow]warning[/]: {few}", highlight=False, soft_wrap=True)
    tasks, labels = data.source.tasks, data.source.targets[data.kept]
    for line in describe_tasks(tasks, labels):
        console.print(line, highlight=False, markup=False)
    for line in advise(tasks, labels):
        console.print(f"[yellow]note[/]: {escape(line)}", highlight=False, soft_wrap=True)
    sizes = {split: len(rows) for split, rows in data.splits.items()}
    splits = ", ".join(f"{size:,} {split}" for split, size in sizes.items())
    lost = f"; {len(data.rejected):,} rows rejected (see {REJECTED})" if data.rejected else ""
    minutes = module.config.trainer.max_minutes
    limit = f"{module.steps:,} steps" + (f" or {minutes:g} minutes" if minutes is not None else "")
    console.print(
        f"{splits}{lost}\n{module.config.model.mixer}: {module.model.num_parameters:,} parameters, {limit}",
        highlight=False,
    )
    count = f"{trainer.world_size} x " if trainer.world_size > 1 else ""
    on = f"on {count}{device_name(trainer.strategy.root_device)}, precision {trainer.precision}"
    console.print("\n".join(filter(None, [on, devices.note])), highlight=False)
