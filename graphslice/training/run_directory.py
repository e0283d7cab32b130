"""Contents of a run directory, and how they are written and read."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from graphslice._version import __version__
from graphslice.atomic_write import atomic_write
from graphslice.config import DataConfig, RunConfig, read_yaml
from graphslice.data.datamodule import MoleculeData
from graphslice.data.dataset_loaders import is_dataset_name
from graphslice.errors import InputError
from graphslice.hardware import hardware_info
from graphslice.run_files import (
    BEST,
    CONFIG,
    CORPUS,
    ENSEMBLE_CALIBRATION,
    FORMER_SMILES,
    LAST,
    METRICS,
    MOLECULES,
    SPLIT_FILE,
    START_FILE,
    TRAINING,
    contains_run,
    find_members,
    locate_dataset,
    write_splits,
)

REJECTED, TEST_PLOT, OUT_OF_FOLD, REPORT = (
    "rejected.csv",
    "test.png",
    "out_of_fold.csv",
    "report.html",
)
#: Files of a run in addition to its checkpoints and configuration.
RUN_FILES = (
    METRICS,
    TRAINING,
    SPLIT_FILE,
    REJECTED,
    TEST_PLOT,
    OUT_OF_FOLD,
    START_FILE,
    REPORT,
    MOLECULES,
    CORPUS,
    FORMER_SMILES,
    ENSEMBLE_CALIBRATION,
)

_LOGS = "logs"


def default_run_directory(config: DataConfig) -> Path:
    """Return the default run directory: ``runs/`` and the name of the dataset."""
    name = Path(config.dataset).name.split(".")[0]
    return Path("runs") / (name or "run")


def check_run_directory(folder: Path, config: DataConfig, *, frame: bool) -> None:
    """Check that a run would not overwrite its input files, or files that no run wrote.

    Args:
        folder: run directory.
        config: data configuration.
        frame: the data is a data frame, of which a copy is saved in the run directory.

    Raises:
        InputError: if the run would overwrite such a file.
    """
    inputs = (config.valid_file, config.test_file, None if frame or is_dataset_name(config.dataset) else config.dataset)
    check_not_overwriting(folder, filter(None, inputs), keep={CORPUS} if frame else {CORPUS, MOLECULES})


def check_not_overwriting(folder: Path, files: Iterable[str | Path], keep: Collection[str] = ()) -> None:
    """Check that a run would not overwrite any of its input files, or files that no run wrote.

    Args:
        folder: run directory.
        files: input files.
        keep: file names that the run may read, or does not write.

    Raises:
        InputError: if the run would overwrite such a file.
    """
    names, directory = {BEST, LAST, CONFIG, *RUN_FILES} - {*keep}, folder.resolve()
    for file in files:
        path = Path(file).resolve()
        if path == directory or (path.parent == directory and path.name in names):
            raise InputError(f"the run would overwrite its input {file}: choose another --out, or move the file")
    if name := foreign_file(folder, names):
        raise InputError(f"{folder} holds no run, but a {name}, which the run would overwrite: choose another --out")


def foreign_file(folder: Path, names: Iterable[str]) -> str | None:
    """Return the name of a file, log or member that no run wrote; None if there is none, or the directory holds a run.

    Args:
        folder: run directory.
        names: names of the files to look for.
    """
    existing = [name for name in sorted(names) if (folder / name).exists()]
    existing += [str(path.relative_to(folder)) for path in (*find_members(folder), *_logs(folder))]
    return existing[0] if existing and not _is_started(folder) else None


def _is_started(folder: Path) -> bool:
    """True if the directory holds a run, or what a run left that was killed at its start."""
    return contains_run(folder) or (folder / START_FILE).exists()  # start.json is the first file of a run


def _logs(folder: Path) -> list[Path]:
    """Return the log directories of a run."""
    return sorted((folder / _LOGS).glob("version_*"))


def remove_run(folder: Path, keep: str | None = None) -> None:
    """Remove the files of a run and nothing else; do nothing if the directory holds no run.

    Args:
        folder: run directory.
        keep: path of a file to keep.

    Raises:
        OSError: if a file cannot be removed.
    """
    if not _is_started(folder):
        return
    for written in (*find_members(folder), *_logs(folder)):
        shutil.rmtree(written, ignore_errors=True)
    if (folder / _LOGS).is_dir() and not any((folder / _LOGS).iterdir()):
        (folder / _LOGS).rmdir()
    for name in (*RUN_FILES, BEST, LAST, CONFIG):  # the last three identify the directory as a run
        if str(folder / name) != keep:
            (folder / name).unlink(missing_ok=True)


def init_run_directory(folder: Path, config: RunConfig, data: MoleculeData, command: str | None = None) -> None:
    """Create a run directory with everything known before training, and remove a previous run in it.

    Args:
        folder: run directory.
        config: resolved configuration.
        data: molecules of the run.
        command: command line that started the run, or None if started from Python.

    Raises:
        InputError: if the directory cannot be written.
    """
    dataset, settings = data.dataset, config.to_yaml()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_run(folder.resolve(), config.data.dataset if dataset.table is None else None)
        (folder / METRICS).unlink(missing_ok=True)  # its presence marks a run as finished
        date = datetime.now().astimezone().isoformat(timespec="seconds")
        start = {"command": command, "date": date, "version": __version__, "machine": hardware_info()}
        _write_json(folder / START_FILE, start)
        if dataset.table is not None:
            pq.write_table(dataset.table, folder / MOLECULES)
        # Not for cross-validation, where each fold has its own split, nor for OGB's fixed split of millions of rows.
        if not dataset.is_pcqm4m and not config.data.is_cross_validation:
            write_splits(folder, data.splits, dataset.smiles)
        rejected = sorted(data.rejected.items())
        smiles = dataset.smiles
        rows = ([row + 1, smiles[row] if smiles else "", reason] for row, reason in rejected)
        _write_csv(folder / REJECTED, ["row", "smiles", "reason"], rows)
        with atomic_write(folder / CONFIG) as new:
            new.write_text(settings)
    except OSError as error:
        raise InputError(f"cannot write the run directory {folder}: {error.strerror}") from None


def read_config(folder: Path) -> RunConfig:
    """Read the resolved configuration of a run; paths of data inside a moved run directory are updated.

    Args:
        folder: run directory.

    Raises:
        InputError: if it cannot be read.
    """
    config = RunConfig.from_dict(read_yaml(folder / CONFIG))
    return replace(config, data=replace(config.data, dataset=locate_dataset(config.data.dataset, folder)))


def read_start(folder: Path) -> dict:
    """Read ``start.json``: ``command``, ``date``, ``version``, ``machine``; empty for runs of older versions."""
    return json.loads((folder / START_FILE).read_text()) if (folder / START_FILE).is_file() else {}


def write_training(folder: Path, training: dict) -> None:
    """Write the training summary, ``training.json``."""
    _write_json(folder / TRAINING, training)


def write_metrics(folder: Path, metrics: dict) -> None:
    """Write the scores, ``metrics.json``; undefined scores, such as R^2 of one molecule, become null."""
    _write_json(folder / METRICS, _without_nan(metrics))


def _without_nan(values):
    """Replace non-finite numbers in nested dictionaries by None."""
    if isinstance(values, dict):
        return {key: _without_nan(value) for key, value in values.items()}
    return None if isinstance(values, float) and not np.isfinite(values) else values


def _write_json(path: Path, values: dict) -> None:
    with atomic_write(path) as temporary:  # metrics.json marks a run as finished, so it must never be incomplete
        temporary.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n")


def _write_csv(path: Path, header: list[str], rows: Iterable[list]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
