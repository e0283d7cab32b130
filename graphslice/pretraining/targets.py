"""Pretraining targets: regression and binary targets computed from RDKit descriptors and Morgan fingerprints."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from graphslice.chem.descriptors import DESCRIPTORS
from graphslice.data.store import GraphStore
from graphslice.tasks import BINARY, Task

#: Descriptor kinds from which targets are computed.
DESCRIPTOR_KINDS = ("rdkit2d", "morgan")

# If more than this share of the molecules have the same value of a descriptor, the target is binary: the value differs
# from it. As a regression target, always predicting that value would minimise the absolute error.
_COMMONEST = 0.6
# Minimum share of each class of a binary target.
_RARE = 0.1
# Standardised descriptors are clipped at this many standard deviations.
_CLIP = 5.0


@dataclass(frozen=True)
class PretrainingTargets:
    """Pretraining targets, and how they are computed from descriptors.

    Attributes:
        tasks: T targets, named as their descriptors: regression, robustly standardised, and binary.
        columns: int64 ``[T]``, descriptor column of each target.
        centre: float32 ``[T]``, median of a regression target; for a binary target, the most common value.
        scale: float32 ``[T]``, interquartile range of a regression target divided by that of the standard normal
            distribution; nan for a binary target.
    """

    tasks: tuple[Task, ...]
    columns: np.ndarray
    centre: np.ndarray
    scale: np.ndarray

    def compute(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """Compute the targets of molecules.

        Args:
            store: preprocessed molecules with :data:`DESCRIPTOR_KINDS`.
            rows: ``int64 [R]``, rows of the store.

        Returns:
            Targets ``float64 [R, T]``; nan where a descriptor is undefined.
        """
        values = store.descriptors(rows, DESCRIPTOR_KINDS)[:, self.columns]
        with np.errstate(invalid="ignore"):
            standardised = ((values - self.centre) / self.scale).clip(-_CLIP, _CLIP)
        differs = np.where(np.isnan(values), np.nan, values != self.centre)
        return np.where(np.isnan(self.scale), differs, standardised).astype(np.float64)


def choose_targets(store: GraphStore, rows: np.ndarray, exclude: Collection[str] = ()) -> PretrainingTargets:
    """Choose the pretraining targets by the distribution of the descriptors of molecules of the training set.

    A descriptor with spread values becomes a regression target. One with the same value for most, but not nearly all,
    molecules becomes a binary target: fingerprint bits that are neither rare nor common, and counts of functional
    groups that few molecules have. Descriptors that are known for less than half of the molecules are skipped.
    """
    from scipy.stats import iqr

    names = [name for kind in DESCRIPTOR_KINDS for name in DESCRIPTORS[kind].names]
    values = store.descriptors(rows, DESCRIPTOR_KINDS)
    tasks, columns, centre, scale = [], [], [], []
    for column, name in enumerate(names):
        known = values[:, column]
        known = known[~np.isnan(known)]
        if name in exclude or not len(known) or len(known) < len(rows) / 2:
            continue
        numbers, counts = np.unique(known, return_counts=True)
        commonest, share = numbers[counts.argmax()], counts.max() / len(known)
        if share <= _COMMONEST and (spread := iqr(known, scale="normal")) > 0:
            tasks.append(Task(name))
            centre.append(np.median(known))
            scale.append(spread)
        elif _RARE <= 1 - share <= 1 - _RARE:
            tasks.append(Task(name, BINARY, ("no", "yes")))
            centre.append(commonest)
            scale.append(np.nan)
        else:
            continue
        columns.append(column)
    arrays = (np.array(values, dtype) for values, dtype in ((columns, int), (centre, np.float32), (scale, np.float32)))
    return PretrainingTargets(tuple(tasks), *arrays)
