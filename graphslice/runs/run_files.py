"""Files of a run directory: their names, and how they are found, read, written and removed."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from graphslice._version import __version__
from graphslice.config import DataConfig, RunConfig, read_yaml
from graphslice.errors import InputError, nearest, nearest_path, quoted_list, shell_command
from graphslice.system.files import atomic_write
from graphslice.system.hub import local_path
from graphslice.system.machine import MODELS, hardware_info, is_packaged_model

#: Calibration of an ensemble.
ENSEMBLE_CALIBRATION = "calibration.safetensors"
#: Split and SMILES of each row. The SMILES are not part of a model, so that it can be shared without them.
SPLIT_FILE = "split.csv"
#: The model of the best epoch, and the state from which training continues.
BEST, LAST = "model.safetensors", "last.ckpt"
#: Prefix of the folders of ensemble members, each of which is a run directory.
MEMBER = "member-"
#: Prefix of the folders of networks that are trained without a fold of the training set, while the run lasts.
HELD_OUT = "held-out-"
#: Resolved configuration.
CONFIG = "config.yaml"
#: Dataset of a run that was trained on a data frame.
MOLECULES = "molecules.parquet"
#: Preprocessed dataset of a pretraining run.
CORPUS = "corpus.arrow"
#: Scores by split, written last, and figures of the training such as steps, time and memory.
METRICS, TRAINING = "metrics.json", "training.json"
#: Settings with which training was started, written first.
START_FILE = "start.json"

#: Folder of the runs whose directory is not given.
RUNS = Path("runs")
#: Rows that cannot be used, and the report.
REJECTED, REPORT = "rejected.csv", "report.html"
#: Predictions of the validation set, of the test set, and out-of-fold predictions, which replace one of them.
VALID_PREDICTIONS, TEST_PREDICTIONS, OUT_OF_FOLD = "valid_predictions.csv", "test_predictions.csv", "out_of_fold.csv"
#: Files of a run in addition to its checkpoints and configuration.
RUN_FILES = (
    *(METRICS, TRAINING, SPLIT_FILE, REJECTED, START_FILE, REPORT, VALID_PREDICTIONS),
    *(TEST_PREDICTIONS, OUT_OF_FOLD, MOLECULES, CORPUS, ENSEMBLE_CALIBRATION),
)

_MEMBER = re.compile(rf"{MEMBER}([1-9][0-9]*)", re.ASCII)


def find_checkpoint(path: str | Path) -> Path:
    """Return the file of a model, given it, its run directory, or the name of a packaged model or of one on the Hub."""
    if is_packaged_model(path):
        return MODELS[str(path)]
    path = Path(local_path(path))
    if path.is_dir():
        if members := find_members(path):
            raise InputError(f"{path} is an ensemble of {len(members)}: give one of its members, such as {members[0]}")
        if not (path / BEST).is_file():
            raise InputError(
                f"{path} is not a run directory with a model: it holds no {BEST}, written after an epoch"
                f"{_nearest_run(path)}"
            )
        return path / BEST
    if not path.is_file():
        similar = _nearest_run(path) or nearest(str(path), MODELS)
        raise InputError(
            f"no model at {path}{similar}: give a run directory, a file {BEST}, or a packaged model "
            f"({', '.join(MODELS)}); graphslice import-checkpoint converts published checkpoints"
        )
    return path


def _nearest_run(path: Path) -> str:
    """Return ``" (did you mean runs/my?)"`` with runs in a folder, or else next to the path or in ``runs``."""
    folders = [path] if path.is_dir() else dict.fromkeys([path.parent, RUNS])
    runs = [file.parent for folder in folders for file in sorted(folder.glob(f"*/{START_FILE}"))]
    return nearest_path(path, runs) or (f" (did you mean {quoted_list(runs, 3, str)}?)" if runs else "")


def run_directory_of(path: str | Path) -> Path | None:
    """Return the run directory, given it or a checkpoint in it; None for a packaged model."""
    if is_packaged_model(path):
        return None
    path = Path(local_path(path))
    return path if path.is_dir() else path.parent


def locate_dataset(dataset: str, folder: Path | None) -> str:
    """Return the path of the dataset of a run, also if it is in the run directory and that was moved."""
    path = Path(dataset)
    if folder is None or path.name not in (MOLECULES, CORPUS) or path.exists():
        return dataset
    candidates = (parent.resolve() / path.name for parent in (folder, folder / ".."))
    return next((str(candidate) for candidate in candidates if candidate.is_file()), dataset)


def read_metric_logs(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the lines of the metric logs of a run, over all resumptions in their order."""
    logs = {path.parent.name.removeprefix("version_"): path for path in folder.glob("logs/version_*/metrics.csv")}
    for number in sorted(filter(str.isdecimal, logs), key=int):
        with logs[number].open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)


def is_finished(folder: Path) -> bool:
    return (folder / METRICS).exists()


def resume_command(folder: Path) -> str:
    return shell_command(["graphslice", "train", "--resume", str(folder)])


def unfinished_note(folder: Path | None) -> str | None:
    """Return a note on the models of a run that was stopped, which are those of its best epoch so far; else None."""
    if folder is None or is_finished(folder) or not (folder / CONFIG).is_file():
        return None
    if not any((one / LAST).is_file() for one in (folder, *find_members(folder))):
        return None
    return (
        f"{folder} is not finished (it has no {METRICS}), and its model may be that of the best epoch so far; continue "
        f"with {resume_command(folder)}"
    )


def read_metrics(folder: Path) -> dict:
    """Read the scores of a finished run by split."""
    return _read_json(folder / METRICS)


def read_training(folder: Path) -> dict:
    """Read the training figures of a finished run, such as steps, time and memory."""
    return _read_json(folder / TRAINING)


def _read_json(path: Path) -> dict:
    """Read a JSON file of a run; raises InputError if it is missing or damaged."""
    with _damage_reported(path):
        return json.loads(path.read_text())


def contains_run(folder: Path) -> bool:
    """True if a folder holds a run, finished or not."""
    return any((folder / name).exists() for name in (CONFIG, LAST, BEST))


def find_members(path: str | Path) -> list[Path]:
    """Return the run directories of the members of an ensemble, by number; empty for a single model."""
    named = [folder for folder in Path(path).glob(f"{MEMBER}*") if _MEMBER.fullmatch(folder.name)]
    return sorted(filter(contains_run, named), key=lambda folder: int(folder.name.removeprefix(MEMBER)))


def write_splits(
    folder: Path,
    splits: Mapping[str, np.ndarray],
    smiles: Sequence[str],
    identifiers: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Write ``split.csv``: row (from 1), split, SMILES and identifiers; no SMILES if they are unknown."""
    split_of = {int(row): split for split, rows in splits.items() for row in rows}
    columns = [smiles if len(smiles) else [""] * (max(split_of, default=0) + 1), *identifiers.values()]
    rows = ([row + 1, split_of[row], *(column[row] for column in columns)] for row in sorted(split_of))
    write_csv(folder / SPLIT_FILE, ["row", "split", "smiles", *identifiers], rows)


def read_splits(folder: Path) -> dict[str, np.ndarray] | None:
    """Read the ``int64`` rows of each split from ``split.csv`` of a run directory; None if there is no such file."""
    if not (folder / SPLIT_FILE).is_file():
        return None
    splits: dict[str, list[int]] = {}
    for row, split in _read_column(folder / SPLIT_FILE, "split"):
        splits.setdefault(split, []).append(row)
    return {split: np.array(rows, dtype=np.int64) for split, rows in splits.items()}


def read_training_smiles(folder: Path | None) -> dict[int, str]:
    """Read the SMILES of a run by their rows in the dataset; empty if there are none, and of an ensemble whose members
    have different splits those of its first member."""
    if folder is None:
        return {}
    folders = [folder, *find_members(folder)[:1]]
    paths = [path for folder in folders if (path := folder / SPLIT_FILE).is_file()]
    return {row: text for path in paths[:1] for row, text in _read_column(path, "smiles") if text}


def _read_column(path: Path, column: str) -> list[tuple[int, str]]:
    """Read pairs of a row (from 0) and a text from a CSV file of a run."""
    with _damage_reported(path), path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        if not (pairs := [(int(line["row"]) - 1, line[column]) for line in csv.DictReader(file)]):
            raise ValueError("no rows")
        return pairs


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        raise InputError(f"{path} is missing or damaged: copy it again") from None


def default_run_directory(config: DataConfig) -> Path:
    """Return the default run directory: ``runs/`` and the name of the dataset."""
    name = Path(config.dataset).name.split(".")[0]
    return RUNS / (name or "run")


def check_folder(folder: Path, inputs: Iterable[str | Path | None] = (), *, overwrite: bool) -> None:
    """Check that a run may start: in an empty folder (but for hidden files) or, with ``overwrite``, in one that holds
    ``start.json``; no input file may be in the folder but the dataset of a run."""
    of_run = {(folder / name).resolve() for name in (CORPUS, MOLECULES)}
    files = {Path(file).resolve() for file in inputs if file is not None} - of_run
    if inside := next((file for file in files if file.is_relative_to(folder.resolve())), None):
        raise InputError(f"the run would overwrite its input {inside}: choose another --out, or move the file")
    found = {path.name for path in folder.glob("[!.]*")}
    if START_FILE in found and not overwrite:
        raise InputError(
            f"{folder} holds a run already: choose another --out, continue it with {resume_command(folder)}, or give "
            "--overwrite"
        )
    if found and START_FILE not in found:
        raise InputError(f"{folder} is not empty, and holds no run: choose another --out")


def remove_run(folder: Path, keep: str | None = None) -> None:
    """Remove the files of a run but ``keep``; raises :class:`OSError` if one cannot be removed."""
    (folder / CONFIG).unlink(missing_ok=True)  # first: what is left cannot be continued
    for subfolder in (folder / "logs", *folder.glob(f"{MEMBER}*"), *folder.glob(f"{HELD_OUT}*")):
        shutil.rmtree(subfolder, ignore_errors=True)
    for name in (BEST, LAST, *(name for name in RUN_FILES if name != START_FILE), START_FILE):
        if str(folder / name) != keep:
            (folder / name).unlink(missing_ok=True)


def read_config(folder: Path) -> RunConfig:
    """Read the resolved configuration of a run, with paths of data inside a moved run directory updated; raises
    :class:`InputError` if it cannot be read."""
    config = RunConfig.from_dict(read_yaml(folder / CONFIG))
    return replace(config, data=replace(config.data, dataset=locate_dataset(config.data.dataset, folder)))


def write_start(folder: Path, command: str | None = None, notes: Sequence[str] = ()) -> None:
    """Mark a directory as that of a run or model; ``command``: the command line; ``notes``: on the initial model."""
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    start = {"command": command, "date": date, "version": __version__, "machine": hardware_info(), "notes": notes}
    write_json(folder / START_FILE, start)


def read_start(folder: Path) -> dict:
    """Read ``start.json``: command, date, version, machine and notes; empty if there is no such file."""
    return _read_json(folder / START_FILE) if (folder / START_FILE).is_file() else {}


def write_metrics(folder: Path, metrics: dict) -> None:
    """Write the scores, ``metrics.json``; undefined scores, such as R^2 of one molecule, become null."""
    write_json(folder / METRICS, without_nan(metrics))


def without_nan(values: Any) -> Any:
    """Replace non-finite numbers in nested dictionaries and lists by None, as JSON has none."""
    if isinstance(values, dict):
        return {key: without_nan(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [without_nan(value) for value in values]
    return None if isinstance(values, float) and not np.isfinite(values) else values


def write_json(path: Path, values: dict) -> None:
    """Write a JSON file atomically."""
    with atomic_write(path) as temporary:  # metrics.json marks a run as finished, so it must never be incomplete
        temporary.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n")


def write_csv(path: Path, header: list[str], rows: Iterable[list]) -> None:
    """Write a CSV file atomically; bytes of a SMILES that are not text are kept."""
    with (
        atomic_write(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
