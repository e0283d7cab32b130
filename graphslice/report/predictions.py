"""What a run answers for the molecules of a split, how much its models disagree, and how far from training they are."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphslice.calibration import Calibration
from graphslice.calibration.applicability_domain import DOMAIN_BITS, ApplicabilityDomain
from graphslice.data.datamodule import MoleculeData
from graphslice.data.molecule_keys import fingerprint_rows
from graphslice.data.splits import Splits
from graphslice.evaluation.evaluate import read_splits
from graphslice.evaluation.out_of_fold import predict_held_out, rows_in_split
from graphslice.inference.predictor import Predictor
from graphslice.training.run_directory import OUT_OF_FOLD

# Molecules of a split that are answered for, if one model does: of more a part, drawn at random, is asked.
_MAX_PREDICTED = 5_000
# Of several models each answers for at least as many, where there are so many.
_MIN_PREDICTED = 1_000
# Training molecules that others are compared with: less than a second.
_MAX_TRAINING = 20_000


@dataclass(frozen=True)
class SplitPredictions:
    """Answers for molecules of a split.

    Attributes:
        rows: ``int64 [R]``, ascending.
        values: ``float32 [R, W]``, the mean of the models, calibrated.
        spread: ``float32 [R, W]``, the standard deviation of what they answer, nan where only one does; None of one.
        whole: how many labelled rows the split has, of which R were drawn at random.
    """

    rows: np.ndarray
    values: np.ndarray
    std: np.ndarray | None
    whole: int


def splits_of_models(folders: Sequence[Path], data: MoleculeData) -> list[Splits]:
    """The splits of each model of a run, as its folder notes them; else those of the data."""
    return [read_splits(folder) or data.splits for folder in folders]


def predict_split(
    predictors: Sequence[Predictor],
    calibration: Calibration | None,
    splits: Sequence[Splits],
    split: str,
    data: MoleculeData,
) -> SplitPredictions | None:
    """Ask every model of a run for the molecules of its own split, and take means; None where none has a label.

    Args:
        predictors: the models, one each.
        calibration: of what they answer together.
        splits: of each of them.
        split: its name.
        data: with the molecules.
    """
    rows = rows_in_split(splits, split)
    rows = rows[~np.isnan(data.dataset.targets[rows]).all(axis=1)]
    if not len(rows):
        return None
    drawn = _sample_rows(rows, max(_MIN_PREDICTED, _MAX_PREDICTED // len(predictors)))
    own = predict_held_out(predictors, splits, split, data.store, drawn)
    values = own.mean if calibration is None else calibration.probabilities(own.mean, data.dataset.tasks)
    several = own.asked > 1
    if not several.any():
        return SplitPredictions(drawn, values, None, len(rows))
    std = np.full(values.shape, np.nan, np.float32)
    std[several] = np.nanstd(own.each[:, several], axis=0, ddof=1, dtype=np.float64)
    return SplitPredictions(drawn, values, std, len(rows))


def read_out_of_fold(folder: Path, data: MoleculeData) -> SplitPredictions | None:
    """What the models of folds wrote of the molecules that they did not learn; None where the file is not there."""
    path = folder / OUT_OF_FOLD
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        lines = list(csv.reader(file))[1:]
    rows = np.array([int(line[0]) - 1 for line in lines], dtype=np.int64)
    values = np.array([[float(cell) for cell in line[2:]] for line in lines], dtype=np.float32)
    labelled = ~np.isnan(data.dataset.targets[rows]).all(axis=1)
    return SplitPredictions(rows[labelled], values[labelled], None, int(labelled.sum())) if labelled.any() else None


def _sample_rows(rows: np.ndarray, most: int) -> np.ndarray:
    """The rows, or so many of them drawn at random, in their order."""
    return rows if len(rows) <= most else np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


@dataclass(frozen=True)
class TrainingSimilarity:
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


def nearest_training(rows: np.ndarray, splits: Sequence[Splits], split: str, data: MoleculeData) -> TrainingSimilarity:
    """Compare molecules with what the models that answer for them learned: any of these counts.

    Args:
        rows: ``int64 [R]``, ascending.
        splits: of each model.
        split: that the rows are of.
        data: with the molecules.
    """
    trained = [_sample_rows(np.sort(each["train"]), _MAX_TRAINING) for each in splits]
    whole = max(len(each["train"]) for each in splits)
    found = np.zeros(len(rows))
    bits = fingerprint_rows(data.store, rows, DOMAIN_BITS)
    for learned, each in zip(trained, splits, strict=True):
        own = np.isin(rows, each.get(split, []))
        if own.any():
            domain = ApplicabilityDomain.from_fingerprints(
                fingerprint_rows(data.store, learned, DOMAIN_BITS), learned, 0
            )
            found[own] = np.maximum(found[own], domain.nearest(bits[own])[0])
    return TrainingSimilarity(rows, found, max(map(len, trained)), whole)
