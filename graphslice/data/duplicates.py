"""Duplicate rows, which have the same model input: finding them, and agreement of their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from graphslice.data.labels import pluralize, pointers
from graphslice.data.splits import SPLIT_NAMES, Splits

# Labels of one molecule agree if they differ by at most this fraction of the standard deviation of the target.
_AGREEMENT_TOLERANCE = 0.1
# Maximal number of rows of a molecule, and of conflicting molecules, listed in a message.
_MAX_LISTED, _MAX_CONFLICTS = 8, 3


@dataclass(frozen=True)
class Duplicates:
    """Duplicates among the usable rows of a dataset.

    Attributes:
        molecules: number of molecules with several rows (rows with the same model input).
        rows: total number of rows of these molecules.
        conflicting: rows of each of these molecules with conflicting labels: different classes, or numbers that differ
            by more than a tenth of the standard deviation of the target; bounds conflict if no number respects them.
        shared: for predefined splits: number of rows, by split, whose family (the same compound except for salts,
            charges, tautomers and stereochemistry) is also in the training set.
    """

    molecules: int
    rows: int
    conflicting: tuple[tuple[int, ...], ...] = ()
    shared: dict[str, int] = field(default_factory=dict)

    def describe(self) -> str | None:
        """Return a one-line summary for the user; None if there are no duplicates."""
        clauses = []
        if self.molecules:
            duplicates = f"{self.rows:,} rows belong to {pluralize(self.molecules, 'molecule')} with several rows"
            conflicts = f"{len(self.conflicting):,} of them with conflicting labels"
            if self.conflicting:
                listed = "; ".join(f"rows {_listed(rows)}" for rows in self.conflicting[:_MAX_CONFLICTS])
                listed += "; ..." * (len(self.conflicting) > _MAX_CONFLICTS)
                conflicts += (
                    f" (other classes, or numbers further apart than a tenth of the standard deviation): {listed}"
                )
            clauses.append(f"{duplicates}, {conflicts}")
        if shared := [
            pluralize(rows, f"{SPLIT_NAMES.get(split, split)} row") for split, rows in self.shared.items() if rows
        ]:
            overlap = "with a molecule of the training set, or a salt, tautomer or stereoisomer of one"
            clauses.append(f"possible leakage: {' and '.join(shared)} {overlap}")
        return "; ".join(clauses) or None


def find_duplicates(
    rows: np.ndarray, identity: np.ndarray, targets: np.ndarray, classes: np.ndarray, bounds: np.ndarray | None = None
) -> Duplicates:
    """Find duplicates, without ``shared``.

    Args:
        rows: ``int64 [R]``, numbers of the rows.
        identity: ``uint64 [R]``, their keys (:func:`keys_with_columns`).
        targets: ``float64 [R, T]``, nan where unknown.
        classes: ``bool [T]``, true for classification targets.
        bounds: ``float64 [R, T, 2]``, bounds of targets that are nan; None if there are none.
    """
    repeated, begins = _duplicate_rows(identity)
    if not len(repeated):
        return Duplicates(0, 0)
    limit = np.where(classes, 0.0, _AGREEMENT_TOLERANCE * np.ma.masked_invalid(targets).std(axis=0).filled(0.0))
    conflicting = np.zeros(len(begins), bool)
    for t in range(targets.shape[1]):
        labels = targets[repeated, t]
        known = ~np.isnan(labels)
        low, high = (-np.inf, np.inf) if bounds is None else bounds[repeated, t].T
        largest = np.maximum.reduceat(np.where(known, labels, low), begins)
        smallest = np.minimum.reduceat(np.where(known, labels, high), begins)
        conflicting |= largest - smallest > limit[t]
    molecules = np.split(rows[repeated], begins[1:])
    conflicts = tuple(tuple(molecules[k].tolist()) for k in np.flatnonzero(conflicting))
    return Duplicates(len(begins), len(repeated), conflicts)


def count_shared(splits: Splits, rows: np.ndarray, family: np.ndarray) -> dict[str, int]:
    """Detect leakage: count the rows of each held-out split whose family is also in the training set.

    ``family``, ``uint64 [R]``, are the hashes of ``rows``, ``int64 [R]`` and ascending, which the splits divide.
    """
    train_families = family[np.searchsorted(rows, splits["train"])]
    held_out = {split: family[np.searchsorted(rows, members)] for split, members in splits.items() if split != "train"}
    return {split: int(np.isin(families, train_families).sum()) for split, families in held_out.items()}


def keys_with_columns(identity: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Combine molecule hashes ``uint64 [R]`` with descriptor columns ``float32 [R, K]`` to keys of the model input."""
    _, keys, counts = np.unique(identity, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(counts[keys] > 1)  # the others have no equal row, whatever their columns are
    numbers = columns[repeated] + np.float32(0)  # -0 is 0
    numbers[np.isnan(numbers)] = np.nan  # of one bit pattern
    words = np.column_stack([keys[repeated].astype(np.uint32), numbers.view(np.uint32)])
    keys[repeated] = len(counts) + np.unique(words, axis=0, return_inverse=True)[1].reshape(-1)
    return keys.astype(np.uint64)


def _listed(rows: Sequence[int]) -> str:
    """List row numbers, from 1, in words."""
    return ", ".join(str(row + 1) for row in rows[:_MAX_LISTED]) + ", ..." * (len(rows) > _MAX_LISTED)


def _duplicate_rows(identity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of molecules with several rows, grouped by molecule, and the begin of each group."""
    _, inverse, counts = np.unique(identity, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(counts[inverse] > 1)
    rows = rows[np.argsort(inverse[rows], kind="stable")]
    return rows, pointers(counts[counts > 1])[:-1]
