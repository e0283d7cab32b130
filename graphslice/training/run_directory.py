"""What a run folder holds, and how it is written."""

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
    DOMAIN_FILE,
    ENSEMBLE_CALIBRATION,
    LAST,
    METRICS,
    MOLECULES,
    START_FILE,
    TRAINING,
    contains_run,
    find_members,
    locate_dataset,
)

SPLIT_FILE, REJECTED, TEST_PLOT, OUT_OF_FOLD, REPORT = (
    "split.csv",
    "rejected.csv",
    "test.png",
    "out_of_fold.csv",
    "report.html",
)
#: What is known of a finished run beside its model.
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
    DOMAIN_FILE,
    ENSEMBLE_CALIBRATION,
)

_LOGS = "logs"


def default_run_directory(config: DataConfig) -> Path:
    """Where a run goes when the user does not say: ``runs/`` and the name of its data."""
    name = Path(config.dataset).name.split(".")[0]
    return Path("runs") / (name or "run")


def check_run_directory(folder: Path, config: DataConfig, *, frame: bool) -> None:
    """Raise :class:`InputError` if a run would write over a file that it is to read, or that no run wrote.

    Args:
        folder: of the run.
        config: its data.
        frame: whether that is a data frame, which the folder is to keep.
    """
    given = (config.valid_file, config.test_file, None if frame or is_dataset_name(config.dataset) else config.dataset)
    check_not_overwriting(folder, filter(None, given), keep={CORPUS} if frame else {CORPUS, MOLECULES})


def check_not_overwriting(folder: Path, files: Iterable[str | Path], keep: Collection[str] = ()) -> None:
    """Raise :class:`InputError` if a run would write over one of some files, or over what no run wrote.

    Args:
        folder: of the run.
        files: that it is to read.
        but: names that it may read, or does not write.
    """
    names, home = {BEST, LAST, CONFIG, *RUN_FILES} - {*keep}, folder.resolve()
    for file in files:
        path = Path(file).resolve()
        if path == home or (path.parent == home and path.name in names):
            raise InputError(f"{file} lies where the run is to write: choose another --out, or move it")
    if name := foreign_file(folder, names):
        raise InputError(f"{folder} holds no run, but a {name}, which it would replace: choose another --out")


def foreign_file(folder: Path, names: Iterable[str]) -> str | None:
    """One of some names, logs or a member, if a folder has it though no run was begun there; else None."""
    there = [name for name in sorted(names) if (folder / name).exists()]
    there += [str(path.relative_to(folder)) for path in (*find_members(folder), *_logs(folder))]
    begun = contains_run(folder) or (folder / START_FILE).exists()  # the first that a run writes
    return there[0] if there and not begun else None


def _logs(folder: Path) -> list[Path]:
    return sorted((folder / _LOGS).glob("version_*"))


def remove_run(folder: Path, keep: str | None = None) -> None:
    """Remove what a run wrote into its folder, and nothing else; nothing of a folder that holds none.

    Args:
        folder: of the run.
        but: the path of a file that stays.

    Raises:
        OSError: if that cannot be done.
    """
    if not contains_run(folder):
        return
    for written in (*find_members(folder), *_logs(folder)):
        shutil.rmtree(written, ignore_errors=True)
    if (folder / _LOGS).is_dir() and not any((folder / _LOGS).iterdir()):
        (folder / _LOGS).rmdir()
    for name in (*RUN_FILES, BEST, LAST, CONFIG):  # by the last of which it is known as a run
        if str(folder / name) != keep:
            (folder / name).unlink(missing_ok=True)


def init_run_directory(folder: Path, config: RunConfig, data: MoleculeData, command: str | None = None) -> None:
    """Write what is known before training, and remove what is left of a run that stood there before.

    Args:
        folder: of the run.
        config: its resolved configuration.
        data: its molecules.
        command: that began it; None of a run that Python began.

    Raises:
        InputError: if the folder cannot be written.
    """
    dataset, settings = data.dataset, config.to_yaml()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_run(folder.resolve(), config.data.dataset if dataset.table is None else None)
        (folder / METRICS).unlink(missing_ok=True)  # by which a run counts as finished
        date = datetime.now().astimezone().isoformat(timespec="seconds")
        start = {"command": command, "date": date, "version": __version__, "machine": hardware_info()}
        _write_json(folder / START_FILE, start)
        if dataset.table is not None:
            pq.write_table(dataset.table, folder / MOLECULES)
        # Each fold has a split of its own; OGB's is OGB's, and has millions of rows.
        if not dataset.is_pcqm4m and not config.data.is_cross_validation:
            split_of = {int(row): split for split, rows in data.splits.items() for row in rows}
            _write_csv(folder / SPLIT_FILE, ["row", "split"], ([row + 1, split_of[row]] for row in sorted(split_of)))
        rejected = sorted(data.rejected.items())
        smiles = dataset.smiles
        rows = ([row + 1, smiles[row] if smiles else "", reason] for row, reason in rejected)
        _write_csv(folder / REJECTED, ["row", "smiles", "reason"], rows)
        with atomic_write(folder / CONFIG) as new:
            new.write_text(settings)
    except OSError as error:
        raise InputError(f"cannot write the run folder {folder}: {error.strerror}") from None


def read_config(folder: Path) -> RunConfig:
    """The resolved configuration of a run, which finds its data also where they lie in the folder and that was moved.

    Raises:
        InputError: if it cannot be read.
    """
    config = RunConfig.from_dict(read_yaml(folder / CONFIG))
    return replace(config, data=replace(config.data, dataset=locate_dataset(config.data.dataset, folder)))


def read_start(folder: Path) -> dict:
    """Contents of ``start.json``: ``command``, ``date``, ``version``, ``machine``; empty for runs of older versions."""
    return json.loads((folder / START_FILE).read_text()) if (folder / START_FILE).is_file() else {}


def write_training(folder: Path, training: dict) -> None:
    """Write what the training took."""
    _write_json(folder / TRAINING, training)


def write_metrics(folder: Path, metrics: dict) -> None:
    """Write the scores of each split; an undefined one, such as R^2 of one molecule, becomes null."""
    _write_json(folder / METRICS, _without_nan(metrics))


def _without_nan(values):
    if isinstance(values, dict):
        return {key: _without_nan(value) for key, value in values.items()}
    return None if isinstance(values, float) and not np.isfinite(values) else values


def _write_json(path: Path, values: dict) -> None:
    with atomic_write(path) as temporary:  # a run is finished where its scores are there, so never by half
        temporary.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n")


def _write_csv(path: Path, header: list[str], rows: Iterable[list]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
