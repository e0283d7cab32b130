"""Out-of-fold predictions: every model predicts molecules outside its training set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphslice.data.labels import pointers, ragged_indices
from graphslice.data.splits import Splits
from graphslice.data.store import GraphStore
from graphslice.inference.predictor import Predictor


@dataclass(frozen=True)
class OutOfFoldPredictions:
    """Predictions of M models for R molecules, each for those in its own split; T targets, W columns."""

    values: np.ndarray  # float32 [M, S, W], uncalibrated, by molecule, atom or bond; nan outside the split
    # By name float32 [S, T], averaged over the predicting models: standard deviation between the components of a model
    # and, if all models are calibrated, the distance of the molecule to their training sets.
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
    return np.unique(np.concatenate([np.empty(0, np.int64), *(rows_of.get(split, []) for rows_of in splits)])).astype(
        int
    )


def predict_held_out(
    predictors: Sequence[Predictor], splits: Sequence[Splits], split: str, store: GraphStore, rows: np.ndarray
) -> OutOfFoldPredictions:
    """Compute out-of-fold predictions of ascending rows: every model predicts its own split, such as its test fold."""
    ptr = pointers(store.atom_bond_counts(predictors[0].level, rows))
    values = np.full((len(predictors), ptr[-1], len(predictors[0].columns)), np.nan, np.float32)
    sums: dict[str, np.ndarray] = {}
    for model, predictor in enumerate(predictors):
        held_out = np.intersect1d(rows, splits[model].get(split, []))
        if not len(held_out):
            continue
        indices = ragged_indices(ptr, np.searchsorted(rows, held_out))
        domain = None if predictor.calibration is None else predictor.calibration.domain
        values[model, indices], difficulty = predictor.predict_uncalibrated(store, held_out, domain)
        for name, estimates in difficulty.items():
            sums.setdefault(name, np.zeros((len(values[model]), estimates.shape[1])))[indices] += estimates
    num_models = np.isfinite(values[..., 0]).sum(axis=0)[:, None]
    means = {name: (total / num_models).astype(np.float32) for name, total in sums.items()}
    return OutOfFoldPredictions(values, means)
