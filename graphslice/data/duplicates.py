"""Rows of one and the same input: how many there are, whether their labels agree, and one row made of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from graphslice.data.splits import Splits

# Labels of one molecule agree if they differ by no more than this part of the target's standard deviation.
_AGREEMENT_TOLERANCE = 0.1
# For a message: rows are named one by one up to so many.
_MAX_LISTED = 8


@dataclass(frozen=True)
class Duplicates:
    """What is repeated among the usable rows of a data set.

    Attributes:
        molecules: how many molecules have several rows, which are the same input of a model.
        rows: how many rows these have together.
        conflicting: how many of these molecules have labels that contradict each other: different values of a
            target that is a class, numbers that differ by more than a tenth of the target's standard deviation.
        shared: of the splits that the data bring: how many rows of a split are of the family of a row for training,
            the same but for salts, charges, tautomers and stereochemistry.
        merged: how many rows became part of another one.
        dropped: how many rows had labels that could not be merged.
    """

    molecules: int
    rows: int
    conflicting: int
    shared: dict[str, int] = field(default_factory=dict)
    merged: int = 0
    dropped: int = 0

    def describe(self) -> str | None:
        """One line for the user; None where nothing is repeated."""
        said = []
        if self.molecules:
            several = f"{self.rows:,} rows are of {_pluralize(self.molecules, 'molecule')} with several rows"
            said.append(f"{several}, {self.conflicting:,} of them with labels that contradict each other")
        if self.merged or self.dropped:
            dropped = f" and {self.dropped:,} left out" if self.dropped else ""
            said.append(f"of those for training, {self.merged:,} merged into another{dropped}")
        for split, rows in self.shared.items():
            if rows:
                alike = "that training has too, as itself, a salt, tautomer or stereoisomer"
                said.append(f"{_pluralize(rows, f'{split} row')} {alike}")
        return "; ".join(said) or None


def _pluralize(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def count_duplicates(identity: np.ndarray, targets: np.ndarray, classes: np.ndarray) -> Duplicates:
    """What is repeated among some rows; the attributes that speak of splits and merging are as if there were none.

    Args:
        identity: ``uint64 [R]`` of :class:`~graphslice.chem.molecule_hash.MoleculeHashes`.
        targets: ``float64 [R, T]``, nan where unknown.
        classes: ``bool [T]``, which of them are classes.
    """
    rows, begins = _duplicate_rows(identity)
    if not len(rows):
        return Duplicates(0, 0, 0)
    limit = np.where(classes, 0.0, _AGREEMENT_TOLERANCE * _standard_deviation(targets))
    contradicts = np.zeros(len(begins), bool)
    for t in range(targets.shape[1]):
        labels = targets[rows, t]
        known = ~np.isnan(labels)
        largest = np.maximum.reduceat(np.where(known, labels, -np.inf), begins)
        smallest = np.minimum.reduceat(np.where(known, labels, np.inf), begins)
        contradicts |= largest - smallest > limit[t]
    return Duplicates(len(begins), len(rows), int(contradicts.sum()))


def count_shared(splits: Splits, rows: np.ndarray, family: np.ndarray) -> dict[str, int]:
    """How many rows of each split but training are of the family of a row for training.

    Args:
        splits: among ``rows``.
        rows: ``int64 [R]``, ascending.
        family: ``uint64 [R]`` of these.
    """
    trained = family[np.searchsorted(rows, splits["train"])]
    others = {split: family[np.searchsorted(rows, members)] for split, members in splits.items() if split != "train"}
    return {split: int(np.isin(found, trained).sum()) for split, found in others.items()}


def keys_with_columns(identity: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Which rows are the same input of a model that reads numbers beside the molecule.

    Args:
        identity: ``uint64 [R]`` of the molecules.
        columns: ``float32 [R, K]``, nan where unknown: all unknown ones are the same.

    Returns:
        ``uint64 [R]``, equal for the rows in which both are.
    """
    numbers = np.where(np.isnan(columns), np.float32(np.nan), columns + np.float32(0))  # one nan, and no -0
    words = np.column_stack([identity, numbers.view(np.uint32).astype(np.uint64)])
    return np.unique(words, axis=0, return_inverse=True)[1].reshape(-1).astype(np.uint64)


@dataclass(frozen=True)
class Merged:
    """Rows made one of several.

    Attributes:
        targets: ``float64 [K, T]``, the labels of the rows that stand for several.
        rows: ``int64 [K]``, these rows, the first of each molecule.
        reasons: why each of the other rows is not used any more: merged with one of these, or not to be merged.
        dropped: how many of these were not to be merged.
    """

    targets: np.ndarray
    rows: np.ndarray
    reasons: dict[int, str]
    dropped: int


def merge_rows(
    rows: np.ndarray, identity: np.ndarray, targets: np.ndarray, classes: np.ndarray, names: Sequence[str]
) -> Merged:
    """Make one row of the rows of each molecule: numbers become their mean, classes the value of most rows.

    Where two values of a class have as many rows, there is no label; the rows of a molecule without any label left
    are dropped.

    Args:
        rows: ``int64 [R]``.
        identity: ``uint64 [R]`` of these rows.
        targets: ``float64 [R, T]`` of these rows, nan where unknown.
        classes: ``bool [T]``, which of them are classes.
        names: of the targets.
    """
    repeated, begins = _duplicate_rows(identity)
    kept: list[int] = []
    labels: list[np.ndarray] = []
    reasons: dict[int, str] = {}
    dropped = 0
    for members in np.split(repeated, begins[1:]) if len(begins) else ():
        numbers = rows[members].tolist()
        merged, tied = _merge(targets[members], classes)
        if np.isnan(merged).all():
            named = ", ".join(str(row + 1) for row in numbers[:_MAX_LISTED]) + ", ..." * (len(numbers) > _MAX_LISTED)
            why = f"rows {named} are one molecule, and as many say one value of {names[tied[0]]!r} as another"
            reasons |= dict.fromkeys(numbers, why)
            dropped += len(numbers)
            continue
        kept.append(numbers[0])
        labels.append(merged)
        reasons |= dict.fromkeys(numbers[1:], f"merged with row {numbers[0] + 1}")
    found = np.array(labels).reshape(-1, targets.shape[1])
    return Merged(found, np.array(kept, np.int64), reasons, dropped)


def _merge(labels: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """``float64 [T]``, one label a target of ``[rows, T]``, nan where unknown or tied; and which targets are tied."""
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


def _duplicate_rows(identity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of molecules that have several, molecule after molecule, and where each molecule begins among them."""
    _, inverse, counts = np.unique(identity, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(counts[inverse] > 1)
    rows = rows[np.argsort(inverse[rows], kind="stable")]
    sizes = counts[counts > 1]
    return rows, np.cumsum(np.concatenate([[0], sizes[:-1]])) if len(sizes) else np.empty(0, np.int64)


def _standard_deviation(targets: np.ndarray) -> np.ndarray:
    """``float64 [T]``, the standard deviation of each target; 0 of one without a label."""
    known = ~np.isnan(targets)
    counts = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, targets, 0.0).sum(axis=0) / counts
    return np.sqrt((np.where(known, targets - mean, 0.0) ** 2).sum(axis=0) / counts)
