"""Normal scores of ranks: numbers mapped to a normal distribution, and back."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

# Largest number of knots.
_MOST_KNOTS = 1000


def fit_knots(values: np.ndarray) -> np.ndarray:
    """Fit the map between finite numbers ``float64 [R]`` and the normal scores of their ranks.

    Returns:
        ``float64 [2, P]``, knots of a piecewise linear map: scores and numbers, both ascending.
    """
    numbers, counts = np.unique(values, return_counts=True)
    quantiles = (counts.cumsum() - counts / 2) / len(values)
    chosen = np.unique(np.linspace(0, len(numbers) - 1, _MOST_KNOTS).round().astype(np.int64))
    scores = np.array([NormalDist().inv_cdf(quantile) for quantile in quantiles[chosen]])
    return np.stack([scores, numbers[chosen]])


def to_scores(numbers: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Map numbers to normal scores; numbers beyond the knots get the score of the nearest one."""
    return interpolate(numbers, knots[::-1])


def interpolate(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Interpolate linearly between ``knots [2, P]``, points and numbers; unlike ``numpy.interp`` it never overflows."""
    points, numbers = knots
    right = np.searchsorted(points, x).clip(1, len(points) - 1) if len(points) > 1 else np.zeros(x.shape, np.int64)
    left = np.maximum(right - 1, 0)
    span = np.where(right > left, points[right] - points[left], 1.0)
    share = ((x - points[left]) / span).clip(0, 1)
    low, high = numbers[left], numbers[right]
    return (low * (1 - share) + high * share).clip(low, high)
