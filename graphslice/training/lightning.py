"""Lightning's trainer, set up for a run and kept quiet."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from graphslice.checkpoint import BEST
from graphslice.config import RunConfig
from graphslice.errors import InputError
from graphslice.training.callbacks import LastCheckpoint


def make_trainer(config: RunConfig, out: Path, steps: int, watching: list[pl.Callback], fresh: bool) -> pl.Trainer:
    """The trainer of a run.

    Args:
        config: of the run.
        out: its folder.
        steps: its length in optimiser steps.
        watching: callbacks beside those that every run has.
        fresh: whether it begins; else it is continued.

    Raises:
        InputError: if this machine has not what the configuration asks for.
    """
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
    if settings.devices.isdigit():
        devices = int(settings.devices)
    accelerator = settings.accelerator
    if accelerator == "auto" and not (torch.cuda.is_available() or torch.backends.mps.is_available()):
        accelerator = "cpu"
    if accelerator == "cpu" and devices == "auto":
        devices = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # of torchrun
    with quiet_lightning():
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


def _precision(wanted: str, accelerator: str) -> Any:
    if wanted != "auto":
        return wanted
    on_gpu = accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()
    return "bf16-mixed" if on_gpu and torch.cuda.is_bf16_supported() else "32-true"


class quiet_lightning(warnings.catch_warnings):
    """Keep Lightning's tips and banners off the screen; its errors still come through."""

    def __enter__(self):
        super().__enter__()
        for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning|torch.utils.data|tensorboard")
        warnings.filterwarnings("ignore", message=".*lr_scheduler.*|.*does not have many workers.*|.*treespec.*")
