"""Duplicate rows, which have the same model input: finding them, agreement of their labels, and merging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from graphslice.censored import UNBOUNDED, is_bounded
from graphslice.data.labels import Labels, pluralize, pointers
from graphslice.data.splits import SPLIT_NAMES, Splits

# Labels of one molecule agree if they differ by at most this fraction of the standard deviation of the target.
_AGREEMENT_TOLERANCE = 0.1
#: Beginning of the reason of a row that was merged with another one.
MERGED = "merged with row"
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
        merged: number of rows merged into another row.
        dropped: number of rows left out because their labels could not be merged.
    """

    molecules: int
    rows: int
    conflicting: tuple[tuple[int, ...], ...] = ()
    shared: dict[str, int] = field(default_factory=dict)
    merged: int = 0
    dropped: int = 0

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
        if self.merged or self.dropped:
            dropped = f" and {self.dropped:,} left out" if self.dropped else ""
            clauses.append(f"of the training rows, {self.merged:,} merged into another{dropped}")
        if shared := [
            pluralize(rows, f"{SPLIT_NAMES.get(split, split)} row") for split, rows in self.shared.items() if rows
        ]:
            overlap = "with a molecule of the training set, or a salt, tautomer or stereoisomer of one"
            clauses.append(f"possible leakage: {' and '.join(shared)} {overlap}")
        return "; ".join(clauses) or None


def find_duplicates(
    rows: np.ndarray, identity: np.ndarray, targets: np.ndarray, classes: np.ndarray, bounds: np.ndarray | None = None
) -> Duplicates:
    """Find duplicates; the attributes about splits and merging keep their defaults.

    Args:
        rows: ``int64 [R]``, numbers of the rows.
        identity: ``uint64 [R]`` of :class:`~graphslice.chem.molecule_hash.MoleculeHashes`.
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
    """Combine molecule hashes with descriptor columns to keys of the model input.

    Args:
        identity: ``uint64 [R]``, hashes of the molecules.
        columns: ``float32 [R, K]``, nan where unknown; unknown values are equal to each other.

    Returns:
        ``uint64 [R]``, equal for rows with equal molecules and columns.
    """
    _, keys, counts = np.unique(identity, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(counts[keys] > 1)  # the others have no equal row, whatever their columns are
    numbers = columns[repeated] + np.float32(0)  # -0 is 0
    numbers[np.isnan(numbers)] = np.nan  # of one bit pattern
    words = np.column_stack([keys[repeated].astype(np.uint32), numbers.view(np.uint32)])
    keys[repeated] = len(counts) + np.unique(words, axis=0, return_inverse=True)[1].reshape(-1)
    return keys.astype(np.uint64)


def merge_rows(
    labels: Labels, rows: np.ndarray, identity: np.ndarray, classes: np.ndarray, names: Sequence[str]
) -> tuple[Labels, dict[int, str], int]:
    """Merge the rows of each molecule into its first: mean of numbers, closest bounds, majority vote of classes.

    A number takes precedence over bounds. If two classes have equally many votes, or bounds contradict each other, the
    label is unknown; if no label is left, all rows of the molecule are dropped.

    Args:
        labels: molecule-level labels of all rows.
        rows: ``int64 [R]``, the rows to be merged.
        identity: ``uint64 [R]``, hashes of these rows.
        classes: ``bool [T]``, true for classification targets.
        names: names of the targets.

    Returns:
        The labels, merged in the first row of each molecule; the reason of removal, by removed row: merged into another
        row, or labels that could not be merged; and the number of rows whose labels could not be merged.
    """
    values, bounds = labels.values.copy(), labels.bounds_or_infinite().copy()
    repeated, begins = _duplicate_rows(identity)
    reasons: dict[int, str] = {}
    dropped = 0
    for members in np.split(rows[repeated], begins[1:]) if len(begins) else ():
        first, *others = members.tolist()
        merged, tied = _merge(values[members], classes)
        merged_bounds, contradicting = _merge_bounds(bounds[members], merged)
        if np.isnan(merged).all() and not is_bounded(merged_bounds).any():
            problem = f"the majority vote of {names[tied[0]]!r} is tied" if tied else ""
            problem = problem or f"the bounds of {names[contradicting[0]]!r} contradict each other"
            reason = f"rows {_listed([first, *others])} are one molecule, and {problem}"
            reasons |= dict.fromkeys([first, *others], reason)
            dropped += len(members)
            continue
        values[first], bounds[first] = merged, merged_bounds
        reasons |= dict.fromkeys(others, f"{MERGED} {first + 1}")
    return Labels.of_molecules(values, bounds), reasons, dropped


def _listed(rows: Sequence[int]) -> str:
    """List row numbers, from 1, in words."""
    return ", ".join(str(row + 1) for row in rows[:_MAX_LISTED]) + ", ..." * (len(rows) > _MAX_LISTED)


def _merge(labels: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Merge labels ``[rows, T]`` to ``float64 [T]``, nan where unknown or tied; also return the tied targets."""
    known = ~np.isnan(labels)
    counts = known.sum(axis=0)
    merged = np.where(counts > 0, np.where(known, labels, 0.0).sum(axis=0) / np.maximum(counts, 1), np.nan)
    tied = []
    for t in np.flatnonzero(classes & (counts > 0)).tolist():
        values, votes = np.unique(labels[known[:, t], t], return_counts=True)
        merged[t] = values[votes.argmax()]
        if (votes == votes.max()).sum() > 1:
            merged[t] = np.nan
            tied.append(t)
    return merged, tied


def _merge_bounds(bounds: np.ndarray, merged: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Merge bounds ``[rows, T, 2]`` of labels that stay nan; also return the targets whose bounds contradict."""
    limits = np.stack([bounds[..., 0].max(axis=0), bounds[..., 1].min(axis=0)], axis=1)
    contradicting = limits[:, 0] > limits[:, 1]
    limits[contradicting | ~np.isnan(merged)] = UNBOUNDED
    return limits, np.flatnonzero(contradicting).tolist()


def _duplicate_rows(identity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of molecules with several rows, grouped by molecule, and the begin of each group."""
    _, inverse, counts = np.unique(identity, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(counts[inverse] > 1)
    rows = rows[np.argsort(inverse[rows], kind="stable")]
    return rows, pointers(counts[counts > 1])[:-1]
