"""Conformal intervals (Vovk et al. 2005; Lei et al. 2018, doi:10.1080/01621459.2017.1307116)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphslice.choosing import near_best, shares
from graphslice.errors import InputError

# With fewer molecules all intervals are equally wide.
_FEWEST_ROWS = 20
# The parts that the shares are made of.
_STEPS = 8
#: What is the same for every molecule, and 1 minus the similarity of the nearest training molecule.
CONSTANT, DISTANCE = "constant", "distance"


def check_level(level: float) -> float:
    """The share of molecules that intervals of a level in percent hold: 0.9 of 90.

    Raises:
        InputError: for what is no percentage from 50 to below 100.
    """
    if isinstance(level, bool) or not isinstance(level, int | float) or not 50 <= level < 100:
        raise InputError(f"an interval has a level in percent, from 50 to 99.9, such as 90, not {level!r}")
    return level / 100


def conformal_quantile(scores: np.ndarray, share: float) -> float:
    """What at least a share of all molecules stay below, if they are like those of the scores.

    Args:
        scores: ``float [n]`` of molecules that the model did not learn, in ascending order.
        share: of the molecules, between 0 and 1.

    Returns:
        The ``ceil((n + 1) share)``-th score; infinite where there are too few for this share.
    """
    rank = int(np.ceil((len(scores) + 1) * share - 1e-9))
    return float(scores[rank - 1]) if rank <= len(scores) else float("inf")


def scale_of(difficulty: Mapping[str, np.ndarray], weights: Mapping[str, float], rows: int) -> np.ndarray:
    """``float64 [R]``: how wide the interval of each molecule is beside the others', above 0.

    Args:
        difficulty: ``float [R]`` by name, none negative.
        weights: of :func:`fit_scale`.
        rows: R.
    """
    scale = np.full(rows, weights[CONSTANT])
    for name, weight in weights.items():
        if name != CONSTANT:
            scale += weight * difficulty[name]
    return scale


def fit_scale(difficulty: Mapping[str, np.ndarray], errors: np.ndarray) -> dict[str, float]:
    """How much each kind of difficulty tells of the size of an error.

    The scale of an error is taken as a weighted sum, its distribution as Laplace's. The weights are not the best ones
    alone, but the mean of all on a grid whose likelihood lies within one standard error of the best, paired over the
    rows: so few rows, or difficulties that tell nothing, give intervals that are nearly equally wide.

    Args:
        difficulty: ``float [n]`` by name, none negative.
        errors: ``float [n]``, absolute ones.

    Returns:
        The weight of each; that of :data:`CONSTANT` is above 0.
    """
    if len(errors) < _FEWEST_ROWS:
        return {CONSTANT: 1.0}
    means = {CONSTANT: 1.0} | {name: float(np.mean(values)) for name, values in difficulty.items()}
    names = [name for name, mean in means.items() if mean > 0]
    if len(names) == 1:
        return {CONSTANT: 1.0}
    parts = np.stack([np.ones(len(errors)), *(difficulty[name] / means[name] for name in names[1:])])
    grid = np.array([given for given in shares(_STEPS, len(names)) if given[0] > 0]) / _STEPS
    losses = np.stack([_laplace_losses(given @ parts, errors) for given in grid])
    weights = grid[near_best(losses)].mean(axis=0)
    return {name: float(weight / means[name]) for name, weight in zip(names, weights, strict=True) if weight > 0}


def _laplace_losses(scale: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """``[n]``: minus the logarithm of the likelihood of each error, but for a constant."""
    scale = scale * max(float(np.mean(errors / scale)), 1e-12)
    return np.log(scale) + errors / scale
