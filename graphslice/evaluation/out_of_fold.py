"""Out-of-fold predictions: every model predicts molecules outside its training set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.data.labels import pointers, ragged_indices
from graphslice.data.splits import Splits
from graphslice.data.store import GraphStore
from graphslice.inference.predictor import Predictor


def rows_in_split(splits: Sequence[Splits], split: str) -> np.ndarray:
    """Return the rows that are in a split of at least one model, ``int64 [R]``, ascending."""
    return np.unique(np.concatenate([np.asarray(rows_of.get(split, []), np.int64) for rows_of in splits]))


def predict_held_out(
    predictors: Sequence[Predictor], splits: Sequence[Splits], split: str, store: GraphStore, rows: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return means over the models that have each of some ascending rows in their own split, such as a test fold: the
    uncalibrated predictions, ``float32 [S, W]`` by molecule, atom or bond, and difficulty estimates, ``[S, T]`` by
    name."""
    ptr = pointers(store.atom_bond_counts(predictors[0].level, rows))
    sums: dict[str, np.ndarray] = {}
    num_models = np.zeros((ptr[-1], 1))
    for predictor, rows_of in zip(predictors, splits, strict=True):
        held_out = np.intersect1d(rows, rows_of.get(split, []))
        if not len(held_out):
            continue
        indices = ragged_indices(ptr, np.searchsorted(rows, held_out))
        num_models[indices] += 1
        domain = None if predictor.calibration is None else predictor.calibration.domain
        values, difficulty = predictor.predict_uncalibrated(store, held_out, domain)
        for name, part in {"values": values, **difficulty}.items():
            sums.setdefault(name, np.zeros((ptr[-1], part.shape[1])))[indices] += part
    means = {name: (total / num_models).astype(np.float32) for name, total in sums.items()}
    return means.pop("values"), means
