"""Read the files of a finished run, and its molecules."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from graphslice.config import MOLECULE, RunConfig
from graphslice.data.datamodule import MoleculeData
from graphslice.data.loaders import load_dataset
from graphslice.data.ogb import OGB_FOLDERS
from graphslice.data.splits import split_name
from graphslice.errors import InputError
from graphslice.evaluation.format_scores import shortened
from graphslice.runs import run_files
from graphslice.runs.checkpoint import Checkpoint
from graphslice.runs.ensemble import find_models, read_checkpoints
from graphslice.system.console import QUIET
from graphslice.training.resolve import first_member, load_molecule_data


@dataclass
class Run:
    """A finished run."""

    folder: Path
    config: RunConfig
    metrics: dict  # of metrics.json; training and start likewise
    training: dict
    start: dict
    models: list[Path]  # run directories of the ensemble members or folds; of a single model, that of the run
    checkpoints: list[Checkpoint]
    data: MoleculeData | None  # None if the molecules cannot be read
    data_error: str | None = None

    @property
    def molecules(self) -> MoleculeData:
        """The molecules, for sections that exist only where they were read."""
        assert self.data is not None
        return self.data

    @property
    def metric(self) -> str:
        """Name of the metric by which the best epoch was selected."""
        return self.metrics.get("metric", "mae")

    @property
    def folds(self) -> bool:
        """True for cross-validation: every model has its own test set."""
        return self.config.data.is_cross_validation and len(self.models) > 1

    @property
    def held_out_folds(self) -> bool:
        """True if folds of the training set took the place of a validation set."""
        return not self.folds and (self.folder / run_files.OUT_OF_FOLD).is_file()

    def split_name(self, split: str) -> str:
        """Return the display name of the split of some scores."""
        is_held_out = self.folds if split == "test" else self.held_out_folds
        return "held-out" if is_held_out else split_name(split)

    @property
    def smiles(self) -> Sequence[str] | None:
        """SMILES of each row; None if the molecules are graphs or could not be read."""
        return (self.data.dataset.smiles or None) if self.data is not None else None

    def name_of(self, row: int) -> str:
        """Return the name of a row for the reader: its first identifier, if it has one, and its number."""
        columns = self.data.dataset.identifiers if self.data is not None else {}
        name = next((text for texts in columns.values() if (text := texts[row].strip())), "")
        return f"{shortened(name)} (row {row + 1})" if name else f"row {row + 1}"


def read_run(folder: Path, data: MoleculeData | None = None) -> Run:
    """Read a finished run, and its molecules if ``data`` does not hold them, of which a failure becomes ``data_error``;
    raises :class:`InputError` if the directory holds no finished run."""
    if not (folder / run_files.CONFIG).is_file():
        raise InputError(f"{folder} holds no run: give a run directory written by graphslice train")
    if not run_files.is_finished(folder):
        raise InputError(
            f"{folder} holds a run that is not finished: continue it with {run_files.resume_command(folder)}"
        )
    models, config = find_models(folder), run_files.read_config(folder)
    checkpoints = read_checkpoints(folder)  # raises an InputError if they are damaged or of other runs
    data_error = None
    if (level := config.model.level) != MOLECULE:
        data, data_error = None, f"the targets are {level}-level; these sections exist for molecule-level targets only"
    elif data is None:
        try:
            data = _read_data(config, folder)
        except (InputError, OSError) as error:
            data_error = str(error)
            logging.getLogger("graphslice").warning("the report has no molecules: %s", error)
    files = run_files.read_metrics(folder), run_files.read_training(folder), run_files.read_start(folder)
    return Run(folder, config, *files, models, checkpoints, data, data_error)


def _read_data(config: RunConfig, folder: Path) -> MoleculeData:
    settings = config.data
    if settings.dataset == "pyg":
        raise FileNotFoundError("the molecules were PyG graphs, which are not stored on disk")
    if settings.dataset in OGB_FOLDERS and not (Path(settings.root) / OGB_FOLDERS[settings.dataset]).exists():
        raise FileNotFoundError(f"{settings.dataset} is no longer in {settings.root}")  # instead of a download
    if settings.cache and not Path(settings.cache).is_dir():  # as of a run from elsewhere
        settings = replace(settings, cache=None)
    dataset = load_dataset(settings)
    if dataset.fingerprint() != settings.fingerprint:
        raise InputError(f"{settings.dataset} has changed since the run")
    # Every member of an ensemble has its own split; the dataset is described with that of the first.
    first = first_member(replace(config, data=settings))
    return load_molecule_data(first, dataset, QUIET, run_files.read_splits(folder))


@dataclass(frozen=True)
class Curve:
    """Learning curve of one model, by epoch from 1."""

    loss: dict[int, float]  # of the training set
    valid: dict[int, float]  # metric of the validation set
    best: int | None  # selected epoch


def read_curve(folder: Path, metric: str, higher_is_better: bool) -> Curve:
    """Read the learning curve of one model, over all resumptions, from its run directory."""
    columns = ("train_loss_epoch", f"val_{metric}", "val_choice")
    logged: dict[str, dict[int, float]] = {name: {} for name in columns}
    for line in run_files.read_metric_logs(folder):
        for name in columns:
            if line.get(name) and line.get("epoch"):
                logged[name][int(line["epoch"]) + 1] = float(line[name])  # the log counts from 0
    loss, valid, choice = ({k: v for k, v in sorted(logged[name].items()) if np.isfinite(v)} for name in columns)
    best = (max if higher_is_better else min)(choice, key=choice.__getitem__) if choice else None
    return Curve(loss, valid, best)
