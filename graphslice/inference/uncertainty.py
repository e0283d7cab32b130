"""What answers are worth: intervals and sets of classes, and the nearest training molecules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphslice.calibration import DOMAIN_DISTANCE, Calibration, coverage_of_level
from graphslice.calibration.applicability_domain import DOMAIN_BITS, ApplicabilityDomain
from graphslice.data.atom_bond_labels import ragged_indices
from graphslice.data.molecule_keys import fingerprint_rows
from graphslice.data.store import GraphStore
from graphslice.inference.predictions import Neighbours, PredictionInterval
from graphslice.run_files import read_training_smiles
from graphslice.tasks import Task


def nearest_training_molecules(
    domain: ApplicabilityDomain, store: GraphStore, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The similarity of the nearest training molecule, ``float32 [R]``, and its place in the domain, ``int64 [R]``.

    Args:
        domain: of the training molecules.
        store: of molecules.
        rows: ``int64 [R]``, each with atoms.
    """
    return domain.nearest(fingerprint_rows(store, rows, DOMAIN_BITS))


def difficulty_estimates(
    found: dict[str, np.ndarray], similarity: np.ndarray, counts: np.ndarray, targets: int
) -> dict[str, np.ndarray]:
    """What may tell of the size of the errors of T targets: by name ``float32 [S, T]``.

    Args:
        found: how much the parts of a model, and several models, disagree, ``float32 [S, T]``.
        similarity: ``float32 [R]``, of :func:`nearest_training_molecules`.
        counts: ``int64 [R]``, how many answers each molecule has, S together: 1, or its number of atoms or bonds.
        targets: T.
    """
    return found | {DOMAIN_DISTANCE: np.repeat(np.repeat(1 - similarity, counts)[:, None], targets, axis=1)}


def estimate_uncertainty(
    calibration: Calibration,
    store: GraphStore,
    rows: np.ndarray,
    ptr: np.ndarray,
    values: np.ndarray,
    found: dict[str, np.ndarray],
    tasks: Sequence[Task],
    interval: float | None,
) -> tuple[PredictionInterval | None, Neighbours, np.ndarray]:
    """What a model can say of its answers.

    Args:
        calibration: of the model.
        store: of the molecules.
        rows: ``int64 [R]``, some of which may have no molecule.
        ptr: ``int64 [R + 1]``, where the answers for each row begin, and the last ones end: of molecules one each.
        values: ``float32 [S, W]``, the answers: P are for rows that have a molecule.
        found: how much parts and models disagree, ``float32 [P, T]``.
        tasks: T targets.
        interval: a level in percent, or None.

    Returns:
        The intervals, the neighbours without their names, and ``int64 [R]``, the places of these in the domain, -1
        where there is no molecule.
    """
    present = store.sizes[rows] > 0
    near, place = nearest_training_molecules(calibration.domain, store, rows[present])
    similarity, places = np.full(len(rows), np.nan, np.float32), np.full(len(rows), -1)
    similarity[present], places[present] = near, place
    neighbours = Neighbours(similarity, calibration.domain.contains(similarity, store.sizes[rows]), None)
    if interval is None:
        return None, neighbours, places
    answered = ragged_indices(ptr, np.flatnonzero(present))
    coverage, own = coverage_of_level(interval), values[answered]
    low, high = (np.full((len(values), len(tasks)), np.nan, np.float32) for _ in range(2))
    difficulty = difficulty_estimates(found, near, np.diff(ptr)[present], len(tasks))
    low[answered], high[answered] = calibration.prediction_intervals(own, difficulty, tasks, coverage)
    prediction_sets = {}
    for name, classes in calibration.prediction_sets(own, tasks, coverage).items():
        prediction_sets[name] = np.zeros((len(values), classes.shape[1]), bool)
        prediction_sets[name][answered] = classes
    return PredictionInterval(interval, low, high, prediction_sets), neighbours, places


def training_molecule_names(domain: ApplicabilityDomain, places: np.ndarray, folder: Path | None) -> list[str | None]:
    """The SMILES of training molecules, or where the run folder is not at hand their rows; None for -1.

    Args:
        domain: that the places are of.
        places: ``int64 [R]``.
        folder: of the run.
    """
    if domain.smiles:
        return [None if place < 0 else domain.smiles[place] for place in places.tolist()]
    known = read_training_smiles(folder)
    rows = (None if place < 0 else int(domain.rows[place]) for place in places.tolist())
    return [None if row is None else known.get(row, f"row {row + 1}") for row in rows]
