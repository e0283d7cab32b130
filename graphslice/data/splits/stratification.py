"""Stratification of classification targets by the rarest classes of each molecule."""

from __future__ import annotations

import numpy as np


def strata(labels: np.ndarray) -> np.ndarray:
    """Find the two rarest classes of each row, over all targets.

    Args:
        labels: ``float64 [R, K]``, class indices of the classification targets, nan where unknown.

    Returns:
        ``int64 [R, 2]``, the two rarest classes, the rarest first, as ranks over the classes of all targets (0 for the
        rarest). Rows without a label, or without a second one, have the largest rank there.
    """
    rows = len(labels)
    none = (rows + 1) * 2**32  # sort key of a class: its number of rows, then its index among all classes
    rarest, second = np.full(rows, none), np.full(rows, none)
    num_classes = 0
    for column in labels.T:
        known = np.flatnonzero(~np.isnan(column))
        different = np.unique(column[known])
        which = np.searchsorted(different, column[known])
        counts = np.bincount(which, minlength=len(different))
        value = np.full(rows, none)
        value[known] = (counts * 2**32 + num_classes + np.arange(len(counts)))[which]
        second = np.minimum(second, np.maximum(rarest, value))
        rarest = np.minimum(rarest, value)
        num_classes += len(counts)
    return np.unique(np.stack([rarest, second]), return_inverse=True)[1].reshape(2, rows).T


def missing_classes(labels: np.ndarray, selected: np.ndarray) -> list[tuple[int, float]]:
    """Find the classes that occur in the labels but not in the selected rows.

    Args:
        labels: ``float64 [R, K]``, class indices, nan where unknown.
        selected: ``bool [R]``.

    Returns:
        Pairs of column and class index.
    """
    missing = []
    for k, column in enumerate(labels.T):
        all_values, selected_values = set(np.unique(column).tolist()), set(np.unique(column[selected]).tolist())
        missing += [(k, value) for value in sorted(all_values - selected_values) if value == value]
    return missing
