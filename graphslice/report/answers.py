"""What a run answers for the molecules of a split, how much its models disagree, and how far from training they are."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphslice.calibration import Calibration
from graphslice.calibration.domain import BITS, Domain
from graphslice.data.datamodule import MoleculeData
from graphslice.data.hashes import fingerprint_rows
from graphslice.data.splits import Splits
from graphslice.evaluation.evaluate import splits_of_run
from graphslice.evaluation.several import ask_each, rows_of
from graphslice.inference.predictor import Predictor
from graphslice.training.run_folder import OUT_OF_FOLD

# Molecules of a split that are answered for, if one model does: of more a part, drawn at random, is asked.
_MOST_ANSWERED = 5_000
# Of several models each answers for at least as many, where there are so many.
_LEAST_ANSWERED = 1_000
# Training molecules that others are compared with: less than a second.
_MOST_TRAINED = 20_000


@dataclass(frozen=True)
class Answers:
    """Answers for molecules of a split.

    Attributes:
        rows: ``int64 [R]``, ascending.
        values: ``float32 [R, W]``, the mean of the models, calibrated.
        spread: ``float32 [R, W]``, the standard deviation of what they answer, nan where only one does; None of one.
        whole: how many labelled rows the split has, of which R were drawn at random.
    """

    rows: np.ndarray
    values: np.ndarray
    spread: np.ndarray | None
    whole: int


def splits_of(folders: Sequence[Path], data: MoleculeData) -> list[Splits]:
    """The splits of each model of a run, as its folder notes them; else those of the data."""
    return [splits_of_run(folder) or data.splits for folder in folders]


def answer(
    predictors: Sequence[Predictor],
    calibration: Calibration | None,
    splits: Sequence[Splits],
    split: str,
    data: MoleculeData,
) -> Answers | None:
    """Ask every model of a run for the molecules of its own split, and take means; None where none has a label.

    Args:
        predictors: the models, one each.
        calibration: of what they answer together.
        splits: of each of them.
        split: its name.
        data: with the molecules.
    """
    rows = rows_of(splits, split)
    rows = rows[~np.isnan(data.source.targets[rows]).all(axis=1)]
    if not len(rows):
        return None
    drawn = _drawn(rows, max(_LEAST_ANSWERED, _MOST_ANSWERED // len(predictors)))
    own = ask_each(predictors, splits, split, data.store, drawn)
    values = own.mean if calibration is None else calibration.probabilities(own.mean, data.source.tasks)
    several = own.asked > 1
    if not several.any():
        return Answers(drawn, values, None, len(rows))
    spread = np.full(values.shape, np.nan, np.float32)
    spread[several] = np.nanstd(own.each[:, several], axis=0, ddof=1, dtype=np.float64)
    return Answers(drawn, values, spread, len(rows))


def read_out_of_fold(folder: Path, data: MoleculeData) -> Answers | None:
    """What the models of folds wrote of the molecules that they did not learn; None where the file is not there."""
    path = folder / OUT_OF_FOLD
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        lines = list(csv.reader(file))[1:]
    rows = np.array([int(line[0]) - 1 for line in lines], dtype=np.int64)
    values = np.array([[float(cell) for cell in line[2:]] for line in lines], dtype=np.float32)
    labelled = ~np.isnan(data.source.targets[rows]).all(axis=1)
    return Answers(rows[labelled], values[labelled], None, int(labelled.sum())) if labelled.any() else None


def _drawn(rows: np.ndarray, most: int) -> np.ndarray:
    """The rows, or so many of them drawn at random, in their order."""
    return rows if len(rows) <= most else np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


@dataclass(frozen=True)
class Nearest:
    """How similar the nearest training molecule is.

    Attributes:
        rows: ``int64 [R]``, the molecules that were compared.
        similarity: ``float64 [R]``, Tanimoto, of Morgan fingerprints of radius 2.
        trained: how many training molecules they were compared with.
        whole: how many there are, of which these were drawn at random.
    """

    rows: np.ndarray
    similarity: np.ndarray
    trained: int
    whole: int

    def of(self, row: int) -> float | None:
        """The similarity of one molecule; None if it was not compared."""
        place = int(np.searchsorted(self.rows, row))
        there = place < len(self.rows) and self.rows[place] == row
        return float(self.similarity[place]) if there else None


def nearest_trained(rows: np.ndarray, splits: Sequence[Splits], split: str, data: MoleculeData) -> Nearest:
    """Compare molecules with what the models that answer for them learned: any of these counts.

    Args:
        rows: ``int64 [R]``, ascending.
        splits: of each model.
        split: that the rows are of.
        data: with the molecules.
    """
    trained = [_drawn(np.sort(each["train"]), _MOST_TRAINED) for each in splits]
    whole = max(len(each["train"]) for each in splits)
    found = np.zeros(len(rows))
    bits = fingerprint_rows(data.store, rows, BITS)
    for learned, each in zip(trained, splits, strict=True):
        own = np.isin(rows, each.get(split, []))
        if own.any():
            domain = Domain.of(fingerprint_rows(data.store, learned, BITS), learned, 0)
            found[own] = np.maximum(found[own], domain.nearest(bits[own])[0])
    return Nearest(rows, found, max(map(len, trained)), whole)
