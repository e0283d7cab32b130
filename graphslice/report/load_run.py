"""What a run left in its folder, and the molecules that it had."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphslice.config import MOLECULE, RunConfig
from graphslice.data.datamodule import MoleculeData
from graphslice.data.dataset_loaders import load_dataset
from graphslice.ensemble_check import find_models
from graphslice.errors import InputError
from graphslice.run_files import (
    BEST,
    CONFIG,
    LAST,
    is_finished,
    metric_logs,
    read_metrics,
    read_training,
)
from graphslice.training.ensemble import member_configs
from graphslice.training.run import saved_splits
from graphslice.training.run_directory import (
    REJECTED,
    read_config,
    read_start,
)


@dataclass
class Run:
    """A finished run.

    Attributes:
        folder: of the run.
        config: its resolved configuration.
        metrics, training, start: what ``metrics.json``, ``training.json`` and ``start.json`` hold; of a run of an older
            version the last is empty.
        models: the folder of each model; of a run of one its own.
        data: the molecules, or None where they cannot be had.
        data_error: why they cannot.
    """

    folder: Path
    config: RunConfig
    metrics: dict
    training: dict
    start: dict
    models: list[Path]
    data: MoleculeData | None
    data_error: str | None = None

    @property
    def metric(self) -> str:
        """The metric that chose the best epoch."""
        return self.metrics.get("metric", "mae")

    @property
    def folds(self) -> bool:
        """Whether its models have other molecules as their test."""
        return self.config.data.is_cross_validation and len(self.models) > 1

    @property
    def smiles(self) -> list[str] | None:
        """SMILES by row; None where the molecules are graphs, or not there."""
        return (self.data.dataset.smiles or None) if self.data is not None else None

    @property
    def device(self) -> str | None:
        """What computes its answers; None where nobody said."""
        return self.config.trainer.inference_device


def read_run(folder: Path, data: MoleculeData | None = None) -> Run:
    """A run of a folder.

    Args:
        folder: of the run.
        data: its molecules, where they are at hand; else they are read again.

    Raises:
        InputError: if the folder holds no finished run.
    """
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder} holds no run: give the folder that graphslice train wrote")
    if not is_finished(folder) and not (folder / LAST).is_file() and (folder / BEST).is_file():
        raise InputError(f"{folder} holds a model without the scores of a run: there is nothing to report")
    if not is_finished(folder):
        raise InputError(
            f"{folder} holds a run that is not finished: graphslice train --resume {folder} goes on with it"
        )
    models, config = find_models(folder), read_config(folder)
    data_error = None
    if (level := config.model.level) != MOLECULE:
        data, data_error = None, f"the targets are of {level}s, and what stands here would be of molecules"
    elif data is None:
        try:
            data = _read_data(config, folder)
        except (InputError, OSError) as error:
            data_error = str(error)
    found = read_metrics(folder), read_training(folder), read_start(folder)
    return Run(folder, config, *found, models, data, data_error)


def _read_data(config: RunConfig, folder: Path) -> MoleculeData:
    if config.data.dataset == "pyg":
        raise InputError("the molecules were PyG graphs, which no file holds")
    if config.data.fingerprint is None:
        raise InputError("the model was not trained in this folder")
    dataset = load_dataset(config.data)
    if dataset.fingerprint() != config.data.fingerprint:
        raise InputError(f"{config.data.dataset} has changed since the run")
    splits = saved_splits(config, folder)
    # Of several models each has a split of its own; that of the first stands for what they have in common.
    first = next(iter(member_configs(config).values()), config)
    return MoleculeData(dataset, first, None, splits)


@dataclass(frozen=True)
class Rejected:
    """Rows that could not be used, in groups of the same reason but for its numbers and names.

    Attributes:
        count: how many there are.
        reasons: the most frequent groups: how many rows, the number of the first from 1, and its reason.
        more: how many other groups there are.
    """

    count: int
    reasons: list[tuple[int, str, str]]
    more: int


def read_rejected(folder: Path, most: int) -> Rejected:
    """What ``rejected.csv`` of a run folder holds, at most so many groups of it."""
    path, counts, first = folder / REJECTED, Counter[str](), dict[str, tuple[str, str]]()
    if path.is_file():
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            for line in csv.DictReader(file):
                group = re.sub(r"'[^']*'|\d[\d,.]*", "…", line["reason"] or "")
                counts[group] += 1
                first.setdefault(group, (line["row"], line["reason"] or ""))
    groups = [(count, *first[group]) for group, count in counts.most_common(most)]
    return Rejected(sum(counts.values()), groups, len(counts) - len(groups))


@dataclass(frozen=True)
class Curve:
    """What was logged of the training of one model.

    Attributes:
        loss: epochs and training loss, ``float64 [E]`` each.
        valid: epochs and validation metric.
        best: the epoch that was chosen; None where it is not known.
    """

    loss: tuple[np.ndarray, np.ndarray]
    valid: tuple[np.ndarray, np.ndarray]
    best: int | None


def read_curve(folder: Path, metric: str, higher_is_better: bool) -> Curve:
    """The learning curve of a run of one model, over all resumptions.

    Args:
        folder: of it.
        metric: that was logged on validation.
        higher: whether more of it is better.
    """
    columns = ("train_loss_epoch", f"val_{metric}", "val_choice")
    found: dict[str, dict[int, float]] = {name: {} for name in columns}
    for log in metric_logs(folder):
        with log.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                for name in columns:
                    if line.get(name) and line.get("epoch"):
                        found[name][int(line["epoch"]) + 1] = float(line[name])  # the log counts from 0
    loss, valid, choice = ({k: v for k, v in sorted(found[name].items()) if np.isfinite(v)} for name in columns)
    best = None
    if choice:
        best = (max if higher_is_better else min)(choice, key=lambda epoch: choice[epoch])
    return Curve(_arrays(loss), _arrays(valid), best)


def _arrays(values: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(list(values), dtype=np.float64), np.array(list(values.values()), dtype=np.float64)
