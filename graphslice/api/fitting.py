"""Training in a notebook: data frames, tables and arrays in, a model out."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from graphslice.api.model import Model, load
from graphslice.checkpoint import fine_tuning_preset
from graphslice.config import (
    FROM_SCRATCH,
    MOLECULE,
    RunConfig,
    check_keys,
    join_names,
    merge_sections,
    parse_section,
    read_preset,
)
from graphslice.data.columns import check_unique
from graphslice.data.frames import as_table, is_frame
from graphslice.errors import InputError, shown
from graphslice.inference.inputs import as_molecules, is_graph
from graphslice.report.write import report_after_training
from graphslice.training import train_run
from graphslice.training.run import Interrupted, RunResult
from graphslice.training.run_directory import read_config

if TYPE_CHECKING:
    from pandas import DataFrame


def fit(
    data: DataFrame | Mapping[str, Sequence] | tuple | str | Path,
    targets: str | Sequence[str] | None = None,
    *,
    smiles: str | None = None,
    level: str | None = None,
    features: str | Sequence[str] | None = None,
    split: str | None = None,
    ensemble: int | None = None,
    folds: int | str | None = None,
    preset: str | None = None,
    init_from: str | Path | None = None,
    epochs: int | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    config: RunConfig | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    overwrite: bool = True,
    quiet: bool = False,
) -> Model:
    """Train a model as ``graphslice train`` does, and return it.

    What is asked of each target, the split, the length of the run, and whether trees answer beside the network are
    found as there. Several models (``ensemble``, ``folds``) are trained in processes of their own: a script that asks
    for them needs ``if __name__ == "__main__":``, a notebook does not.

    Args:
        data: a data frame (pandas, polars or Arrow) or a dict of columns, the path of a table, or a pair of SMILES and
            labels ``[R]`` or ``[R, T]``.
        targets: the columns to predict, a name or several; need not be given where only one column has numbers. Of a
            pair the names of its labels.
        smiles: the column of the SMILES; found by its name.
        level: ``"atom"`` or ``"bond"``, where the cells of the targets are lists of one number for each atom of the
            SMILES, or for each bond, in RDKit's order; numbers that are not known are None or nan.
        features: what is read beside the graph: ``morgan``, ``rdkit2d``, and numeric columns of the table.
        split: random, scaffold, cluster, or a column that says train, valid, test (default: the column split, else
            random).
        ensemble: train so many models, whose mean is the prediction and whose deviation its spread.
        folds: 5, or "5x3" for three times five: cross-validation; ``model.metrics`` has what came of it.
        preset: of :data:`graphslice.config.PRESETS`; ``small`` when not given.
        init_from: whose weights and settings it starts from: a run folder, a checkpoint, or a model that comes with the
            package, ``"small"`` or ``"gap"``; ``"none"`` for random weights. Where it is not given a table that is
            small starts from ``small``.
        epochs: passes over the training molecules (default: by their number).
        minutes: the longest that training may take.
        seed: of the split, the initial weights and the order of the molecules.
        config: everything else, by the sections of ``config.yaml``, such as ``{"trainer": {"baselines": "off"}}``; or a
            :class:`~graphslice.config.RunConfig` in place of a preset. What is given here wins.
        out: the run folder, for the command line and for :func:`graphslice.load`. Without one a temporary folder lives
            as long as the model; :meth:`Model.save` keeps it.
        overwrite: replace the run that ``out`` holds, so that a cell of a notebook can be run again.
        quiet: report nothing.

    Returns:
        The model; ``model.metrics`` has its scores, ``model.folder`` is the run folder.

    Raises:
        InputError: if the data or the settings cannot be used; nothing is written then.
        KeyboardInterrupt: if it was stopped; ``graphslice train --resume OUT`` continues a run that has an ``out``.
    """
    config = base_config(preset, config, None if init_from is None else str(init_from))
    frame, found = _as_dataset(data, targets, (level or config.data.level) != MOLECULE)
    given = {
        "smiles_column": smiles,
        "level": level,
        "features": None if features is None else join_names(_name_list(features) or []),
        "split": split,
        "folds": None if folds is None else str(folds),
        "seed": seed,
        **found,
    }
    trained = {"ensemble": ensemble, "max_epochs": epochs, "max_minutes": minutes, "seed": seed}
    config = replace(
        config, data=_updated_section(config.data, given), trainer=_updated_section(config.trainer, trained)
    )
    if config.trainer.devices not in ("auto", "1"):  # the other processes would run the script, and have no model
        raise InputError(
            f"fit trains on one device: for trainer.devices {config.trainer.devices} call graphslice.train"
        )
    config = replace(config, trainer=replace(config.trainer, devices="1"))
    keep_alive = None if out is not None else tempfile.TemporaryDirectory(prefix="graphslice-")
    folder = Path(keep_alive.name if keep_alive is not None else out or "")
    console = Console(stderr=True, soft_wrap=True, quiet=quiet)
    try:
        result = _train_alone(config, folder, data=frame, overwrite=overwrite, console=console)
    except Interrupted:
        raise KeyboardInterrupt(f"stopped; {folder} holds what was trained" if out else "stopped") from None
    if out is not None:
        report_after_training(result.folder, result.data, console)
    return load(folder, config.trainer.inference_device, keep_alive=keep_alive)


def _as_dataset(data: Any, targets: str | Sequence[str] | None, lists: bool) -> tuple[Any, dict[str, str | None]]:
    """A data frame, or None of a table that is a file; and what a configuration says of where the molecules are."""
    named = targets if targets is None or isinstance(targets, str) else join_names(_name_list(targets) or [])
    if isinstance(data, tuple):
        table = labelled_table(*_as_pair(data), _name_list(targets), lists=lists)
        return table, {"smiles_column": table.column_names[0], "targets": join_names(table.column_names[1:])}
    if isinstance(data, Mapping):
        return _to_table(data), {"targets": named}
    if is_frame(data):
        return data, {"targets": named}
    if isinstance(data, str | Path):
        return None, {"targets": named, "dataset": str(data)}
    raise InputError(
        f"fit takes a data frame, a path, or a pair of SMILES and labels, not {type(data).__name__}; "
        "PyG graphs go to graphslice.train(config, out, data=graphs)"
    )


def base_config(
    preset: str | None, config: RunConfig | Mapping[str, Any] | None, init_from: str | None = None
) -> RunConfig:
    """A preset, or the run that is started from, with what a mapping of sections says; or a whole configuration.

    Raises:
        InputError: for several of these, a key or value that no configuration has, or a run that cannot be read.
    """
    if not isinstance(config, RunConfig | Mapping | None):
        raise InputError(f"config is a RunConfig or a mapping of its sections, not {shown(config)}")
    if isinstance(config, RunConfig):
        for name, other in (("preset", preset), ("init_from", init_from)):
            if other is not None:
                raise InputError(f"{name} and a RunConfig are two answers to one question: give one of them")
        return config
    check_keys(dict(config or {}), RunConfig)
    base = read_preset(preset or "small")
    if init_from is not None and "init_from" in (config or {}):
        raise InputError("init_from stands in config too: give it once")
    if init_from is not None and init_from != FROM_SCRATCH:
        if preset is not None:
            raise InputError("init_from brings its own model: leave out the preset")
        base = fine_tuning_preset(base, init_from)
    found = RunConfig.from_dict(merge_sections(base, config or {}))
    return replace(found, init_from=FROM_SCRATCH) if init_from == FROM_SCRATCH else found


def labelled_table(smiles: Any, labels: Any, targets: Sequence[str] | None = None, *, lists: bool = False) -> pa.Table:
    """A table of SMILES and labels: the first column those, and one a target.

    Args:
        smiles: R SMILES or RDKit molecules.
        labels: ``[R]`` or ``[R, T]``: an array, a list, a Series or a data frame.
        targets: their names; those of the Series or the data frame when not given, else y, or y0, y1, ...
        lists: whether each label is a list of numbers, of atoms or bonds.

    Raises:
        InputError: if there are not as many labels as SMILES, or not as many names as labels.
    """
    molecules = as_molecules(smiles)
    if any(is_graph(molecule) for molecule in molecules):
        raise InputError("fit takes SMILES: PyG graphs with labels go to graphslice.train(config, out, data=graphs)")
    values = _ragged_labels(labels) if lists else np.asarray(labels)
    if values.ndim not in (1, 2) or len(values) != len(molecules):
        raise InputError(f"labels of the shape {list(values.shape)} for {len(molecules)} SMILES: give one a SMILES")
    if targets is None:
        width = 1 if values.ndim == 1 else values.shape[1]
        own = getattr(labels, "columns", None)
        if values.ndim == 1:  # a Series of pandas may be called by a number, one of polars by nothing
            own = None if (name := getattr(labels, "name", None)) in (None, "") else [name]
        targets = ["y"] if own is None and width == 1 else [f"y{i}" for i in range(width)] if own is None else own
        targets = [str(name) for name in targets]
    columns = values.reshape(len(values), -1).T
    if len(targets) != len(columns):
        raise InputError(f"{len(targets)} names for {len(columns)} targets: {', '.join(targets)}")
    check_unique(targets, targets, "the table of labels")
    # A name that no target has.
    first = next(name for name in ("smiles", "SMILES", "the SMILES") if name not in targets)
    texts = [molecule if isinstance(molecule, str) else "" for molecule in molecules]
    return _to_table(dict(zip([first, *targets], [texts, *columns], strict=True)))


def _ragged_labels(labels: Any) -> np.ndarray:
    """``object [R]``: lists of numbers, which an array of numbers would take for targets side by side."""
    if not hasattr(labels, "__len__"):
        raise InputError(f"labels are lists, one a SMILES, not {shown(labels)}")
    found = np.empty(len(labels), object)
    for row, each in enumerate(labels):
        found[row] = list(each) if isinstance(each, tuple | np.ndarray) else each
    return found


def _as_pair(data: tuple) -> tuple[Any, Any]:
    if len(data) != 2:
        raise InputError(f"a tuple of {len(data)} is no pair of SMILES and labels: give fit((smiles, y))")
    return data[0], data[1]


def _to_table(columns: Mapping[str, Any]) -> pa.Table:
    """A table of columns by their names."""
    import pandas as pd

    try:
        return as_table(pd.DataFrame(dict(columns)))
    except ValueError as error:
        raise InputError(f"the columns make no table: {error}") from None


def _name_list(names: Any) -> list[str] | None:
    if names is None:
        return None
    one = isinstance(names, str) or not isinstance(names, Iterable)  # such as the number that a column is called by
    return [str(names)] if one else [str(name) for name in names]


def _updated_section(section: Any, given: Mapping[str, Any]) -> Any:
    """A section of a configuration with what is given of it."""
    named = {name: value for name, value in given.items() if value is not None}
    return parse_section(type(section), type(section).__name__.removesuffix("Config").lower(), vars(section) | named)


class TrainedRun(RunResult):
    """What came of a run, as :func:`graphslice.train` gives it: with the model, loaded when first asked for."""

    @cached_property
    def model(self) -> Model:
        return load(self.folder, read_config(self.folder).trainer.inference_device)


def train(config: RunConfig, out: str | Path, **arguments: Any) -> TrainedRun:
    """Train as a configuration says: :func:`graphslice.training.train`, whose arguments and errors it has.

    Returns:
        What came of the run, with the model.
    """
    return TrainedRun(**vars(_train_alone(config, out, **arguments)))


class _Training:
    lock = threading.Lock()


def _train_alone(config: RunConfig, out: str | Path, **arguments: Any) -> RunResult:
    """Train while no other thread of the process does: threads share torch's random number generator."""
    with _Training.lock:
        return train_run.train(config, out, **arguments)


if hasattr(os, "register_at_fork"):
    # A forked process would wait for a thread of its parent.
    os.register_at_fork(after_in_child=lambda: setattr(_Training, "lock", threading.Lock()))
