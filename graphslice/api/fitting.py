"""Training in Python: :func:`fit` from data frames, files and arrays, and :func:`train` from a configuration."""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from graphslice.api.arguments import as_dataset, name_setting
from graphslice.api.model import Model, load
from graphslice.config import FROM_SCRATCH, RunConfig
from graphslice.config.reading import merge_sections, nested, read_preset
from graphslice.errors import InputError
from graphslice.report.write import report_after_training
from graphslice.runs.checkpoint import fine_tuning_preset
from graphslice.runs.run_files import read_config
from graphslice.system import compile_note
from graphslice.training import train_run
from graphslice.training.loop import Interrupted
from graphslice.training.resolve import check_one_device
from graphslice.training.run import RunResult

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch_geometric.data import Data


def fit(
    data: DataFrame | Mapping[str, Sequence] | tuple | str | Path | Iterable[Data],
    targets: str | Sequence[str] | None = None,
    *,
    smiles: str | None = None,
    long: str | Sequence[str] | None = None,
    level: str | None = None,
    features: str | Sequence[str] | None = None,
    standardize: str | None = None,
    split: str | None = None,
    weights: str | None = None,
    ensemble: int | None = None,
    folds: int | str | None = None,
    preset: str | None = None,
    init_from: str | Path | None = None,
    epochs: int | None = None,
    minutes: float | None = None,
    baselines: bool | None = None,
    seed: int | None = None,
    config: RunConfig | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    overwrite: bool = True,
    quiet: bool = False,
) -> Model:
    """Train a model as ``graphslice train`` does, and return it.

    Task types, split, number of epochs and the use of base models are chosen as on the command line. The members of
    an ensemble or cross-validation are trained in processes of their own, so a script that uses ``ensemble`` or
    ``folds`` needs ``if __name__ == "__main__":``. A notebook does not.

    Args:
        data: a data frame (pandas, polars or Arrow), a dict of columns, the path of a dataset, a pair of R SMILES and
            labels, ``[R]`` or ``[R, T]``, or a PyG dataset or list of ``Data`` with OGB's features and ``y``.
        targets: the column or columns to predict. Optional if only one column is numeric. For a pair or for graphs,
            the names of the T labels.
        smiles: the SMILES column. Default: detected by name.
        long: of a table with a row for each measurement, the columns with the name of the target, the value and, if
            there is one, the relation (<, >, =). Default: a table with a column for each target.
        level: ``"atom"`` or ``"bond"`` for atom- or bond-level targets. Each target cell is then a list with one number
            per atom or bond of the SMILES, in RDKit's order; unknown numbers are None or nan.
        features: inputs in addition to the graph: ``morgan``, ``rdkit2d``, and numeric columns of the dataset.
        standardize: ``"parent"``: read the largest organic fragment of each molecule, neutralised, in training and
            prediction, so that salts do not change predictions.
        split: ``random``, ``scaffold``, ``cluster``, or a column with the values train, valid and test. Default: the
            column named split if there is one, else random.
        weights: the column with the weight of each row, from 0 up; 0 leaves a row out. Default: equal weights.
        ensemble: number of ensemble members. Their mean is predicted, their standard deviation reported.
        folds: cross-validation: 5, or ``"5x3"`` for three repetitions of five folds. ``model.metrics`` has the results.
        preset: one of :data:`graphslice.config.PRESETS`. Default: ``small``.
        init_from: the model to fine-tune: a run directory, a checkpoint, or a model of the package, ``"small"`` or
            ``"gap"``; ``"none"`` trains from scratch. By default a small dataset is fine-tuned from ``small``.
        epochs: number of passes over the training set. Default: depends on its size.
        minutes: upper limit of the training time, in minutes.
        baselines: stack the network with base models of other kinds (random forest, gradient boosting, kernel machine).
            Default: for small datasets. ``False`` trains the network alone, in less time.
        seed: seed of the split, the initial weights and the order of the molecules.
        config: all other settings, as ``{"trainer": {"loss": "huber"}}`` or ``{"trainer.loss": "huber"}``, or a
            :class:`~graphslice.config.RunConfig` instead of a preset. The other arguments take precedence.
        out: the run directory, for the command line and for :func:`graphslice.load`. By default a temporary directory
            is used, which lives as long as the model; :meth:`Model.save` writes it elsewhere.
        overwrite: replace an existing run in ``out``, so that a notebook cell can be run again.
        quiet: print nothing.

    Returns:
        The model. ``model.metrics`` holds its scores; ``model.folder`` is the run directory.

    Raises:
        InputError: if the data or the settings are invalid; nothing is written then.
        KeyboardInterrupt: if training was interrupted. A run with ``out`` is continued by
            ``graphslice train --resume OUT``.
    """
    config = base_config(preset, config, None if init_from is None else str(init_from))
    settings = {
        "data.targets": name_setting(targets),
        "data.smiles_column": smiles,
        "data.long": name_setting(long),
        "data.level": level,
        "data.features": name_setting(features),
        "data.split": split,
        "data.weight_column": weights,
        "data.folds": None if folds is None else str(folds),
        "data.seed": seed,
        "graph.standardize": standardize,
        "trainer.ensemble": ensemble,
        "trainer.max_epochs": epochs,
        "trainer.max_minutes": minutes,
        "trainer.baselines": _switch(baselines),
        "trainer.seed": seed,
    }
    config = config.with_options({name: value for name, value in settings.items() if value is not None})
    check_one_device(config, "fit, unlike graphslice.train,")  # processes of others would run the script again
    config = replace(config, trainer=replace(config.trainer, devices="1"))
    temporary = tempfile.TemporaryDirectory(prefix="graphslice-") if out is None else None
    folder = Path(out or "" if temporary is None else temporary.name).expanduser()
    console = Console(stderr=True, soft_wrap=True, quiet=quiet)
    if not quiet:
        compile_note.announce_compilation()
    try:
        result = _train_alone(config, folder, data, overwrite=overwrite, console=console)
    except Interrupted:
        raise KeyboardInterrupt(f"interrupted; {folder} holds the last checkpoint" if out else "interrupted") from None
    if out is not None:
        report_after_training(result.folder, result.data, console)
    model = load(folder, config.trainer.inference_device)
    if temporary is not None:
        weakref.finalize(model, temporary.cleanup)
    return model


def base_config(
    preset: str | None, config: RunConfig | Mapping[str, Any] | None, init_from: str | None = None
) -> RunConfig:
    """Build the configuration of a run from a preset or a model to fine-tune, and sections that override it; a complete
    configuration is returned as it is."""
    if isinstance(config, RunConfig):
        if preset is not None or init_from is not None:
            raise InputError("a RunConfig holds preset and init_from: leave them out")
        return config
    base = read_preset(preset or "small")
    if init_from is not None and init_from != FROM_SCRATCH:
        base = fine_tuning_preset(base, init_from, preset)
    sections = nested(config or {})
    if init_from is not None:
        sections["init_from"] = init_from if init_from == FROM_SCRATCH else base["init_from"]
    return RunConfig.from_dict(merge_sections(base, sections))


class TrainedRun(RunResult):
    """Result of :func:`graphslice.train`, with the trained model."""

    @cached_property
    def model(self) -> Model:
        """The trained model, loaded on first access."""
        return load(self.folder, read_config(self.folder).trainer.inference_device)


def train(config: RunConfig, out: str | Path, data: Any = None, **arguments: Any) -> TrainedRun:
    """Train a model from a complete configuration.

    Args:
        config: the configuration of the run.
        out: the run directory.
        data: labelled molecules in place of the file ``config.data.dataset``, in any form of :func:`fit`.
        **arguments: the other arguments of :func:`graphslice.training.train`, such as ``overwrite``.

    Returns:
        The result of the run, with the model.

    Raises:
        InputError: as in :func:`graphslice.training.train`.
    """
    return TrainedRun(**vars(_train_alone(config, out, data, **arguments)))


_training = threading.Lock()


def _train_alone(config: RunConfig, out: str | Path, data: Any, **arguments: Any) -> RunResult:
    """Train while no other thread of the process does, and restore torch's random numbers, which threads share."""
    import torch

    data, columns = as_dataset(data, config.data.targets, config.data.level)
    config = replace(config, data=replace(config.data, **columns))
    used = torch.cuda.device_count() if torch.cuda.is_available() and config.trainer.accelerator != "cpu" else 0
    with _training, torch.random.fork_rng(range(used)):
        return train_run.train(config, out, data=data, **arguments)


def _switch(value: bool | str | None) -> str | None:
    """Return a switch as the configuration has it, which also checks texts such as those of the command line."""
    return value if value is None or isinstance(value, str) else "on" if value else "off"
