"""Censored labels: bounds such as ``>1000`` of numbers that an assay could not measure.

The labels of R molecules and T targets are numbers, ``float64 [R, T]``, nan where a label is unknown or a bound; and
bounds, ``float64 [R, T, 2]``: the lower and the upper bound, -inf and inf where there is none.
"""

from __future__ import annotations

import re

import numpy as np

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_CELL = re.compile(rf"\s*(<=|>=|=<|=>|<|>|\u2264|\u2265|\u2a7d|\u2a7e)\s*({_NUMBER})\s*", re.ASCII)
_LOWER = frozenset({">", ">=", "=>", "\u2265", "\u2a7e"})
# Bounds are fitted as if they were at most this many standard deviations from the mean of all numbers.
_FARTHEST = 5.0
#: The bounds of a label that is a number or unknown.
UNBOUNDED = (-np.inf, np.inf)


def parse_bound(cell: str) -> tuple[float, float] | None:
    """Parse a cell such as ``>1000``, ``< 0.01``, ``>=50`` or ``≤3``.

    Returns:
        The lower and the upper bound, one of which is infinite; None for any other cell.
    """
    match = _CELL.fullmatch(cell.replace("\u2212", "-"))
    if match is None:
        return None
    number = float(match[2])
    return (number, np.inf) if match[1] in _LOWER else (-np.inf, number)


def is_bounded(bounds: np.ndarray) -> np.ndarray:
    """Return the mask of labels with a finite bound: ``bool [...]`` of bounds ``[..., 2]``."""
    return np.isfinite(bounds).any(axis=-1)


def within_bounds(labels: np.ndarray, bounds: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Replace the bounds among labels by the nearest value to each prediction that they allow.

    The error of a prediction is then 0 if it respects the bound, and otherwise its distance from it.

    Args:
        labels: ``float64 [...]``, nan where unknown or a bound.
        bounds: ``float64 [..., 2]``.
        predictions: ``float [...]``, in the same unit.
    """
    nearest = np.clip(predictions, bounds[..., 0], bounds[..., 1])
    return np.where(np.isnan(labels) & is_bounded(bounds), nearest, labels)


def expected_values(labels: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Replace the bounds among the labels of a target by the mean of the labels beyond them.

    The mean is that of a normal distribution, fitted to numbers and bounds by maximum likelihood (Tobin 1958,
    doi:10.2307/1907382). Models that cannot be fitted to bounds are nearly as good with these labels as with the true
    ones, and worse with the bounds as labels, or without these molecules (docs/log.md).

    Args:
        labels: ``float64 [R]``, nan where unknown or a bound.
        bounds: ``float64 [R, 2]``.

    Returns:
        ``float64 [R]``, nan where unknown. Without two different numbers, a bound is replaced by its own value.
    """
    from scipy.stats import CensoredData, norm

    bounded = is_bounded(bounds) & np.isnan(labels)
    if not bounded.any():
        return labels
    low, high = bounds[bounded].T
    numbers = labels[~np.isnan(labels)]
    nearest = np.where(np.isfinite(low) & np.isfinite(high), (low + high) / 2, np.where(np.isfinite(low), low, high))
    filled = labels.copy()
    filled[bounded] = nearest
    if len(np.unique(numbers)) < 2:
        return filled
    # In units of the spread of the numbers. Bounds far from all numbers are moved nearer, since a single one, perhaps
    # in another unit, would change the mean of all.
    centre, width = numbers.mean(), numbers.std()
    right, left = ~np.isfinite(high), ~np.isfinite(low)
    scaled = np.concatenate([(numbers - centre) / width, [-_FARTHEST, _FARTHEST]])
    least, most = scaled.min(), scaled.max()
    low = np.where(left, low, ((low - centre) / width).clip(least, most))
    high = np.where(right, high, ((high - centre) / width).clip(least, most))
    data = CensoredData(
        uncensored=(numbers - centre) / width,
        left=high[left],
        right=low[right],
        interval=np.stack([low, high], axis=1)[~left & ~right],
    )
    mean, std = norm.fit(data)
    a, b = (low - mean) / std, (high - mean) / std
    # Mean of a normal distribution between a and b; far from its centre, where the share is 0, the bound itself.
    share = np.where(a > 0, norm.sf(a) - norm.sf(b), norm.cdf(b) - norm.cdf(a))
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = mean + std * (norm.pdf(a) - norm.pdf(b)) / share
    edge = np.where(left, high, np.where(right, low, (low + high) / 2))
    inside = np.where(share > 1e-12, inside.clip(low, high), edge)
    filled[bounded] = np.clip(centre + width * inside, *bounds[bounded].T)
    return filled
