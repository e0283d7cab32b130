"""Targets that have few values, such as yes and no: which they are, and the rarest value of each molecule."""

from __future__ import annotations

import numpy as np


def strata(labels: np.ndarray) -> np.ndarray:
    """The two rarest values that each row has of any target: a number a value, the rarest of all values 0.

    Args:
        labels: ``float64 [R, K]`` of the targets that are classes, nan where unknown.

    Returns:
        ``int64 [R, 2]``, the rarest one first; rows without a label, or a second one, have the largest number.
    """
    rows = len(labels)
    none = (rows + 1) * 2**32  # a value is how many rows have it, and then its number among all values
    rarest, second = np.full(rows, none), np.full(rows, none)
    values = 0
    for column in labels.T:
        known = np.flatnonzero(~np.isnan(column))
        different = np.unique(column[known])
        which = np.searchsorted(different, column[known])
        counts = np.bincount(which, minlength=len(different))
        value = np.full(rows, none)
        value[known] = (counts * 2**32 + values + np.arange(len(counts)))[which]
        second = np.minimum(second, np.maximum(rarest, value))
        rarest = np.minimum(rarest, value)
        values += len(counts)
    return np.unique(np.stack([rarest, second]), return_inverse=True)[1].reshape(2, rows).T


def missing_classes(labels: np.ndarray, present: np.ndarray) -> list[tuple[int, float]]:
    """The values that some rows have and none of the rows that are present: as pairs of column and value.

    Args:
        labels: ``float64 [R, K]``, nan where unknown.
        present: ``bool [R]``.
    """
    found = []
    for k, column in enumerate(labels.T):
        different, there = set(np.unique(column).tolist()), set(np.unique(column[present]).tolist())
        found += [(k, value) for value in sorted(different - there) if value == value]
    return found
