"""Labels of atoms and of bonds, one molecule's behind another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphslice.chem.atom_bond_order import AtomBondOrder


def ragged_indices(ptr: np.ndarray, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    """``int64 [M]``: where the atoms, or bonds, of some molecules stand among those of all, molecule by molecule.

    Args:
        ptr: ``int64 [R + 1]``: molecule r has those from ``ptr[r]`` to ``ptr[r + 1]``.
        rows: ``int64 [B]``, the molecules.
    """
    rows = np.asarray(rows, np.int64)
    counts = ptr[rows + 1] - ptr[rows]
    return np.repeat(ptr[rows] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


def pointers(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """``int64 [R + 1]``: where each of R lists begins, and the last one ends, if they stand one behind another."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class AtomBondLabels:
    """Labels of the atoms, or bonds, of R molecules, those of one molecule behind those of another.

    Attributes:
        level: atom or bond.
        values: ``float64 [M, T]``, nan where unknown.
        ptr: ``int64 [R + 1]``: those of row r are ``values[ptr[r]:ptr[r + 1]]``; none of a row without labels.
        names: of the T targets, where nothing else has them.
    """

    level: str
    values: np.ndarray
    ptr: np.ndarray
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """``float64 [M, T]``: the labels of some rows, row by row."""
        return self.values[ragged_indices(self.ptr, rows)]

    @property
    def counts(self) -> np.ndarray:
        """``int64 [R]``: how many labels each row has, unknown ones counted."""
        return np.diff(self.ptr)

    def counts_of(self, rows: np.ndarray) -> np.ndarray:
        """``int64 [B]``: :attr:`counts` of some rows, however many there are of all."""
        return self.ptr[rows + 1] - self.ptr[rows]

    def means(self) -> np.ndarray:
        """``float64 [R, T]``: the means of the known labels of each row, nan where there is none."""
        known = ~np.isnan(self.values)
        sums, numbers = (
            np.stack([np.bincount(self._rows(), column, len(self)) for column in each.T], axis=1)
            for each in (np.where(known, self.values, 0.0), known)
        )
        return np.where(numbers > 0, sums / np.maximum(numbers, 1), np.nan)

    def _rows(self) -> np.ndarray:
        return np.repeat(np.arange(len(self)), self.counts)

    @classmethod
    def join(cls, parts: Sequence[AtomBondLabels]) -> AtomBondLabels:
        """Those of several tables, at least one, one behind the other."""
        counts = np.concatenate([part.counts for part in parts])
        return cls(parts[0].level, np.concatenate([part.values for part in parts]), pointers(counts))

    def length_errors(self, counts: np.ndarray, names: Sequence[str]) -> dict[int, str]:
        """Why rows whose lists are of another length than their molecule are of no use, by row.

        Args:
            counts: ``int [R]``, how many atoms, or bonds, each molecule has; negative where there is no molecule.
            names: of the targets.
        """
        wrong = (self.counts != counts) & (self.counts > 0) & (counts >= 0)
        which = f"target {names[0]!r} has" if len(names) == 1 else "the targets have"
        return {
            row: f"{which} {pluralize(self.counts[row], 'number')} for {pluralize(counts[row], self.level)}"
            for row in np.flatnonzero(wrong).tolist()
        }

    def without(self, rows: Sequence[int] | np.ndarray) -> AtomBondLabels:
        """The same but for some rows, which have none."""
        counts = self.counts
        counts[rows] = 0
        kept = np.setdiff1d(np.arange(len(self)), rows)
        return replace(self, values=self[kept], ptr=pointers(counts))

    def reordered(self, orders: Sequence[AtomBondOrder | None]) -> AtomBondLabels:
        """The same labels in the order of the graphs.

        ``orders``: of each row; where there is none, or one of another length, its labels stay as they are.
        """
        values = self.values.copy()
        for row, order in enumerate(orders):
            begin, end = self.ptr[row], self.ptr[row + 1]
            if order is not None and len(order) == end - begin:
                values[begin + order.places] = self.values[begin:end]
        return replace(self, values=values)


def pluralize(count: int, noun: str) -> str:
    """A number of things in words."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
