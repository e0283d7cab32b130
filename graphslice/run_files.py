"""Files of a run directory: their names, and functions that find and read them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from graphslice.errors import InputError
from graphslice.package_data import MODELS, is_packaged_model

#: Calibration of an ensemble.
ENSEMBLE_CALIBRATION = "together.ckpt"  # codespell:ignore together
#: Split and SMILES of each row. The SMILES are not part of a checkpoint, so that it can be shared without them.
SPLIT_FILE = "split.csv"
#: SMILES of training molecules in run directories of former versions.
FORMER_SMILES = "domain.csv"
#: Checkpoints of a model; the first of them that exists is used.
BEST, LAST = "best.ckpt", "last.ckpt"
#: Prefix of the folders of ensemble members, each of which is a run directory.
MEMBER = "member-"
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

# Upper limit of row numbers that are read from a file.
_MOST_ROWS = 10**12
_MEMBER = re.compile(rf"{MEMBER}([1-9][0-9]*)", re.ASCII)


def find_checkpoint(path: str | Path) -> Path:
    """Return the path of a checkpoint.

    Args:
        path: a checkpoint, its run directory, or the name of a packaged model.

    Raises:
        InputError: if there is no checkpoint.
    """
    if is_packaged_model(path):
        return MODELS[str(path)]
    path = Path(path)
    if path.is_dir():
        if members := find_members(path):
            raise InputError(f"{path} is an ensemble of {len(members)}: give one of its members, such as {members[0]}")
        for name in (BEST, LAST):
            if (path / name).is_file():
                return path / name
        hint = "; graphslice import-checkpoint converts it to one" if (path / "config.json").is_file() else ""
        raise InputError(f"{path} is not a run directory: it holds neither {BEST} nor {LAST}{hint}")
    if not path.is_file():
        raise InputError(
            f"no model at {path}: give a run directory or a checkpoint{_packaged_names()}; graphslice "
            "import-checkpoint converts published checkpoints"
        )
    return path


def run_directory_of(path: str | Path) -> Path | None:
    """Return the run directory, given it or a checkpoint in it; None for a packaged model."""
    if is_packaged_model(path):
        return None
    return Path(path) if Path(path).is_dir() else Path(path).parent


def locate_dataset(dataset: str, folder: Path | None) -> str:
    """Return the path of the dataset of a run, also if it is in the run directory and that was moved.

    Args:
        dataset: path in the configuration.
        folder: run directory, of the run or of one of its ensemble members; None if there is none.
    """
    path = Path(dataset)
    if folder is None or path.name not in (MOLECULES, CORPUS) or path.exists():
        return dataset
    candidates = (parent.resolve() / path.name for parent in (folder, folder / ".."))
    return next((str(candidate) for candidate in candidates if candidate.is_file()), dataset)


def read_metric_logs(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the lines of the metric logs of a run, over all resumptions in their order."""
    logs = folder.glob("logs/version_*/metrics.csv")
    for log in sorted(logs, key=lambda path: int(path.parent.name.rpartition("_")[2])):
        with log.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)


def is_finished(folder: Path) -> bool:
    """True if a run is trained and evaluated."""
    return (folder / METRICS).exists()


def read_metrics(folder: Path) -> dict:
    """Read the scores of a finished run by split."""
    return json.loads((folder / METRICS).read_text())


def read_training(folder: Path) -> dict:
    """Read the training figures of a finished run, such as steps, time and memory."""
    return json.loads((folder / TRAINING).read_text())


def _packaged_names() -> str:
    return f", or a packaged model ({' or '.join(MODELS)})" if MODELS else ""


def contains_run(folder: Path) -> bool:
    """True if a folder holds a run, finished or not."""
    return any((folder / name).exists() for name in (CONFIG, LAST, BEST))


def find_members(path: str | Path) -> list[Path]:
    """Return the run directories of the members of an ensemble, by number; empty for a single model."""
    named = [folder for folder in Path(path).glob(f"{MEMBER}*") if _MEMBER.fullmatch(folder.name)]
    return sorted(filter(contains_run, named), key=member_number)


def member_number(folder: Path) -> int:
    """Return the number of an ensemble member from the name of its run directory."""
    return int(folder.name.removeprefix(MEMBER))


def write_splits(folder: Path, splits: Mapping[str, np.ndarray], smiles: Sequence[str]) -> None:
    """Write ``split.csv``: row (from 1), split and SMILES.

    Args:
        folder: run directory.
        splits: ``int64`` rows of each split by name.
        smiles: SMILES of all rows of the dataset; empty if they are unknown.
    """
    split_of = {int(row): split for split, rows in splits.items() for row in rows}
    with (folder / SPLIT_FILE).open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["row", "split", "smiles"])
        writer.writerows([row + 1, split_of[row], smiles[row] if len(smiles) else ""] for row in sorted(split_of))


def read_splits(folder: Path) -> dict[str, np.ndarray] | None:
    """Read the ``int64`` rows of each split from ``split.csv`` of a run directory; None if there is no such file.

    Raises:
        InputError: if the file is damaged.
    """
    if not (folder / SPLIT_FILE).is_file():
        return None
    splits: dict[str, list[int]] = {}
    for row, split in _read_column(folder / SPLIT_FILE, "split", "copy it again"):
        splits.setdefault(split, []).append(row)
    return {split: np.array(rows, dtype=np.int64) for split, rows in splits.items()}


def read_training_smiles(folder: Path | None) -> dict[int, str]:
    """Read the SMILES of a run by their rows in the dataset; empty if there are none.

    Those of an ensemble whose members have different splits are read from its first member.

    Raises:
        InputError: if the file is damaged.
    """
    if folder is None:
        return {}
    folders = [folder, *find_members(folder)[:1]]
    files = [path for f in folders for name in (SPLIT_FILE, FORMER_SMILES) if (path := f / name).is_file()]
    for path in files:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            if "smiles" not in file.readline().strip().split(",") and path.name == SPLIT_FILE:
                continue  # of a former version
        smiles = _read_column(path, "smiles", "copy it again, or remove it to get row numbers of training molecules")
        return {row: text for row, text in smiles if text}
    return {}


def _read_column(path: Path, column: str, advice: str) -> list[tuple[int, str]]:
    """Read pairs of a row (from 0) and a text from a CSV file of a run."""
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            pairs = [(int(line["row"]) - 1, line[column]) for line in csv.DictReader(file)]
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        pairs = [(-1, "")]
    if not all(0 <= row < _MOST_ROWS and text is not None for row, text in pairs):
        raise InputError(f"{path} is damaged: {advice}")
    return pairs
