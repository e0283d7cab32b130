"""Combination of networks and base models into ensemble predictions, with difficulty estimates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.calibration import ENSEMBLE_STD, NETWORK_STD, PARTS_STD
from graphslice.data.molecule_keys import graph_input_rows
from graphslice.data.store import GraphStore
from graphslice.stacking import Stacking
from graphslice.stacking.stacking import combine_predictions, weighted_std
from graphslice.tasks import Task, to_predictions, to_standard_deviations

# Number of molecules whose inputs are computed for the base models at once.
_CHUNK_ROWS = 2048


def network_predictions(
    outputs: np.ndarray, stds: Sequence[np.ndarray], tasks: Sequence[Task]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Convert the outputs of M networks to predictions, and to predicted standard deviations if there are any.

    Args:
        outputs: ``float32 [M, R, W + D]``: W predictions, then D predicted standard deviations of their errors.
        stds: for each network ``float32 [W + D]``, the standard deviations of its training labels.
        tasks: the T prediction tasks.

    Returns:
        Predictions ``float32 [M, R, W]``, and by name the predicted standard deviations ``float32 [R, T]``, averaged
        over the networks.
    """
    values = np.stack([to_predictions(output, tasks) for output in outputs])
    predicted = [to_standard_deviations(output, tasks, std) for output, std in zip(outputs, stds, strict=True)]
    known = [one for one in predicted if one is not None]
    return values, {NETWORK_STD: np.asarray(np.mean(known, axis=0), np.float32)} if known else {}


def stack_predictions(
    networks: np.ndarray,
    stackings: Sequence[Stacking | None],
    store: GraphStore,
    rows: np.ndarray,
    tasks: Sequence[Task],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Combine the predictions of M networks with those of their base models by weighted averages (stacking).

    Args:
        networks: ``float32 [M, R, W]``, predictions of the networks, modified in place.
        stackings: base models and weights of each model, or None.
        store: the molecules.
        rows: ``int64 [R]`` of the store.
        tasks: the T prediction tasks.

    Returns:
        Predictions ``float32 [M, R, W]``, and by name the standard deviations between the components of a model
        (averaged over models) and between the M models, ``float32 [R, T]``.
    """
    values = networks
    stacked = [(model, stacking) for model, stacking in enumerate(stackings) if stacking is not None]
    parts_std = np.zeros((len(rows), len(tasks)), np.float32)
    for start in range(0, len(rows) if stacked else 0, _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        inputs = graph_input_rows(store, rows[chunk])
        for model, stacking in stacked:
            parts = stacking.base_predictions(values[model, chunk], inputs)
            values[model, chunk] = combine_predictions(parts, stacking.weights, tasks)
            parts_std[chunk] += weighted_std(parts, stacking.weights, tasks) / len(stacked)
    difficulty = {PARTS_STD: parts_std} if stacked else {}
    if len(values) > 1:
        equal = np.full((len(values), len(tasks)), 1 / len(values))
        difficulty[ENSEMBLE_STD] = weighted_std(list(values), equal, tasks)
    return values, difficulty
