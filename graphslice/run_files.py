"""The files in which models lie, and how they are found."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphslice.errors import InputError
from graphslice.package_data import MODELS, is_packaged_model

#: The file of a run folder of several models that holds what they have together.
ENSEMBLE_CALIBRATION = "together.ckpt"
#: The file of a run folder that has the SMILES of the training molecules that its calibration knows. A checkpoint
#: has none of them: it may be given to others.
DOMAIN_FILE = "domain.csv"
#: The files of a run folder that hold a model, the one to use first.
BEST, LAST = "best.ckpt", "last.ckpt"
#: How the folders of the members of a run folder of several models begin, which each are a run folder.
MEMBER = "member-"
#: The file of a run folder that holds its resolved configuration.
CONFIG = "config.yaml"
#: The file of a run folder that is the table of a run that was trained on a data frame.
MOLECULES = "molecules.parquet"
#: The file of a run folder that is the store of the molecules that its model was pretrained on.
CORPUS = "corpus.arrow"
#: The files of a run folder that hold its scores by split, the last to be written, and what its training took.
METRICS, TRAINING = "metrics.json", "training.json"
#: The file of a run folder that training writes first, which says how it was begun.
START_FILE = "start.json"

_MEMBER = re.compile(rf"{MEMBER}([1-9][0-9]*)", re.ASCII)


def find_checkpoint(path: str | Path) -> Path:
    """The file of a checkpoint, given that file, its run folder, or the name of a model that comes with the package.

    Raises:
        InputError: if there is none.
    """
    if is_packaged_model(path):
        return MODELS[str(path)]
    path = Path(path)
    if path.is_dir():
        if members := find_members(path):
            raise InputError(f"{path} holds {len(members)} models: give one of them, such as {members[0]}")
        for name in (BEST, LAST):
            if (path / name).is_file():
                return path / name
        hint = "; graphslice import-checkpoint makes one of it" if (path / "config.json").is_file() else ""
        raise InputError(f"{path} is no run folder: it holds neither {BEST} nor {LAST}{hint}")
    if not path.is_file():
        raise InputError(
            f"no model at {path}: give a run folder or a checkpoint{_shipped()}; published ones are made one by "
            "graphslice import-checkpoint"
        )
    return path


def run_directory_of(path: str | Path) -> Path | None:
    """The folder of a run, given it or a checkpoint in it; None of a model that comes with the package."""
    if is_packaged_model(path):
        return None
    return Path(path) if Path(path).is_dir() else Path(path).parent


def locate_dataset(dataset: str, folder: Path | None) -> str:
    """Where the data of a run lie, also if they lie in its folder and that was moved since.

    Args:
        dataset: where they lay.
        folder: of the run, or of one of its members; None where there is none.
    """
    path = Path(dataset)
    if folder is None or path.name not in (MOLECULES, CORPUS) or path.exists():
        return dataset
    found = (home.resolve() / path.name for home in (folder, folder / ".."))
    return next((str(here) for here in found if here.is_file()), dataset)


def metric_logs(folder: Path) -> list[Path]:
    """The tables of what a run logged, one for each resumption, the first first."""
    logs = folder.glob("logs/version_*/metrics.csv")
    return sorted(logs, key=lambda path: int(path.parent.name.rpartition("_")[2]))


def is_finished(folder: Path) -> bool:
    """Whether the run there is trained and judged."""
    return (folder / METRICS).exists()


def read_metrics(folder: Path) -> dict:
    """The scores of a finished run by split, as they stand in its folder."""
    return json.loads((folder / METRICS).read_text())


def read_training(folder: Path) -> dict:
    """What the training of a finished run took, as it stands in its folder."""
    return json.loads((folder / TRAINING).read_text())


def _shipped() -> str:
    return f", or {' or '.join(MODELS)}, which come with the package" if MODELS else ""


def contains_run(folder: Path) -> bool:
    """Whether a run was begun there."""
    return any((folder / name).exists() for name in (CONFIG, LAST, BEST))


def find_members(path: str | Path) -> list[Path]:
    """The run folders of the models that answer together, in their order; none of a run of one model."""
    named = [folder for folder in Path(path).glob(f"{MEMBER}*") if _MEMBER.fullmatch(folder.name)]
    return sorted(filter(contains_run, named), key=member_number)


def member_number(folder: Path) -> int:
    """The number of a member by the name of its run folder."""
    return int(folder.name.removeprefix(MEMBER))


def write_training_smiles(folder: Path, rows: np.ndarray, smiles: Sequence[str]) -> None:
    """Write the SMILES of the training molecules that the calibration of a run knows.

    Args:
        folder: of the run.
        rows: ``int64 [N]``, their places in the source.
        smiles: N texts.
    """
    with (folder / DOMAIN_FILE).open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["row", "smiles"])
        writer.writerows(zip((rows + 1).tolist(), smiles, strict=True))


def read_training_smiles(folder: Path | None) -> dict[int, str]:
    """The SMILES of training molecules by their places in the source; empty where a run folder has none.

    Raises:
        InputError: if the file is damaged.
    """
    if folder is None or not (folder / DOMAIN_FILE).is_file():
        return {}
    try:
        with (folder / DOMAIN_FILE).open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            found = {int(line["row"]) - 1: line["smiles"] for line in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        found = {-1: ""}
    if not all(row >= 0 and smiles is not None for row, smiles in found.items()):
        raise InputError(
            f"{folder / DOMAIN_FILE}, which holds the SMILES of training molecules, is damaged: copy it again, or "
            "remove it and get row numbers instead"
        )
    return found
