"""Resolution of a run's configuration: from the user's settings and the data to everything that a run needs.

:func:`resolve` asks small functions, each of which reads what it decides by: the dataset, then its molecules, then this
machine. Nothing replaces the configuration afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from graphslice.chem.descriptors import descriptor_width
from graphslice.config import FROM_SCRATCH, MOLECULE, DataConfig, GraphConfig, RunConfig, TrainerConfig, join_names
from graphslice.data.batches import batches_per_epoch
from graphslice.data.datamodule import MoleculeData
from graphslice.data.dataset import LabelledDataset
from graphslice.data.loaders import absolute_dataset
from graphslice.data.splits import Splits, random_subset
from graphslice.data.store import GraphStore
from graphslice.errors import InputError
from graphslice.evaluation.metrics import check_metric, default_metric, score
from graphslice.inference.predictions import check_output_columns
from graphslice.nn.mixers import check_mixer, check_user_mixer
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.run_files import MEMBER, MOLECULES
from graphslice.system.console import Report, molecules_counted, silent
from graphslice.system.machine import MODELS, PRETRAINED_MODEL, is_packaged_model
from graphslice.system.processes import is_first_process
from graphslice.tasks import Task, num_network_outputs, num_outputs, with_transforms
from graphslice.training.choose_transform import choose_transforms
from graphslice.training.devices import Devices, choose_devices, launched_processes
from graphslice.training.fine_tuning import NO_ARCHITECTURE
from graphslice.training.module import check_losses

# Up to this many labels, base models are stacked by default; with more, they take longer than they help.
_MOST_BASELINE_LABELS = 20_000
# Up to this many labelled rows, all of them are trained on by default.
_MOST_REFIT = 3_000
# Training sets of at most this many molecules are fine-tuned from the packaged model by default.
_MAX_FINE_TUNED = 50_000
# At least this share of a sample of this many training molecules must consist of elements known to that model.
_SAMPLE_ROWS, _MIN_KNOWN_SHARE = 1_000, 0.9
# Default length: 30 epochs of up to 10,000 molecules. With more molecules the number of steps grows with the square
# root of their number, down to 5 epochs; with few molecules there are at least 100 steps.
_EPOCHS, _MOLECULES, _MIN_STEPS, _MIN_EPOCHS = 30, 10_000, 100, 5
# Epochs of fine-tuning without a fold of a small training set, where 30 were no better, and of classes alone, which
# overfit sooner; and the length of the training on all rows that continues from it, as a share (docs/log.md).
_REFIT_EPOCHS, _REFIT_EPOCHS_OF_CLASSES, _CONTINUED = 20, 10, 0.6
#: Number of epochs, and least number of steps, of a run that is limited only by time.
NO_STEP_LIMIT = 1_000_000


@dataclass(frozen=True)
class CompleteConfig:
    """Everything that is decided before a run starts."""

    config: RunConfig  # settings that are saved with the run
    members: dict[str, RunConfig]  # of an ensemble, by the names of their folders; empty for a single model
    devices: Devices  # this and the next are those of a single model, or of each member
    steps: int  # length in optimiser steps, unless the time limit ends the run earlier
    metric: str  # selects the best epoch


def resolve(
    config: RunConfig,
    dataset: LabelledDataset,
    out: Path,
    console: Console,
    *,
    chosen: bool = False,
    splits: Splits | None = None,
    report: Report = silent,
) -> tuple[CompleteConfig, MoleculeData]:
    """Complete the user's configuration, and read and split the molecules; of an ensemble, as its first member does. If
    the settings are ``chosen`` already, those of a run that is continued in ``out`` with its ``splits`` or of an
    ensemble's member, only what is not saved with them is decided: lengths, devices and metric."""
    if not chosen:
        check_tasks(config, dataset.tasks)
        config = fit_to_dataset(config, dataset, out)
    data = load_molecule_data(first_member(config), dataset, console, splits, report)
    if not chosen:
        data.check_size()
        init_from, peak_lr = _choose_init_from(config, data.store, data.splits["train"])
        chosen_data = replace(config.data, transform=choose_transforms(config, init_from, data, console))
        optimizer = replace(config.optimizer, peak_lr=peak_lr)
        config = replace(config, data=chosen_data, optimizer=optimizer, init_from=init_from)
    data = data.with_config(first_member(config)).with_tasks(with_transforms(dataset.tasks, config.data.transform))
    complete = complete_config(config, data)
    if not chosen:
        for member in complete.members.values():  # before any is trained
            data.check_split(member)
    return complete, data


def fit_to_dataset(config: RunConfig, dataset: LabelledDataset, out: Path) -> RunConfig:
    """Return the configuration with what the dataset decides; raises :class:`InputError` if it does not fit it."""
    data = _fit_data(config.data, dataset, out)
    labels = int((~np.isnan(dataset.targets)).sum())
    baselines = config.trainer.baselines if dataset.level == MOLECULE else "off"
    if baselines == "auto":
        baselines = "on" if labels <= _MOST_BASELINE_LABELS else "off"
    refit = _choose_refit(config.trainer, baselines, data, dataset)
    devices = "1" if refit == "on" else config.trainer.devices
    trainer = replace(config.trainer, baselines=baselines, refit=refit, devices=devices)
    outputs, width = num_network_outputs(dataset.tasks, config.trainer.loss), descriptor_width(config.data.descriptors)
    model = replace(config.model, tasks=outputs, descriptors=width, level=dataset.level)
    return replace(config, data=data, model=model, trainer=trainer)


def complete_config(config: RunConfig, data: MoleculeData) -> CompleteConfig:
    """Decide what is not saved with a configuration; raises :class:`InputError` if this machine does not support it."""
    if config.trainer.patience is not None and not len(data.splits["valid"]):
        raise InputError("trainer.patience needs a validation set: leave it out")
    devices, count = choose_devices(config.trainer), len(data.splits["train"])
    steps = run_steps(config, data.dataset.tasks, count, devices.total, continued=config.trainer.refit == "on")
    return CompleteConfig(config, member_configs(config), devices, steps, _choose_metric(config.trainer.metric, data))


def check_options(config: RunConfig) -> None:
    """Raise :class:`InputError` for a mixer or options that no dataset makes valid."""
    data, model, trainer = config.data, config.model, config.trainer
    check_mixer(model.mixer, model.mixer_settings)
    check_user_mixer(model.mixer, model.dim, model.heads, model.mixer_settings)
    of_molecules = {
        "data.features": bool(data.descriptors),
        "data.transform": data.transform not in (None, "none"),
        "trainer.baselines on": trainer.baselines == "on",
        "graph.standardize parent": config.graph.standardize != "none",
    }
    for option, is_set in of_molecules.items():
        if is_set and data.level != MOLECULE:
            raise InputError(f"{option} needs molecule-level targets: leave it out with data.level {data.level}")
    if config.num_models > 1:
        check_one_device(config, "each member of an ensemble or cross-validation")


def check_one_device(config: RunConfig, what: str) -> None:
    """Raise :class:`InputError` if a training that uses one device is configured or launched on several."""
    if config.trainer.devices not in ("auto", "1") or not is_first_process():
        raise InputError(f"{what} uses one device: leave out trainer.devices")


def check_tasks(config: RunConfig, tasks: Sequence[Task]) -> None:
    """Raise :class:`InputError` if the targets do not fit the metric and the losses."""
    check_output_columns(tasks)
    if config.trainer.metric is not None:
        check_metric(config.trainer.metric, tasks)
    check_losses(config.trainer, tasks)


def load_molecule_data(
    config: RunConfig, dataset: LabelledDataset, console: Console, splits: Splits | None = None, report: Report = silent
) -> MoleculeData:
    """Featurize the molecules of a run, and split them, or take the splits of a run; raises
    :class:`InputError` if they cannot be used, or not be split as configured."""
    console.print(f"[bold]{escape(dataset.name)}[/]: {len(dataset):,} rows; reading molecules", highlight=False)

    def show(done: float | None, status: str, count: int) -> None:
        report(done, f"reading molecules, {status}")

    with molecules_counted(len(dataset), show) as advance:
        return MoleculeData(dataset, config, advance, splits)


def member_configs(config: RunConfig) -> dict[str, RunConfig]:
    """Return the configuration of each ensemble member, by the name of its directory; empty for a single model. Members
    have different seeds, which no ensemble with another seed shares, and different validation sets unless the data
    defines one; in a cross-validation, each has another fold as its test set."""
    count = config.num_models
    if count < 2:
        return {}
    members = {}
    for number in range(count):
        seed = (config.trainer.seed * count + number) % 2**32
        by_fold = config.data.is_cross_validation
        data = replace(config.data, fold=number) if by_fold else replace(config.data, carve=number)
        member = replace(config, data=data, trainer=replace(config.trainer, ensemble=1, seed=seed))
        members[f"{MEMBER}{number + 1}"] = member
    return members


def first_member(config: RunConfig) -> RunConfig:
    """Return the configuration of the first ensemble member, or of a single model."""
    return next(iter(member_configs(config).values()), config)


def _fit_data(data: DataConfig, dataset: LabelledDataset, out: Path) -> DataConfig:
    """Return where the dataset can be loaded again, with all names; paths are absolute."""
    auxiliary = (name for labels in dataset.auxiliary.values() for name in labels.names)
    valid_file, test_file = (file and absolute_dataset(file) for file in (data.valid_file, data.test_file))
    path = "pyg" if dataset.name == "pyg" else absolute_dataset(data.dataset)
    if dataset.table is not None:  # a copy of the data frame is saved in the run directory
        path = str(out.resolve() / MOLECULES)
    return replace(
        data,
        dataset=path,
        valid_file=valid_file,
        test_file=test_file,
        cache=str(Path(data.cache).resolve()) if data.cache else data.cache,
        root=str(Path(data.root).resolve()) if dataset.is_pcqm4m else data.root,
        targets=join_names([*dataset.target_names, *auxiliary]),
        features=join_names(data.descriptors) or None,
        fingerprint=dataset.fingerprint(),
    )


def _choose_refit(trainer: TrainerConfig, baselines: str, data: DataConfig, dataset: LabelledDataset) -> str:
    """Decide whether folds of the training set replace the validation set: on or off."""
    obstacles = {
        "trainer.baselines on": baselines == "off",
        "molecules without a validation set of their own": "valid" in (dataset.splits or {}),
        "a run that no time limit or patience ends": trainer.max_minutes is not None or trainer.patience is not None,
        "a single device": trainer.devices not in ("auto", "1") or (launched_processes()[0] or 1) > 1,
        "a single model, no ensemble or cross-validation": trainer.ensemble > 1 or data.is_cross_validation,
    }
    needed = next((name for name, is_met in obstacles.items() if is_met), None)
    if trainer.refit == "on" and needed is not None:
        raise InputError(f"trainer.refit on needs {needed}: leave it out")
    labelled = int((~np.isnan(dataset.targets)).any(axis=1).sum())
    return trainer.refit if trainer.refit != "auto" else "on" if needed is None and labelled <= _MOST_REFIT else "off"


def _choose_init_from(config: RunConfig, store: GraphStore, rows: np.ndarray) -> tuple[str, float]:
    """Return the model that a run is fine-tuned from, and its learning rate; unless the user set them, for a small
    training set those of the packaged model, if it has the same architecture and graph settings and knows the
    elements. Larger steps would undo the pretraining (docs/log.md)."""
    scratch = config.init_from or FROM_SCRATCH, config.optimizer.max_lr
    if config.init_from is not None or len(rows) > _MAX_FINE_TUNED:
        return scratch
    origin = read_checkpoint(MODELS[PRETRAINED_MODEL])
    elements = set(origin.extra.get("elements", ()))
    sample = random_subset(rows, _SAMPLE_ROWS).tolist()
    known = [elements.issuperset(store[row].atoms[:, 0].tolist()) for row in sample]
    if _architecture(origin.config) != _architecture(config) or np.mean(known) < _MIN_KNOWN_SHARE:
        return scratch
    # The path, if the user has a file of this name: the packaged model is meant.
    init_from = PRETRAINED_MODEL if is_packaged_model(PRETRAINED_MODEL) else str(MODELS[PRETRAINED_MODEL])
    return init_from, config.optimizer.peak_lr or origin.config.optimizer.max_lr


def _architecture(config: RunConfig) -> tuple[GraphConfig, dict[str, Any]]:
    """Return the settings that two models must share for one to be initialised from the other."""
    model = {name: value for name, value in vars(config.model).items() if name not in NO_ARCHITECTURE}
    return replace(config.graph, standardize="none", max_atoms=GraphConfig.max_atoms), model


def default_epochs(molecules: int, steps_per_epoch: int, epochs: int = _EPOCHS) -> int:
    """Return the default number of epochs of a training set: ``epochs`` for a small one, then fewer."""
    factor = math.sqrt(min(1.0, _MOLECULES / max(molecules, 1)))
    return max(_MIN_EPOCHS, round(epochs * factor), math.ceil(_MIN_STEPS / max(steps_per_epoch, 1)))


def run_steps(
    config: RunConfig, tasks: Sequence[Task], molecules: int, devices: int = 1, continued: bool = False
) -> int:
    """Return the length of a training in optimiser steps, unless its time limit ends it earlier; ``continued``: from a
    network that was trained without a fold of the training set."""
    settings = config.trainer
    steps_per_epoch = batches_per_epoch(molecules, settings.batch_size, devices)
    epochs = settings.max_epochs
    if epochs is None:
        limited = settings.max_steps is not None or settings.max_minutes is not None
        default = _EPOCHS
        if settings.refit == "on" and config.origin is not None:
            default = _REFIT_EPOCHS_OF_CLASSES if all(task.classes for task in tasks) else _REFIT_EPOCHS
        default = default_epochs(molecules, steps_per_epoch, default)
        epochs = NO_STEP_LIMIT if limited else math.ceil(_CONTINUED * default) if continued else default
    return min(settings.max_steps or epochs * steps_per_epoch, epochs * steps_per_epoch)


def _choose_metric(name: str | None, data: MoleculeData) -> str:
    """Return the user's metric for the best epoch, or the default of the task types; ``"loss"`` if it is undefined on
    the validation set, as AUROC with a single class."""
    metric = name or default_metric(data.dataset.tasks, data.dataset.all_labels.values)
    rows = data.splits["valid"] if len(data.splits["valid"]) else data.splits["train"]
    return metric if is_defined(metric, data.dataset, rows) else "loss"


def is_defined(metric: str, dataset: LabelledDataset, rows: np.ndarray) -> bool:
    """True if a metric is defined on some rows; AUROC, for example, needs labels of two classes."""
    labels = dataset.all_labels[rows]
    # Whether a metric is defined depends only on the labels; predictions are random, since correlations need variance.
    predictions = np.random.default_rng(0).uniform(0.1, 0.9, (len(labels), num_outputs(dataset.tasks)))
    return bool(np.isfinite(score(metric, dataset.name, dataset.tasks, labels, predictions)))
