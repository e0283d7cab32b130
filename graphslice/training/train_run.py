"""Train a model or an ensemble, or resume a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from graphslice.config import RunConfig, join_names
from graphslice.data.columns import target_names
from graphslice.data.dataset import LabelledDataset
from graphslice.data.dataset_loaders import dataset_from_frame, is_dataset_name, load_dataset
from graphslice.data.frames import is_frame
from graphslice.data.pyg import dataset_from_pyg
from graphslice.errors import InputError
from graphslice.evaluation.metrics import check_metric
from graphslice.folder_lock import locked
from graphslice.inference.predictions import check_output_columns
from graphslice.nn.mixers import check_mixer, check_user_mixer
from graphslice.processes import is_first_process
from graphslice.run_files import (
    CONFIG,
    MOLECULES,
    check_folder,
    find_checkpoint,
    read_config,
)
from graphslice.tasks import Task
from graphslice.training.complete_config import check_atom_bond_options, fit_to_dataset
from graphslice.training.devices import choose_devices, make_fabric, quiet_lightning
from graphslice.training.ensemble import train_ensemble
from graphslice.training.losses import check_losses
from graphslice.training.run import RunResult, run

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch_geometric.data import Data


def train(
    config: RunConfig,
    out: str | Path,
    *,
    data: Iterable[Data] | DataFrame | None = None,
    target_names: Sequence[str] | None = None,
    overwrite: bool = False,
    command: str | None = None,
    console: Console | None = None,
) -> RunResult:
    """Train a model or an ensemble, and write it to a run directory.

    Args:
        config: configuration of the run.
        out: run directory: an empty folder or, with ``overwrite``, that of a run.
        data: data to use instead of the file ``config.data.dataset``: a data frame (pandas, polars or Arrow), which is
            read like a CSV with the same cells and with the columns named in ``config.data``; or a PyG dataset or list
            of ``Data`` with OGB features and ``y``.
        target_names: names of the targets of ``data``; for a data frame, its target columns.
        overwrite: replace an existing run in ``out``.
        command: command line that started the run, which is saved with it; None if started from Python.
        console: where to report.

    Returns:
        The run directory and the scores. The directory holds ``model.safetensors``, ``last.ckpt``,
        ``config.yaml``, ``start.json``, ``metrics.json``, ``training.json``, ``split.csv``, ``rejected.csv``,
        ``test.png`` (predicted against true) and ``logs``; :func:`graphslice.report.write_report` adds ``report.html``.

    Raises:
        InputError: if the data or the configuration cannot be used, or another process is using the directory;
            nothing is written then.
    """
    out = Path(out)
    with _lock(out):
        # Mistakes in options and columns come first: an existing run would hide them.
        check_options(config)
        with quiet_lightning():
            make_fabric(choose_devices(config.trainer), out, fresh=True, log=False)
        given = config
        dataset, config = _load_dataset(config, out, data, target_names)
        config = fit_to_dataset(config, dataset)
        check_tasks(config, dataset.tasks)
        if is_first_process():
            check_run_directory(out, given, frame=is_frame(data), overwrite=overwrite)
        if config.num_models > 1:
            return train_ensemble(config, dataset, out, fresh=True, command=command, console=console)
        return run(config, dataset, out, fresh=True, command=command, console=console)


def check_options(config: RunConfig) -> None:
    """Raise :class:`InputError` for a mixer or options that no dataset makes valid."""
    model = config.model
    check_mixer(model.mixer, model.mixer_settings)
    check_user_mixer(model.mixer, model.dim, model.heads, model.mixer_settings)
    check_atom_bond_options(config)


def check_tasks(config: RunConfig, tasks: Sequence[Task]) -> None:
    """Raise :class:`InputError` if the targets do not fit the metric and the losses."""
    check_output_columns(tasks)
    if config.trainer.metric is not None:
        check_metric(config.trainer.metric, tasks)
    check_losses(config.trainer, tasks)


def check_run_directory(folder: Path, config: RunConfig, *, frame: bool = False, overwrite: bool) -> None:
    """Raise :class:`InputError` as :func:`~graphslice.run_files.check_folder`; ``frame``: the data is no file."""
    data = config.data
    dataset = None if frame or is_dataset_name(data.dataset) else data.dataset
    origin = None if config.origin is None else find_checkpoint(config.origin)
    inputs = data.valid_file, data.test_file, dataset, origin
    check_folder(folder, inputs, overwrite=overwrite)


def _lock(folder: Path) -> AbstractContextManager[None]:
    """Lock a run directory; in a distributed run, the first process does so for all of them."""
    return locked(folder) if is_first_process() else nullcontext()


def _load_dataset(
    config: RunConfig, out: Path, data: Iterable[Data] | DataFrame | None, targets: Sequence[str] | None
) -> tuple[LabelledDataset, RunConfig]:
    """Return the dataset, and the configuration with which it can be loaded again unless it is PyG data."""
    if data is None:
        return load_dataset(config.data), config
    if is_frame(data):  # a copy of the data frame is saved in the run directory
        columns = config.data if targets is None else replace(config.data, targets=join_names(list(targets)))
        saved = replace(columns, dataset=str(out.resolve() / MOLECULES))
        return dataset_from_frame(data, columns), replace(config, data=saved)
    return dataset_from_pyg(data, targets, config.data), config


def resume(folder: str | Path, *, data: Iterable[Data] | None = None, console: Console | None = None) -> RunResult:
    """Continue a run that was stopped or killed; the result is that of an uninterrupted run.

    On GPUs it is so up to rounding, and to the dropout masks of compiled steps.

    Args:
        folder: run directory.
        data: the same PyG data again, if the run was trained on PyG data.
        console: where to report.

    Returns:
        The run directory and the scores.

    Raises:
        InputError: if the directory holds no run, another process is using it, or its data has changed.
    """
    folder = Path(folder)
    config = read_config(folder) if (folder / CONFIG).is_file() else None
    if config is None or config.data.fingerprint is None:
        raise InputError(f"{folder} holds no run to continue: start one without --resume")
    with _lock(folder):
        if config.data.dataset == "pyg" and data is None:
            raise InputError(
                f"{folder} was trained on PyG data: continue it with graphslice.training.resume(folder, data=...)"
            )
        targets = target_names(config.data.targets, ())
        dataset = dataset_from_pyg(data, targets, config.data) if data is not None else load_dataset(config.data)
        if dataset.fingerprint() != config.data.fingerprint:
            raise InputError(f"the data of {folder} has changed since the run was started: start a new run instead")
        if config.num_models > 1:
            return train_ensemble(config, dataset, folder, fresh=False, console=console)
        return run(config, dataset, folder, fresh=False, console=console)
