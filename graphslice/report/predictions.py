"""Predictions of a run for the molecules of a split, their spread over models, and similarity to the training set."""

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
from graphslice.data.splits import Splits, random_subset
from graphslice.evaluation.out_of_fold import predict_held_out, rows_in_split
from graphslice.inference.predictor import Predictor
from graphslice.run_files import OUT_OF_FOLD
from graphslice.tasks import prediction_columns

# Maximum number of molecules of a split to predict with a single model; of a larger split, a random sample is used.
_MAX_PREDICTED = 5_000
# Minimum of this maximum when it is divided among several models.
_MIN_PREDICTED = 1_000
# Maximum number of training molecules for the similarity search, which then takes less than a second.
_MAX_TRAINING = 20_000


@dataclass(frozen=True)
class SplitPredictions:
    """Predictions for R molecules of a split."""

    rows: np.ndarray  # int64 [R], ascending
    values: np.ndarray  # float32 [R, W], mean over the models, calibrated
    std: np.ndarray | None  # float32 [R, W], over the models, nan where only one predicts; None if that is every row
    num_labelled: int  # of the split, of which R were sampled at random


def predict_split(
    predictors: Sequence[Predictor],
    calibration: Calibration | None,
    splits: Sequence[Splits],
    split: str,
    data: MoleculeData,
) -> SplitPredictions | None:
    """Predict the molecules of a split with every model that has them in that split of its own, and average.

    ``calibration`` is that of the averaged predictions. Returns None if no molecule of the split has a label.
    """
    rows = rows_in_split(splits, split)
    rows = rows[~np.isnan(data.dataset.targets[rows]).all(axis=1)]
    if not len(rows):
        return None
    sample = random_subset(rows, max(_MIN_PREDICTED, _MAX_PREDICTED // len(predictors)))
    held_out = predict_held_out(predictors, splits, split, data.store, sample)
    values = held_out.mean if calibration is None else calibration.probabilities(held_out.mean, data.dataset.tasks)
    several = held_out.num_models > 1
    if not several.any():
        return SplitPredictions(sample, values, None, len(rows))
    std = np.full(values.shape, np.nan, np.float32)
    std[several] = np.nanstd(held_out.values[:, several], axis=0, ddof=1, dtype=np.float64)
    return SplitPredictions(sample, values, std, len(rows))


def read_out_of_fold(folder: Path, data: MoleculeData) -> SplitPredictions | None:
    """Read the out-of-fold predictions of a cross-validation run; None if the file is missing or no row has a label."""
    path = folder / OUT_OF_FOLD
    if not path.is_file():
        return None
    labelled = np.flatnonzero(~np.isnan(data.dataset.targets).all(axis=1))
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = np.array([int(line["row"]) - 1 for line in csv.DictReader(file)], np.int64)
        rows = rows[np.isin(rows, labelled)]
        if not len(rows):
            return None
        sample = set(random_subset(np.sort(rows), _MAX_PREDICTED).tolist())
        file.seek(0)
        lines = [line for line in csv.DictReader(file) if int(line["row"]) - 1 in sample]
    names = prediction_columns(data.dataset.tasks)
    names = [f"{name}_pred" if f"{name}_pred" in lines[0] else name for name in names]
    sampled = np.array([int(line["row"]) - 1 for line in lines], np.int64)
    values = np.array([[float(line[name]) for name in names] for line in lines], np.float32)
    return SplitPredictions(sampled, values, None, len(rows))


@dataclass(frozen=True)
class TrainingSimilarity:
    """Similarity of R molecules to the nearest training molecule."""

    similarity: np.ndarray  # float64 [R], Tanimoto similarity of Morgan fingerprints of radius 2
    neighbours: np.ndarray  # int64 [R], row of the nearest training molecule; -1 for rows that were not compared
    num_compared: int  # training molecules in the search
    num_training: int  # from which these were sampled at random


def nearest_training(rows: np.ndarray, splits: Sequence[Splits], split: str, data: MoleculeData) -> TrainingSimilarity:
    """Find the nearest training molecule of each row, in the training sets of the models that have it in ``split``."""
    compared = [random_subset(np.sort(own["train"]), _MAX_TRAINING) for own in splits]
    similarity, neighbours = np.zeros(len(rows)), np.full(len(rows), -1)
    bits = fingerprint_rows(data.store, rows, DOMAIN_BITS)
    for training_rows, own in zip(compared, splits, strict=True):
        selected = np.isin(rows, own.get(split, []))
        if selected.any():
            domain = ApplicabilityDomain.from_fingerprints(
                fingerprint_rows(data.store, training_rows, DOMAIN_BITS), training_rows, 0
            )
            found, indices = domain.nearest(bits[selected])
            is_nearer = (found > similarity[selected]) | (neighbours[selected] < 0)
            nearer = np.flatnonzero(selected)[is_nearer]
            similarity[nearer], neighbours[nearer] = found[is_nearer], training_rows[indices[is_nearer]]
    num_compared, num_training = max(map(len, compared)), max(len(own["train"]) for own in splits)
    return TrainingSimilarity(similarity, neighbours, num_compared, num_training)
