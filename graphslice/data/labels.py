"""Labels of molecules, atoms or bonds: ragged arrays, concatenated over molecules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphslice.config import MOLECULE
from graphslice.errors import pluralize
from graphslice.tasks import UNBOUNDED, is_bounded


def ragged_indices(ptr: np.ndarray, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the indices, ``int64 [M]``, of the atoms ``ptr[r]`` to ``ptr[r + 1]`` of each molecule r of ``rows``."""
    rows = np.asarray(rows, np.int64)
    counts = ptr[rows + 1] - ptr[rows]
    return np.repeat(ptr[rows] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


def pointers(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the begin of each of R concatenated lists and the end of the last one, ``int64 [R + 1]``."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int64)


def group_means(values: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    """Return the means of the known values ``[M, T]`` of each group, ``float64 [count, T]``, nan if there are none."""
    known = ~np.isnan(values)
    sums, numbers = (
        np.array([np.bincount(groups, column, count) for column in part.T]).reshape(values.shape[1], count).T
        for part in (np.where(known, values, 0.0), known)
    )
    return np.where(numbers > 0, sums / np.maximum(numbers, 1), np.nan)


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of R molecules, or of their atoms or bonds, concatenated."""

    level: str  # molecule (each row has one label), atom or bond
    values: np.ndarray  # float64 [M, T], nan where unknown; class indices of classification tasks
    ptr: np.ndarray  # int64 [R + 1]: row r has values[ptr[r]:ptr[r + 1]]
    names: tuple[str, ...] = ()  # of the T targets, if they are not stored elsewhere
    bounds: np.ndarray | None = None  # float64 [R, T, 2] of molecule-level labels, see graphslice.tasks
    weights: np.ndarray | None = None  # float64 [R], above 0 where used; None if equal

    def __len__(self) -> int:
        return len(self.ptr) - 1

    @classmethod
    def of_molecules(cls, values: np.ndarray, bounds: np.ndarray | None = None) -> Labels:
        """Labels of R molecules, ``float64 [R, T]``, and their bounds ``float64 [R, T, 2]`` if any is finite."""
        bounds = bounds if bounds is not None and is_bounded(bounds).any() else None
        return cls(MOLECULE, values, np.arange(len(values) + 1), bounds=bounds)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Return the labels of some rows, ``float64 [M, T]``, row by row."""
        return self.values[rows if self.level == MOLECULE else ragged_indices(self.ptr, rows)]

    def rows(self, begin: int, end: int) -> Labels:
        ptr = self.ptr[begin : end + 1]
        bounds, weights = (None if each is None else each[begin:end] for each in (self.bounds, self.weights))
        values = self.values[ptr[0] : ptr[-1]]
        return replace(self, values=values, ptr=ptr - ptr[0], bounds=bounds, weights=weights)

    def molecules(self, rows: np.ndarray) -> np.ndarray:
        """Return the index into ``rows`` of each of their labels, ``int64 [M]``."""
        return np.repeat(np.arange(len(rows)), self.counts_of(rows))

    def known(self) -> np.ndarray:
        """Return the mask of rows with any known label or bound, ``bool [R]``."""
        known = ~np.isnan(self.means()).all(axis=1)
        return known if self.bounds is None else known | is_bounded(self.bounds).any(axis=1)

    def used(self) -> np.ndarray:
        """Return the mask of rows with any known label or bound and a weight above 0, ``bool [R]``."""
        return self.known() if self.weights is None else self.known() & (self.weights > 0)

    @property
    def counts(self) -> np.ndarray:
        """Number of labels of each row, including unknown ones, ``int64 [R]``."""
        return np.diff(self.ptr)

    def counts_of(self, rows: np.ndarray) -> np.ndarray:
        """Return :attr:`counts` of some rows, ``int64 [B]``, without computing those of all rows."""
        return self.ptr[rows + 1] - self.ptr[rows]

    def means(self) -> np.ndarray:
        """Return the means of the known labels of each row, ``float64 [R, T]``, nan if there are none."""
        if self.level == MOLECULE:
            return self.values
        return group_means(self.values, np.repeat(np.arange(len(self)), self.counts), len(self))

    @classmethod
    def join(cls, parts: Sequence[Labels]) -> Labels:
        counts = np.concatenate([part.counts for part in parts])
        values = np.concatenate([part.values for part in parts])
        bounds = None
        if any(part.bounds is not None for part in parts):
            each = [np.full((*p.values.shape, 2), UNBOUNDED) if p.bounds is None else p.bounds for p in parts]
            bounds = np.concatenate(each)
        weights = [part.weights for part in parts if part.weights is not None]
        joined = np.concatenate(weights) if weights else None
        return cls(parts[0].level, values, pointers(counts), bounds=bounds, weights=joined)

    def length_errors(self, counts: np.ndarray, names: Sequence[str]) -> dict[int, str]:
        """Return reasons by row whose lists do not fit ``counts int [R]`` of atoms or bonds (negative: no molecule)."""
        wrong = (self.counts != counts) & (self.counts > 0) & (counts >= 0)
        subject = f"target {names[0]!r} has" if len(names) == 1 else "the targets have"
        return {
            row: f"{subject} {pluralize(self.counts[row], 'number')} for {pluralize(counts[row], self.level)}"
            for row in np.flatnonzero(wrong).tolist()
        }

    def without(self, rows: Sequence[int] | np.ndarray) -> Labels:
        """Return a copy in which some rows have no labels."""
        counts = self.counts
        counts[rows] = 0
        remaining = np.setdiff1d(np.arange(len(self)), rows)
        return replace(self, values=self[remaining], ptr=pointers(counts))

    def in_graph_order(self, counts: np.ndarray, order: np.ndarray) -> Labels:
        """Return labels in graph order, none where ``counts`` differ; ``order`` as :func:`read_smiles` returns it."""
        labels = self.without(np.flatnonzero(self.counts != counts))
        places = order[ragged_indices(pointers(np.maximum(counts, 0)), np.flatnonzero(labels.counts)), 0]
        values = np.empty_like(labels.values)
        values[np.repeat(labels.ptr[:-1], labels.counts) + places] = labels.values
        return replace(labels, values=values)
