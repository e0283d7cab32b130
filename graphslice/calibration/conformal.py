"""Conformal prediction: nonconformity scores, their quantiles, and the scale of intervals.

Vovk et al. 2005; Lei et al. 2018, doi:10.1080/01621459.2017.1307116. ``calibration.py`` makes the intervals and sets.

Rows are measurements of molecules, or atoms or bonds. The rows of one molecule are dependent, so molecules are
exchangeable and rows are not: every molecule has the same weight, whatever its size and number of measurements
(hierarchical conformal prediction: Lee, Barber and Willett 2023, arXiv:2306.06342). The coverage guarantee then holds
for an atom drawn at random from a new molecule. It is the covered fraction of the atoms of a molecule, averaged over
molecules; it is not the fraction of all atoms pooled, and it is no guarantee for a single molecule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from numbers import Real

import numpy as np

from graphslice.errors import InputError, shown
from graphslice.model_averaging import simplex_grid, within_standard_errors

#: With fewer calibration molecules all intervals have the same width, and probabilities are not scaled.
MIN_CALIBRATION_MOLECULES = 20
# Grid steps of an interval weight from 0 to 1.
_STEPS = 8
#: Difficulty estimates: the same for every molecule; 1 minus the similarity to the nearest training molecule.
CONSTANT, DOMAIN_DISTANCE = "constant", "distance"
#: Standard deviations: predicted by the network; of network and base models (stacking); of the ensemble members.
NETWORK_STD = "deviation of the network"
PARTS_STD, ENSEMBLE_STD = "disagreement of the parts", "disagreement of the models"


def coverage_of_level(level: float) -> float:
    """Convert an interval level in percent to a coverage: 90 to 0.9.

    Raises:
        InputError: if ``level`` is not a percentage from 50 to below 100.
    """
    if isinstance(level, bool) or not isinstance(level, Real) or not 50 <= level < 100:
        raise InputError(
            f"the coverage of prediction intervals must be from 50 to below 100 percent, such as 90, not {shown(level)}"
        )
    return level / 100


def min_calibration_molecules(coverage: float) -> int:
    """Smallest number of calibration molecules with finite intervals at this coverage."""
    return ceil(coverage / (1 - coverage) - 1e-6)


def mean_per_molecule(values: np.ndarray, molecules: np.ndarray) -> np.ndarray:
    """Average over the rows of each molecule.

    Args:
        values: ``float [..., n]``.
        molecules: ``int64 [n]``, molecule of each row; M distinct ones.

    Returns:
        ``float64 [..., M]``, in ascending order of the molecules.
    """
    if (np.diff(molecules) < 0).any():
        order = np.argsort(molecules, kind="stable")
        values, molecules = values[..., order], molecules[order]
    starts = np.flatnonzero(np.diff(molecules, prepend=-1))
    return np.add.reduceat(values, starts, axis=-1, dtype=np.float64) / np.diff(starts, append=len(molecules))


@dataclass(frozen=True, eq=False)
class NonconformityScores:
    """Nonconformity scores of held-out molecules.

    Attributes:
        values: ``float64 [n]``, ascending.
        counts: ``float64 [n]``, number of values of the same molecule, 1 if rows are molecules; divided by the
            weight of the row, where weights are given.
    """

    values: np.ndarray
    counts: np.ndarray

    @classmethod
    def from_rows(
        cls, values: np.ndarray, molecules: np.ndarray, weights: np.ndarray | None = None
    ) -> NonconformityScores:
        """Collect scores.

        Args:
            values: ``float [n]``.
            molecules: ``int64 [n]``, molecule of each row.
            weights: ``float64 [n]``, weight of each row, above 0; None if all are equal. Quantiles are then
                weighted, and the weight of a new molecule is the mean (Tibshirani et al. 2019, arXiv:1904.06019).
        """
        _, inverse, counts = np.unique(molecules, return_inverse=True, return_counts=True)
        order, shares = np.argsort(values, kind="stable"), 1 / counts[inverse]
        if weights is not None and len(counts):
            shares = shares * weights * (len(counts) / (shares * weights).sum())
        return cls(np.asarray(values, np.float64)[order], 1 / shares[order])

    def quantile(self, coverage: float) -> float:
        """Compute the conformal quantile: the score that exchangeable new molecules stay below with this coverage.

        For atoms or bonds, the guarantee is for one drawn at random from each molecule. If rows are molecules, the
        quantile is the ``ceil((n + 1) coverage)``-th smallest score.

        Args:
            coverage: between 0 and 1.

        Returns:
            The score; infinite if there are too few molecules for this coverage.
        """
        below = np.cumsum(1 / self.counts)
        molecules = round(below[-1]) if len(below) else 0
        index = int(np.searchsorted(below, (molecules + 1) * coverage - 1e-6))  # 1e-6: sums of fractions are rounded
        return float(self.values[index]) if index < len(below) else float("inf")


def interval_scale(difficulty: Mapping[str, np.ndarray], weights: Mapping[str, float], rows: int) -> np.ndarray:
    """Compute the relative width of the interval of each row.

    Args:
        difficulty: difficulty estimates by name, each ``float [R]`` and not negative.
        weights: from :func:`fit_interval_scale`.
        rows: R.

    Returns:
        ``float64 [R]``, above 0.
    """
    parts = (weight * difficulty[name] for name, weight in weights.items() if name != CONSTANT)
    return sum(parts, np.full(rows, weights[CONSTANT]))


def fit_interval_scale(
    difficulty: Mapping[str, np.ndarray], errors: np.ndarray, molecules: np.ndarray
) -> dict[str, float]:
    """Fit the weights of the difficulty estimates in the scale of an error.

    Errors are modelled by a Laplace distribution whose scale is a weighted sum of the difficulty estimates. The weights
    are the mean of all grid points whose likelihood is within one standard error of the best, paired over molecules.
    With few molecules, or difficulty estimates unrelated to the errors, the intervals have nearly the same width.

    Args:
        difficulty: difficulty estimates by name, each ``float [n]`` and not negative.
        errors: absolute errors, ``float [n]``.
        molecules: ``int64 [n]``, molecule of each row.

    Returns:
        Weights by name; that of :data:`CONSTANT` is above 0.
    """
    if len(np.unique(molecules)) < MIN_CALIBRATION_MOLECULES:
        return {CONSTANT: 1.0}
    means = {name: float(mean_per_molecule(values, molecules).mean()) for name, values in difficulty.items()}
    means = {CONSTANT: 1.0} | means
    names = [name for name, mean in means.items() if mean > 0]
    if len(names) == 1:
        return {CONSTANT: 1.0}
    parts = np.stack([np.ones(len(errors)), *(difficulty[name] / means[name] for name in names[1:])])
    grid = np.array([steps for steps in simplex_grid(_STEPS, len(names)) if steps[0] > 0]) / _STEPS
    losses = np.stack([_laplace_losses(candidate @ parts, errors, molecules) for candidate in grid])
    weights = grid[within_standard_errors(losses)].mean(axis=0)
    return {name: float(weight / means[name]) for name, weight in zip(names, weights, strict=True) if weight > 0}


def _laplace_losses(scale: np.ndarray, errors: np.ndarray, molecules: np.ndarray) -> np.ndarray:
    """Mean negative Laplace log-likelihood of the errors of each molecule, up to a constant: ``[M]``."""
    scale = scale * max(float(mean_per_molecule(errors / scale, molecules).mean()), 1e-12)
    return mean_per_molecule(np.log(scale) + errors / scale, molecules)
