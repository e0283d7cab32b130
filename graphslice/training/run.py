"""A run from start to finish: data in, a run folder out."""

from __future__ import annotations

import csv
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from rich.console import Console

from graphslice.checkpoint import BEST, CONFIG, LAST, read_checkpoint
from graphslice.config import DataConfig, RunConfig, read_yaml
from graphslice.data.datamodule import MoleculeData
from graphslice.data.loader import batches_per_epoch
from graphslice.data.sources import Source, load_source, pyg_source, resolved
from graphslice.errors import InputError
from graphslice.evaluation import scores
from graphslice.inference.predictor import Predictor
from graphslice.machine import peak_memory
from graphslice.nn.mixers import check_mixer
from graphslice.progress import molecule_progress
from graphslice.training.callbacks import Clock, LastCheckpoint, RunProgress, StepProfile
from graphslice.training.module import Regression

if TYPE_CHECKING:
    from torch_geometric.data import Data

METRICS, TRAINING, SPLIT, REJECTED = "metrics.json", "training.json", "split.csv", "rejected.csv"
PICTURE = "test.png"


@dataclass
class RunResult:
    """What came of a run.

    Attributes:
        folder: of the run; ``graphslice.load(folder)`` gives the model.
        metrics: scores of the best checkpoint by part (valid, test), as in ``metrics.json``.
        training: what it took, as in ``training.json``: parameters, steps, seconds, molecules per second
            and peak memory in bytes.
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
    if _is_first_process() and _holds_run(out) and not overwrite:
        raise InputError(
            f"{out} holds a run already: choose another --out, continue it with --resume {out}, or give --overwrite"
        )
    check_mixer(config.model.mixer, config.model.mixer_settings)
    source = pyg_source(data, target_names) if data is not None else load_source(config.data)
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
        raise InputError(f"{folder} holds no run to continue: it has no {CONFIG}")
    config = RunConfig.from_dict(read_yaml(folder / CONFIG))
    if config.data.dataset == "pyg" and data is None:
        raise InputError(
            f"{folder} was trained on PyG data: continue it with graphslice.training.resume(folder, data=...)"
        )
    if config.data.fingerprint is None:
        raise InputError(f"{folder} holds a model that was not trained there: there is no run to continue")
    source = pyg_source(data, config.data.targets.split(",")) if data is not None else load_source(config.data)
    if source.fingerprint() != config.data.fingerprint:
        raise InputError(f"the data of {folder} has changed since it was trained: start a new run instead")
    if (folder / LAST).exists():
        read_checkpoint(folder / LAST)  # a damaged one is told apart here
    return _run(config, source, folder, fresh=False, console=console)


def _holds_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (CONFIG, LAST, BEST))


def _is_first_process() -> bool:
    """Whether no other process of a distributed run started before this one."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "RANK", "NODE_RANK", "SLURM_PROCID"))


def _run(
    config: RunConfig, source: Source, out: Path, *, fresh: bool, profile: bool = False, console: Console | None
) -> RunResult:
    console = (console or Console(stderr=True)) if _is_first_process() else Console(quiet=True)
    console.print(f"[bold]{source.name}[/]: {len(source):,} rows; reading molecules", highlight=False)
    with molecule_progress("reading molecules", len(source), console) as advance:
        data = MoleculeData(source, config, advance)
    steps_per_epoch = batches_per_epoch(len(data.splits["train"]), config.trainer.batch_size)
    steps = config.trainer.max_steps or config.trainer.max_epochs * steps_per_epoch
    steps = min(steps, config.trainer.max_epochs * steps_per_epoch)
    module = Regression(config, source.target_names, steps)
    module.model.target_mean.copy_(torch.from_numpy(data.target_mean))
    module.model.target_std.copy_(torch.from_numpy(data.target_std))

    progress, clock = RunProgress(steps, config.trainer.batch_size, console), Clock(config.trainer.max_minutes)
    trainer = _trainer(config, out, steps, [clock, progress], fresh)
    if profile:
        trainer.callbacks.insert(0, StepProfile(console, lambda: trainer.train_dataloader.waited))
    if fresh and _is_first_process():
        _write_start(out, config, data)
    _describe(console, data, module)
    last = out / LAST
    with _quiet_lightning():
        try:
            trainer.fit(module, datamodule=data, ckpt_path=last if last.exists() else None, weights_only=True)
        except SystemExit:
            if trainer.interrupted:
                raise Interrupted from None
            raise
        if trainer.interrupted:
            raise Interrupted
    if not trainer.is_global_zero:
        return RunResult(out, {}, {})
    training = _what_it_took(module, clock.seconds)
    (out / TRAINING).write_text(json.dumps(training, indent=2) + "\n")
    return RunResult(out, _write_end(out, data, console), training)


def _what_it_took(module: Regression, seconds: float) -> dict:
    """What a comparison of runs asks for beside their errors."""
    steps = module.trainer.global_step
    return {
        "parameters": module.model.num_parameters,
        "steps": steps,
        "seconds": round(seconds, 3),
        "molecules_per_second": round(steps * module.config.trainer.batch_size / max(seconds, 1e-9), 3),
        "peak_memory_bytes": peak_memory(module.device.type),
    }


def _trainer(config: RunConfig, out: Path, steps: int, watching: list[pl.Callback], fresh: bool) -> pl.Trainer:
    settings = config.trainer
    version = 0 if fresh else len(list((out / "logs").glob("version_*")))
    callbacks = [
        *watching,
        LearningRateMonitor("step"),
        ModelCheckpoint(
            out,
            Path(BEST).stem,
            monitor="val_mae",
            mode="min",
            enable_version_counter=False,
            auto_insert_metric_name=False,
        ),
        LastCheckpoint(out, settings.checkpoint_minutes),
    ]
    if settings.patience is not None:
        callbacks.insert(0, EarlyStopping("val_mae", patience=settings.patience, check_finite=False))
    devices: str | int = settings.devices
    if devices.isdigit():
        devices = int(devices)
    accelerator = settings.accelerator
    if accelerator == "auto" and not (torch.cuda.is_available() or torch.backends.mps.is_available()):
        accelerator = "cpu"
    if accelerator == "cpu" and devices == "auto":
        devices = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # of torchrun
    with _quiet_lightning():
        try:
            return pl.Trainer(
                accelerator=accelerator,
                devices=devices,
                num_nodes=int(os.environ.get("SLURM_NNODES", os.environ.get("GROUP_WORLD_SIZE", 1))),
                strategy="auto",
                precision=_precision(settings.precision, accelerator),
                max_epochs=-1,  # the steps say when it ends, also after a resumption
                max_steps=steps,
                gradient_clip_val=settings.gradient_clip or None,
                logger=[CSVLogger(out, "logs", version), TensorBoardLogger(out, "logs", version)],
                callbacks=callbacks,
                log_every_n_steps=50,
                num_sanity_val_steps=0,
                use_distributed_sampler=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
        except (ValueError, RuntimeError, TypeError, pl.utilities.exceptions.MisconfigurationException) as error:
            raise InputError(f"this machine cannot train so: {str(error).strip().splitlines()[0]}") from None


def _precision(wanted: str, accelerator: str) -> str:
    if wanted != "auto":
        return wanted
    on_gpu = accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()
    return "bf16-mixed" if on_gpu and torch.cuda.is_bf16_supported() else "32-true"


class _quiet_lightning(warnings.catch_warnings):
    """Keep Lightning's tips and banners off the screen; its errors still come through."""

    def __enter__(self):
        super().__enter__()
        for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning|torch.utils.data|tensorboard")
        warnings.filterwarnings("ignore", message=".*lr_scheduler.*|.*does not have many workers.*|.*treespec.*")


def _describe(console: Console, data: MoleculeData, module: Regression) -> None:
    sizes = {part: len(rows) for part, rows in data.splits.items()}
    parts = ", ".join(f"{size:,} {part}" for part, size in sizes.items())
    lost = f"; {len(data.rejected):,} rows rejected (see {REJECTED})" if data.rejected else ""
    minutes = module.config.trainer.max_minutes
    limit = f"{module.steps:,} steps" + (f" or {minutes:g} minutes" if minutes is not None else "")
    console.print(
        f"{parts}{lost}\n{module.config.model.mixer}: {module.model.num_parameters:,} parameters, {limit}",
        highlight=False,
    )


def _write_start(out: Path, config: RunConfig, data: MoleculeData) -> None:
    """Everything that is known before training, and nothing of a run that stood there before."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in (BEST, LAST, CONFIG, METRICS, TRAINING, SPLIT, REJECTED, PICTURE):
            (out / name).unlink(missing_ok=True)
        shutil.rmtree(out / "logs", ignore_errors=True)
        source = data.source
        if not source.is_pcqm4m:  # OGB's split is OGB's, and has millions of rows
            part_of = {int(row): part for part, rows in data.splits.items() for row in rows}
            _write_csv(out / SPLIT, ["row", "split"], ([row + 1, part_of[row]] for row in sorted(part_of)))
        rows = (
            [row + 1, source.smiles[row] if source.smiles else "", reason]
            for row, reason in sorted(data.rejected.items())
        )
        _write_csv(out / REJECTED, ["row", "smiles", "reason"], rows)
        (out / CONFIG).write_text(config.to_yaml())
    except OSError as error:
        raise InputError(f"cannot write the run folder {out}: {error.strerror}") from None


def _write_csv(path: Path, header: list[str], rows: Iterable[list]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _write_end(out: Path, data: MoleculeData, console: Console) -> dict:
    """Judge the best checkpoint and draw its predictions."""
    predictor = Predictor(read_checkpoint(out))
    source = data.source
    metrics: dict = {}
    for part in ("valid", "test"):
        rows = data.splits.get(part, np.empty(0, np.int64))
        if len(rows) == 0 or np.isnan(source.targets[rows]).all():
            continue
        predicted = predictor.predict_store(data.store, rows)
        metrics[part] = scores(source.name, source.target_names, source.targets[rows], predicted)
        console.print(f"{part} MAE {metrics[part]['mae']:.4f} on {len(rows):,} molecules", highlight=False)
        if part == "test":
            _draw(out / PICTURE, source, rows, predicted)
    if not all(np.isfinite(part["mae"]) for part in metrics.values()):
        raise InputError("the training diverged: its predictions are no numbers; lower --optimizer.peak_lr")
    (out / METRICS).write_text(json.dumps(_without_nan(metrics), indent=2, allow_nan=False) + "\n")
    console.print(f"model: {out}", highlight=False, soft_wrap=True)
    return metrics


def _without_nan(values):
    """JSON knows no nan: an undefined score, such as R^2 of one molecule, becomes null."""
    if isinstance(values, dict):
        return {key: _without_nan(value) for key, value in values.items()}
    return None if isinstance(values, float) and not np.isfinite(values) else values


def _draw(path: Path, source: Source, rows: np.ndarray, predicted: np.ndarray) -> None:
    """Predicted against true, one panel a target (at most twelve)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = source.target_names[:12]
    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(4 * columns, 4 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    for t, name in enumerate(names):
        axes = figure.add_subplot(lines, columns, t + 1)
        true = source.targets[rows, t]
        axes.scatter(true, predicted[:, t], s=6, alpha=0.5, linewidths=0)
        known = true[~np.isnan(true)]
        if len(known):
            ends = [known.min(), known.max()]
            axes.plot(ends, ends, color="black", linewidth=0.8)
        axes.set_xlabel(f"{name}, true")
        axes.set_ylabel(f"{name}, predicted")
    figure.savefig(path, dpi=120)


def default_out(config: DataConfig) -> Path:
    """Where a run goes when the user does not say: ``runs/`` and the name of its data."""
    name = Path(config.dataset).name.split(".")[0]
    return Path("runs") / (name or "run")
