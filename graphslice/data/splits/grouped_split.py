"""Assignment of groups of rows to the parts of a split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphslice.data.splits.stratification import missing_classes, strata


@dataclass(frozen=True)
class GroupedRows:
    """Rows to be split, with groups that must not be divided.

    Attributes:
        rows: ``int64 [R]``, in ascending order.
        groups: ``int64 [R]``, group index of each row; rows of one group stay in one part.
        labels: ``float64 [R, K]``, class indices of the classification targets, nan where unknown.
        stratified: balance the classes over the parts.
    """

    rows: np.ndarray
    groups: np.ndarray
    labels: np.ndarray
    stratified: bool

    def subset(self, rows: np.ndarray) -> GroupedRows:
        """Restrict to the given rows."""
        selected = np.isin(self.rows, rows)
        return GroupedRows(self.rows[selected], self.groups[selected], self.labels[selected], self.stratified)

    def partition(self, want: list[int], rng: np.random.Generator, training: bool = True) -> list[np.ndarray]:
        """Assign the groups to parts, matching the requested sizes up to the size of a group.

        1. Groups larger than half of the smallest part are assigned in descending order of size: to the training set
           while they fit, otherwise to the part with the most remaining capacity.
        2. The other groups follow in random order (if stratified, sorted by their rarest class, then by the second
           rarest). Each is assigned to the part that is furthest behind its share.
        3. An empty part receives the smallest group of a part that has several groups.
        4. For each class that the training set lacks, one group with it is moved to the training set.

        Args:
            want: requested number of rows of each part.
            rng: random generator.
            training: the first part is the training set.

        Returns:
            The rows of each part, in ascending order.
        """
        _, members, sizes = np.unique(self.groups, return_inverse=True, return_counts=True)
        group_strata = np.zeros((len(sizes), 2), np.int64)
        if self.stratified and self.labels.shape[1]:
            row_strata = strata(self.labels)
            order = np.lexsort((row_strata[:, 1], row_strata[:, 0], members))
            group_strata = row_strata[order[np.searchsorted(members[order], np.arange(len(sizes)))]]
        parts = _assign_groups(sizes, group_strata, want, rng, training)
        _fill_empty(parts, sizes, len(want))
        if training:
            self._cover_training_classes(parts, members, sizes)
        return [self.rows[parts[members] == part] for part in range(len(want))]

    def _cover_training_classes(self, parts: np.ndarray, members: np.ndarray, sizes: np.ndarray) -> None:
        """For each class that the training set lacks, move the smallest group with it to the training set."""
        for k, value in missing_classes(self.labels, parts[members] == 0):
            candidates = np.unique(members[self.labels[:, k] == value])
            if (parts[candidates] != 0).all():  # false if one was moved because of another class
                parts[candidates[sizes[candidates].argmin()]] = 0


def _assign_groups(
    sizes: np.ndarray, group_strata: np.ndarray, want: list[int], rng: np.random.Generator, training: bool
):
    """Return the part of each group, ``int64 [G]``; the first group of every rarest class goes to the training set."""
    parts = np.zeros(len(sizes), np.int64)
    capacity = [float(rows) for rows in want]
    shuffled = rng.permutation(len(sizes))
    large = sizes[shuffled] > max(1, min(want) / 2)
    first = shuffled[large]
    for group in first[np.argsort(-sizes[first], kind="stable")].tolist():
        part = 0 if training and sizes[group] <= capacity[0] else capacity.index(max(capacity))
        parts[group] = part
        capacity[part] -= sizes[group]
    rest = shuffled[~large]
    rest = rest[np.lexsort((sizes[rest] == 1, group_strata[rest, 1], group_strata[rest, 0]))]  # single rows fill gaps
    remaining = sum(max(0.0, rows) for rows in capacity) or 1.0
    shares = [max(0.0, rows) / remaining for rows in capacity]
    due = [0.0] * len(want)
    previous = -1
    for group, size, stratum in zip(rest.tolist(), sizes[rest].tolist(), group_strata[rest, 0].tolist(), strict=True):
        best = -1
        for part, share in enumerate(shares):
            due[part] += share * size
            if capacity[part] >= size and (best < 0 or due[part] > due[best]):
                best = part
        if best < 0:
            best = capacity.index(max(capacity))
        if training and stratum != previous and capacity[0] >= size:
            best = 0
        previous = stratum
        parts[group] = best
        capacity[best] -= size
        due[best] -= size
    return parts


def _fill_empty(parts: np.ndarray, sizes: np.ndarray, count: int) -> None:
    """Give every empty part the smallest group of the part with the most groups, if that has several."""
    for part in range(count):
        group_counts = np.bincount(parts, minlength=count)
        if group_counts[part] == 0 and group_counts.max() > 1:
            donors = np.flatnonzero(parts == group_counts.argmax())
            parts[donors[sizes[donors].argmin()]] = part


def merge_groups(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Merge two groupings: the connected components of rows that share a group in either of them.

    Args:
        first: ``[R]``, group of each row.
        second: ``[R]``, group of each row.

    Returns:
        ``int64 [R]``, merged group of each row.
    """
    _, first = np.unique(first, return_inverse=True)
    _, second = np.unique(second, return_inverse=True)
    label = first.astype(np.int64)
    while True:
        previous = label
        for groups in (second, first):
            smallest = np.full(groups.max(initial=-1) + 1, len(label), np.int64)
            np.minimum.at(smallest, groups, label)
            label = smallest[groups]
        if np.array_equal(label, previous):
            return label
