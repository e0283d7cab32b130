"""Uncertainty of predictions: intervals, prediction sets, and the nearest training molecules."""

from __future__ import annotations

import numpy as np

from graphslice.calibration import DOMAIN_DISTANCE, Calibration, coverage_of_level
from graphslice.calibration.applicability_domain import DOMAIN_BITS, ApplicabilityDomain
from graphslice.data.labels import ragged_indices
from graphslice.data.molecule_keys import fingerprint_rows
from graphslice.data.store import GraphStore
from graphslice.inference.predictions import Neighbours, PredictionInterval, Predictions

#: Smallest similarity that counts as the same fingerprint, allowing for rounding.
IDENTICAL_SIMILARITY = 1 - 1e-6


def nearest_training_molecules(
    domain: ApplicabilityDomain, store: GraphStore, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest training molecule of each row by Tanimoto similarity.

    Args:
        domain: applicability domain, which holds the training molecules.
        store: the molecules.
        rows: ``int64 [R]``, all of valid molecules.

    Returns:
        The similarity, ``float32 [R]``, and the index of the training molecule in the domain, ``int64 [R]``.
    """
    return domain.nearest(fingerprint_rows(store, rows, DOMAIN_BITS))


def difficulty_estimates(
    difficulty: dict[str, np.ndarray], similarity: np.ndarray, counts: np.ndarray, targets: int
) -> dict[str, np.ndarray]:
    """Add the distance to the training set to difficulty estimates, which may scale prediction intervals.

    Args:
        difficulty: standard deviations between model components and ensemble members, by name ``float32 [S, T]``.
        similarity: ``float32 [R]``, of :func:`nearest_training_molecules`.
        counts: ``int64 [R]`` with sum S: number of predictions per molecule, 1 or its number of atoms or bonds.
        targets: number of targets T.

    Returns:
        The estimates by name, ``float32 [S, T]`` each.
    """
    return difficulty | {DOMAIN_DISTANCE: np.repeat(np.repeat(1 - similarity, counts)[:, None], targets, axis=1)}


def estimate_uncertainty(
    calibration: Calibration,
    predictions: Predictions,
    store: GraphStore,
    rows: np.ndarray,
    ptr: np.ndarray,
    difficulty: dict[str, np.ndarray],
    interval: float | None,
) -> tuple[PredictionInterval | None, Neighbours, np.ndarray]:
    """Apply a calibration: prediction intervals, applicability domain and nearest training molecules.

    Args:
        calibration: calibration of the model.
        predictions: of R molecules, with S rows of values, of which P are of valid molecules.
        store: the molecules.
        rows: ``int64 [R]``, of valid or invalid molecules.
        ptr: ``int64 [R + 1]``: row r has the predictions ``values[ptr[r]:ptr[r + 1]]``, one at molecule level.
        difficulty: standard deviations between model components and ensemble members, by name ``float32 [P, T]``.
        interval: coverage in percent, or None.

    Returns:
        The intervals (None without a level), the neighbours without their names, and the indices of the nearest
        training molecules in the domain, ``int64 [R]``, -1 for invalid molecules.
    """
    values, tasks = predictions.values, predictions.tasks
    is_valid = store.sizes[rows] > 0
    valid_similarity, valid_indices = nearest_training_molecules(calibration.domain, store, rows[is_valid])
    similarity, indices = np.full(len(rows), np.nan, np.float32), np.full(len(rows), -1)
    similarity[is_valid], indices[is_valid] = valid_similarity, valid_indices
    neighbours = Neighbours(similarity, calibration.domain.contains(similarity, store.sizes[rows]), None)
    if interval is None:
        return None, neighbours, indices
    predicted = ragged_indices(ptr, np.flatnonzero(is_valid))
    coverage, predicted_values = coverage_of_level(interval), values[predicted]
    low, high = (np.full((len(values), len(tasks)), np.nan, np.float32) for _ in range(2))
    difficulty = difficulty_estimates(difficulty, valid_similarity, np.diff(ptr)[is_valid], len(tasks))
    low[predicted], high[predicted] = calibration.prediction_intervals(predicted_values, difficulty, tasks, coverage)
    prediction_sets = {}
    for name, classes in calibration.prediction_sets(predicted_values, tasks, coverage).items():
        prediction_sets[name] = np.zeros((len(values), classes.shape[1]), bool)
        prediction_sets[name][predicted] = classes
    return PredictionInterval(interval, low, high, prediction_sets), neighbours, indices
