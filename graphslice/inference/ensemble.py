"""The answers of networks with the trees beside them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.calibration import OF_MODELS, OF_NETWORK, OF_PARTS
from graphslice.data.store import GraphStore
from graphslice.tasks import Task, to_predictions, to_standard_deviations
from graphslice.trees import Stacking
from graphslice.trees.stacking import combine_predictions, weighted_std

# Molecules whose descriptors trees get at a time.
_TREE_ROWS = 4096


def network_predictions(
    outputs: np.ndarray, stds: Sequence[np.ndarray], tasks: Sequence[Task]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """What M networks answer, ``float32 [M, R, W]``; and how far off they take themselves to be, if they say so.

    Args:
        outputs: ``float32 [M, R, W + D]``, what they put out, D deviations behind the answers.
        stds: of each ``float32 [W + D]``, the deviations of what it learned.
        tasks: T targets.

    Returns:
        The answers, and ``float32 [R, T]`` by name, the mean over the networks.
    """
    values = np.stack([to_predictions(each, tasks) for each in outputs])
    said = [to_standard_deviations(each, tasks, std) for each, std in zip(outputs, stds, strict=True)]
    known = [each for each in said if each is not None]
    return values, {OF_NETWORK: np.asarray(np.mean(known, axis=0), np.float32)} if known else {}


def stack_predictions(
    networks: np.ndarray,
    stackings: Sequence[Stacking | None],
    store: GraphStore,
    rows: np.ndarray,
    tasks: Sequence[Task],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """What M models answer, ``float32 [M, R, W]``; and by name how much their parts, and they, disagree.

    Args:
        networks: ``float32 [M, R, W]``, what the networks answer; it is changed.
        blends: the trees beside each, or None.
        store: that has the descriptors which these read.
        rows: ``int64 [R]`` of the store.
        tasks: T targets.

    Returns:
        The answers, and ``float32 [R, T]`` by name.
    """
    values = networks
    with_trees = [(model, stacking) for model, stacking in enumerate(stackings) if stacking is not None]
    found = np.zeros((len(rows), len(tasks)), np.float32)
    for model, stacking in with_trees:
        for begin in range(0, len(rows), _TREE_ROWS):
            some = slice(begin, begin + _TREE_ROWS)
            parts = stacking.base_predictions(values[model, some], store.descriptors(rows[some], stacking.kinds))
            values[model, some] = combine_predictions(parts, stacking.weights, tasks)
            found[some] += weighted_std(parts, stacking.weights, tasks) / len(with_trees)
    difficulty = {OF_PARTS: found} if with_trees else {}
    if len(values) > 1:
        equal = np.full((len(values), len(tasks)), 1 / len(values))
        difficulty[OF_MODELS] = weighted_std(list(values), equal, tasks)
    return values, difficulty
