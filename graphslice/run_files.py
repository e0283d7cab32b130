"""Files of a run directory: their names, and functions that find and read them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from graphslice.errors import InputError
from graphslice.package_data import MODELS, is_packaged_model

#: Calibration of an ensemble.
ENSEMBLE_CALIBRATION = "together.ckpt"  # codespell:ignore together
#: SMILES of the training molecules in the applicability domain. They are not part of a checkpoint, so that it can be
#: shared without them.
DOMAIN_FILE = "domain.csv"
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


def write_training_smiles(folder: Path, rows: np.ndarray, smiles: Sequence[str]) -> None:
    """Write the SMILES of the training molecules in the applicability domain of a run.

    Args:
        folder: run directory.
        rows: ``int64 [N]``, rows in the dataset, from 0.
        smiles: N SMILES.
    """
    with (folder / DOMAIN_FILE).open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["row", "smiles"])
        writer.writerows(zip((rows + 1).tolist(), smiles, strict=True))


def read_training_smiles(folder: Path | None) -> dict[int, str]:
    """Read the SMILES of the training molecules by their rows in the dataset; empty if there is no such file.

    Raises:
        InputError: if the file is damaged.
    """
    if folder is None or not (folder / DOMAIN_FILE).is_file():
        return {}
    try:
        with (folder / DOMAIN_FILE).open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            smiles_by_row = {int(line["row"]) - 1: line["smiles"] for line in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        smiles_by_row = {-1: ""}
    if not all(row >= 0 and smiles is not None for row, smiles in smiles_by_row.items()):
        raise InputError(
            f"{folder / DOMAIN_FILE} is damaged, so the SMILES of training molecules are unknown: copy it again, or "
            "remove it to get row numbers instead"
        )
    return smiles_by_row
