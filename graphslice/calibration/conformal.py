"""Conformal intervals (Vovk et al. 2005; Lei et al. 2018, doi:10.1080/01621459.2017.1307116).

Rows are measurements of molecules, or their atoms or bonds. Those of one molecule are alike, so that not the rows but
the molecules can be exchanged for each other: every molecule counts as one, whatever its size and however often it was
measured (hierarchical conformal prediction: Lee, Barber and Willett 2023, arXiv:2306.06342). What is promised then is
of an atom drawn at random from a new molecule: in the mean over molecules a share of the atoms, not of all atoms
together, and of no single molecule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from numbers import Real

import numpy as np

from graphslice.errors import InputError, shown
from graphslice.model_averaging import simplex_grid, within_standard_errors

#: With fewer molecules all intervals are equally wide, and probabilities stay as they are.
MIN_CALIBRATION_MOLECULES = 20
# The parts that the shares are made of.
_STEPS = 8
#: What is the same for every molecule, and 1 minus the similarity of the nearest training molecule.
CONSTANT, DOMAIN_DISTANCE = "constant", "distance"
#: The standard deviation that a network predicts, that of it and its trees, and that of the models of an ensemble.
NETWORK_STD = "deviation of the network"
PARTS_STD, ENSEMBLE_STD = "disagreement of the parts", "disagreement of the models"


def coverage_of_level(level: float) -> float:
    """The share of molecules that intervals of a level in percent hold: 0.9 of 90.

    Raises:
        InputError: for what is no percentage from 50 to below 100.
    """
    if isinstance(level, bool) or not isinstance(level, Real) or not 50 <= level < 100:
        raise InputError(f"an interval has a level in percent, from 50 to 99.9, such as 90, not {shown(level)}")
    return level / 100


def min_calibration_molecules(coverage: float) -> int:
    """Of how many molecules :class:`NonconformityScores` must be for a quantile of this share that has an end."""
    return ceil(coverage / (1 - coverage) - 1e-6)


def mean_per_molecule(values: np.ndarray, molecules: np.ndarray) -> np.ndarray:
    """``float64 [..., M]``: the mean over the rows of each molecule.

    Args:
        values: ``float [..., n]``.
        molecules: ``int64 [n]``, which molecule each row is of; M different ones, in whose order the means are.
    """
    if (np.diff(molecules) < 0).any():
        order = np.argsort(molecules, kind="stable")
        values, molecules = values[..., order], molecules[order]
    starts = np.flatnonzero(np.diff(molecules, prepend=-1))
    return np.add.reduceat(values, starts, axis=-1, dtype=np.float64) / np.diff(starts, append=len(molecules))


@dataclass(frozen=True, eq=False)
class NonconformityScores:
    """How far off a model was on molecules that it did not learn.

    Attributes:
        values: ``float64 [n]``, ascending.
        counts: ``int64 [n]``, how many of the values are of the same molecule as each: 1 where rows are molecules.
    """

    values: np.ndarray
    counts: np.ndarray

    def __post_init__(self) -> None:
        if self.values.shape != self.counts.shape or not np.isfinite(self.values).all() or (self.counts < 1).any():
            raise ValueError("scores")

    @classmethod
    def from_rows(cls, values: np.ndarray, molecules: np.ndarray) -> NonconformityScores:
        """Those of some rows: ``float [n]``, and ``int64 [n]``, which molecule each is of."""
        _, inverse, counts = np.unique(molecules, return_inverse=True, return_counts=True)
        order = np.argsort(values, kind="stable")
        return cls(np.asarray(values, np.float64)[order], counts[inverse][order])

    def quantile(self, coverage: float) -> float:
        """What at least a share of all molecules stay below, if they are like those of the scores.

        Of atoms or bonds it is one drawn at random of each molecule. ``coverage``: between 0 and 1. Infinite where
        there are too few molecules for this share. Where rows are molecules it is the ``ceil((n + 1) share)``-th score.
        """
        below = np.cumsum(1 / self.counts)
        molecules = round(below[-1]) if len(below) else 0
        place = int(np.searchsorted(below, (molecules + 1) * coverage - 1e-6))  # a third is not three times a ninth
        return float(self.values[place]) if place < len(below) else float("inf")


def interval_scale(difficulty: Mapping[str, np.ndarray], weights: Mapping[str, float], rows: int) -> np.ndarray:
    """``float64 [R]``: how wide the interval of each molecule is beside the others', above 0.

    Args:
        difficulty: ``float [R]`` by name, none negative.
        weights: of :func:`fit_interval_scale`.
        rows: R.
    """
    scale = np.full(rows, weights[CONSTANT])
    for name, weight in weights.items():
        if name != CONSTANT:
            scale += weight * difficulty[name]
    return scale


def fit_interval_scale(
    difficulty: Mapping[str, np.ndarray], errors: np.ndarray, molecules: np.ndarray
) -> dict[str, float]:
    """How much each kind of difficulty tells of the size of an error.

    The scale of an error is taken as a weighted sum, its distribution as Laplace's. The weights are not the best ones
    alone, but the mean of all on a grid whose likelihood lies within one standard error of the best, paired over the
    molecules: so few of them, or difficulties that tell nothing, give intervals that are nearly equally wide.

    Args:
        difficulty: ``float [n]`` by name, none negative.
        errors: ``float [n]``, absolute ones.
        molecules: ``int64 [n]``, which molecule each row is of.

    Returns:
        The weight of each; that of :data:`CONSTANT` is above 0.
    """
    if len(np.unique(molecules)) < MIN_CALIBRATION_MOLECULES:
        return {CONSTANT: 1.0}
    means = {name: float(mean_per_molecule(values, molecules).mean()) for name, values in difficulty.items()}
    means = {CONSTANT: 1.0} | means
    names = [name for name, mean in means.items() if mean > 0]
    if len(names) == 1:
        return {CONSTANT: 1.0}
    parts = np.stack([np.ones(len(errors)), *(difficulty[name] / means[name] for name in names[1:])])
    grid = np.array([given for given in simplex_grid(_STEPS, len(names)) if given[0] > 0]) / _STEPS
    losses = np.stack([_laplace_losses(given @ parts, errors, molecules) for given in grid])
    weights = grid[within_standard_errors(losses)].mean(axis=0)
    return {name: float(weight / means[name]) for name, weight in zip(names, weights, strict=True) if weight > 0}


def _laplace_losses(scale: np.ndarray, errors: np.ndarray, molecules: np.ndarray) -> np.ndarray:
    """``[M]``: minus the logarithm of the likelihood of the errors of each molecule, their mean, but for a constant."""
    scale = scale * max(float(mean_per_molecule(errors / scale, molecules).mean()), 1e-12)
    return mean_per_molecule(np.log(scale) + errors / scale, molecules)
