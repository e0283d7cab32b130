"""Out-of-fold predictions: every model predicts molecules outside its training set."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphslice.config import MOLECULE
from graphslice.data.arrow import json_lists, list_array, number_array
from graphslice.data.datamodule import MoleculeData
from graphslice.data.labels import pointers, ragged_indices
from graphslice.data.splits import Splits
from graphslice.data.store import GraphStore
from graphslice.inference.predictions import Predictions
from graphslice.inference.predictor import Predictor
from graphslice.inference.uncertainty import difficulty_estimates, nearest_training_molecules
from graphslice.tasks import prediction_columns


@dataclass(frozen=True)
class OutOfFoldPredictions:
    """Predictions of M models for R molecules, each for those in its own split; T targets, W columns.

    Attributes:
        ptr: ``int64 [R + 1]``: molecule r has the predictions from ``ptr[r]`` to ``ptr[r + 1]``, one at molecule level,
            else one per atom or bond; S in total.
        values: ``float32 [M, S, W]``, uncalibrated predictions of every model; nan outside its split.
        difficulty: difficulty estimates by name, ``float32 [S, T]``, averaged over the predicting models: standard
            deviation between the components of a model and, if all models are calibrated, the distance of the molecule
            to their training sets.
    """

    ptr: np.ndarray
    values: np.ndarray
    difficulty: dict[str, np.ndarray]

    @property
    def num_models(self) -> np.ndarray:
        """Number of models that predicted each row, ``int64 [S]``."""
        return np.isfinite(self.values[..., 0]).sum(axis=0)

    @property
    def mean(self) -> np.ndarray:
        """Mean over the models that predicted each row, ``float32 [S, W]``."""
        return (np.nansum(self.values, axis=0, dtype=np.float64) / self.num_models[:, None]).astype(np.float32)


def rows_in_split(splits: Sequence[Splits], split: str) -> np.ndarray:
    """Return the rows that are in a split of at least one model, ``int64 [R]``, ascending."""
    return np.unique(np.concatenate([np.empty(0, np.int64), *(own.get(split, []) for own in splits)])).astype(int)


def predict_held_out(
    predictors: Sequence[Predictor], splits: Sequence[Splits], split: str, store: GraphStore, rows: np.ndarray
) -> OutOfFoldPredictions:
    """Compute out-of-fold predictions: every model predicts its own split, such as the test set of its fold.

    Args:
        predictors: M models.
        splits: the splits of each model.
        split: name of the split to predict.
        store: the molecules.
        rows: ``int64 [R]``, ascending, some of :func:`rows_in_split`.
    """
    counts = store.atom_bond_counts(predictors[0].level, rows)
    ptr = pointers(counts)
    values = np.full((len(predictors), ptr[-1], len(predictors[0].columns)), np.nan, np.float32)
    sums: dict[str, np.ndarray] = {}
    for model, predictor in enumerate(predictors):
        own_rows = np.intersect1d(rows, splits[model].get(split, []))
        if not len(own_rows):
            continue
        own = np.searchsorted(rows, own_rows)
        indices = ragged_indices(ptr, own)
        values[model, indices], difficulty = predictor.predict_uncalibrated(store, own_rows)
        if predictor.calibration is not None:
            similarity = nearest_training_molecules(predictor.calibration.domain, store, own_rows)[0]
            difficulty = difficulty_estimates(difficulty, similarity, counts[own], len(predictor.tasks))
        for name, estimates in difficulty.items():
            sums.setdefault(name, np.zeros((len(values[model]), estimates.shape[1])))[indices] += estimates
    num_models = np.isfinite(values[..., 0]).sum(axis=0)[:, None]
    means = {name: (total / num_models).astype(np.float32) for name, total in sums.items()}
    return OutOfFoldPredictions(ptr, values, means)


def write_out_of_fold(path: Path, data: MoleculeData, rows: np.ndarray, predictions: np.ndarray) -> None:
    """Write out-of-fold predictions as CSV: row (from 1), SMILES (empty without one), one column per prediction.

    Args:
        path: path of the file.
        data: molecules of the run.
        rows: ``int64 [R]``, rows of the dataset.
        predictions: ``float32 [R, W]``; for atom- or bond-level targets ``[M, W]``, row by row in the order of the
            preprocessed dataset. They are written as lists in the order of the SMILES.
    """
    dataset = data.dataset
    smiles = [dataset.smiles[row] if dataset.smiles else "" for row in rows.tolist()]
    if dataset.level == MOLECULE:
        columns = [[f"{value:.7g}" for value in column] for column in predictions.T.tolist()]
    else:
        ptr, known = pointers(dataset.all_labels.counts_of(rows)), np.ones(len(rows), bool)
        by_atom = Predictions(predictions, [None] * len(rows), dataset.tasks, ptr=ptr)
        ordered = by_atom.in_smiles_order(data.store.order(rows)).values
        columns = [json_lists(list_array(number_array(column), ptr, known)) for column in ordered.T]
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["row", "smiles", *(f"{name}_pred" for name in prediction_columns(dataset.tasks))])
        writer.writerows(zip((rows + 1).tolist(), smiles, *columns, strict=True))
