"""Several models, each asked for the molecules that it did not learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphslice.data.atom_bond_labels import pointers, ragged_indices
from graphslice.data.splits import Splits
from graphslice.data.store import GraphStore
from graphslice.inference.predictor import Predictor
from graphslice.inference.uncertainty import difficulty_estimates, nearest_training_molecules


@dataclass(frozen=True)
class OutOfFoldPredictions:
    """What M models answer for some molecules, each for those of its own split; T targets, W numbers.

    Attributes:
        ptr: ``int64 [R + 1]``: the answers for row r are those from ``ptr[r]`` to ``ptr[r + 1]``, S of all. A molecule
            has one, or as many as it has atoms or bonds.
        each: ``float32 [M, S, W]``, without a calibration; nan where a model was not asked.
        difficulty: by name ``float32 [S, T]``, means over the models that were asked: how much the parts of a model
            disagree and, where all are calibrated, how far the molecule is from what they learned.
    """

    ptr: np.ndarray
    each: np.ndarray
    difficulty: dict[str, np.ndarray]

    @property
    def asked(self) -> np.ndarray:
        """``int64 [S]``: how many models were."""
        return np.isfinite(self.each[..., 0]).sum(axis=0)

    @property
    def mean(self) -> np.ndarray:
        """``float32 [S, W]``, over the models that were asked."""
        return (np.nansum(self.each, axis=0, dtype=np.float64) / self.asked[:, None]).astype(np.float32)


def rows_in_split(splits: Sequence[Splits], split: str) -> np.ndarray:
    """``int64 [R]``, ascending: the rows that any of several models has in a split."""
    return np.unique(np.concatenate([np.empty(0, np.int64), *(each.get(split, []) for each in splits)])).astype(int)


def predict_held_out(
    predictors: Sequence[Predictor], splits: Sequence[Splits], split: str, store: GraphStore, rows: np.ndarray
) -> OutOfFoldPredictions:
    """Ask every model for the molecules of its own split.

    Args:
        predictors: M models.
        splits: of each.
        split: its name.
        store: with the molecules.
        rows: ``int64 [R]``, ascending, some of :func:`rows_in_split`.
    """
    counts = store.atom_bond_counts(predictors[0].level, rows)
    ptr = pointers(counts)
    each = np.full((len(predictors), ptr[-1], len(predictors[0].columns)), np.nan, np.float32)
    sums: dict[str, np.ndarray] = {}
    for model, predictor in enumerate(predictors):
        own = np.intersect1d(rows, splits[model].get(split, []))
        if not len(own):
            continue
        among = np.searchsorted(rows, own)
        places = ragged_indices(ptr, among)
        each[model, places], found = predictor.predict_uncalibrated(store, own)
        if predictor.calibration is not None:
            similarity = nearest_training_molecules(predictor.calibration.domain, store, own)[0]
            found = difficulty_estimates(found, similarity, counts[among], len(predictor.tasks))
        for name, values in found.items():
            sums.setdefault(name, np.zeros((len(each[model]), values.shape[1])))[places] += values
    asked = np.isfinite(each[..., 0]).sum(axis=0)[:, None]
    return OutOfFoldPredictions(ptr, each, {name: (total / asked).astype(np.float32) for name, total in sums.items()})
