"""Configuration of the Lightning trainer, and suppression of its messages."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import LearningRateMonitor
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.strategies import DDPStrategy

from graphslice.atomic_write import atomic_write
from graphslice.config import RunConfig
from graphslice.errors import InputError
from graphslice.evaluation.metrics import METRICS
from graphslice.torch_io import torch_bytes
from graphslice.training.callbacks import BestCheckpoint, LastCheckpoint, Patience, StopAllRanks
from graphslice.training.devices import Devices
from graphslice.training.module import MONITOR


def make_trainer(
    config: RunConfig, devices: Devices, out: Path, steps: int, metric: str, extra: list[pl.Callback], fresh: bool
) -> pl.Trainer:
    """Make the Lightning trainer of a run.

    Args:
        config: configuration of the run.
        devices: devices and precision.
        out: run directory.
        steps: length of the run in optimiser steps.
        metric: metric that selects the best epoch.
        extra: callbacks in addition to those of every run.
        fresh: the run is new; otherwise it is continued.

    Returns:
        The trainer.

    Raises:
        InputError: if this machine does not support the configuration.
    """
    settings = config.trainer
    mode = "max" if METRICS[metric].higher_is_better else "min"
    version = 0 if fresh else len(list((out / "logs").glob("version_*")))
    callbacks = [
        *extra,
        LearningRateMonitor("step"),
        BestCheckpoint(out, MONITOR, mode),
        LastCheckpoint(out, settings.checkpoint_minutes),
    ]
    if settings.patience is not None:
        callbacks.insert(0, Patience(MONITOR, settings.patience, mode))
    strategy: Any = "auto"
    if devices.total != 1:
        callbacks.append(StopAllRanks())
        # All buffers are constants and equal on all devices, so they need no broadcast.
        strategy = DDPStrategy(broadcast_buffers=False)
    with quiet_lightning():
        try:
            return pl.Trainer(
                accelerator=devices.accelerator,
                devices=devices.count,
                num_nodes=devices.machines,
                strategy=strategy,
                precision=devices.precision,  # type: ignore[arg-type]
                max_epochs=-1,  # the run is limited by steps, also after a resumption
                max_steps=steps,
                gradient_clip_val=settings.gradient_clip or None,
                logger=[CSVLogger(out, "logs", version), TensorBoardLogger(out, "logs", version)],
                callbacks=callbacks,
                plugins=[AtomicCheckpointIO()],
                log_every_n_steps=50,
                num_sanity_val_steps=0,
                use_distributed_sampler=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
        except (
            ValueError,
            RuntimeError,
            TypeError,
            ImportError,
            pl.utilities.exceptions.MisconfigurationException,
        ) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"this machine cannot train with these settings: {reason}") from None


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint plugin that writes atomically and removes nothing, since ``best`` and ``last`` are overwritten."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        with atomic_write(Path(path)) as temporary:
            temporary.write_bytes(torch_bytes(checkpoint))

    def remove_checkpoint(self, path: str | Path) -> None:
        pass


class quiet_lightning(warnings.catch_warnings):
    """Context manager that hides Lightning's tips and banners, but not its errors."""

    def __enter__(self):
        super().__enter__()
        for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning|torch.utils.data|tensorboard")
        warnings.filterwarnings("ignore", message=".*lr_scheduler.*|.*does not have many workers.*|.*treespec.*")
