"""Rows dealt out to the parts of a split, group by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphslice.data.splits.stratification import missing_classes, strata


@dataclass(frozen=True)
class GroupedRows:
    """Rows to be split, and which of them stay together.

    Attributes:
        rows: ``int64 [R]``, in ascending order.
        groups: ``int64 [R]``, rows with one number stay together.
        labels: ``float64 [R, K]`` of the targets that are classes, nan where unknown.
        stratified: whether the parts shall have the same shares of the values of the labels.
    """

    rows: np.ndarray
    groups: np.ndarray
    labels: np.ndarray
    stratified: bool

    def subset(self, rows: np.ndarray) -> GroupedRows:
        """Those of the rows that are among others."""
        kept = np.isin(self.rows, rows)
        return GroupedRows(self.rows[kept], self.groups[kept], self.labels[kept], self.stratified)

    def partition(self, want: list[int], rng: np.random.Generator, training: bool = True) -> list[np.ndarray]:
        """Deal the groups out to parts, as large as wanted to within a group.

        Groups that are larger than half of the smallest part come first, the largest first: to training while they
        fit there, else to where there is most room. The others follow at random (if stratified, by the rarest value
        that they have, then by the second rarest), each to the part that lags behind its share the most. A part
        that stays empty gets the smallest group of another one where that has several, and training gets a group
        with each value that it would lack.

        Args:
            want: rows of each part.
            rng: decides who goes where.
            training: whether the first part is that for training.

        Returns:
            The rows of each part, ascending.
        """
        _, members, sizes = np.unique(self.groups, return_inverse=True, return_counts=True)
        of_group = np.zeros((len(sizes), 2), np.int64)
        if self.stratified and self.labels.shape[1]:
            of_rows = strata(self.labels)
            order = np.lexsort((of_rows[:, 1], of_rows[:, 0], members))
            of_group = of_rows[order[np.searchsorted(members[order], np.arange(len(sizes)))]]
        parts = _assign_groups(sizes, of_group, want, rng, training)
        _fill_empty(parts, sizes, len(want))
        if training:
            self._cover_training_classes(parts, members, sizes)
        return [self.rows[parts[members] == part] for part in range(len(want))]

    def _cover_training_classes(self, parts: np.ndarray, members: np.ndarray, sizes: np.ndarray) -> None:
        """Move a group with each value that no row for training has to training."""
        for k, value in missing_classes(self.labels, parts[members] == 0):
            having = np.unique(members[self.labels[:, k] == value])
            if (parts[having] != 0).all():  # none was moved because of another value
                parts[having[sizes[having].argmin()]] = 0


def _assign_groups(
    sizes: np.ndarray, of_stratum: np.ndarray, want: list[int], rng: np.random.Generator, training: bool
):
    """``int64 [G]``, the part of each group; of those with one rarest value the first goes to training."""
    parts = np.zeros(len(sizes), np.int64)
    room = [float(rows) for rows in want]
    shuffled = rng.permutation(len(sizes))
    large = sizes[shuffled] > max(1, min(want) / 2)
    first = shuffled[large]
    for group in first[np.argsort(-sizes[first], kind="stable")].tolist():
        part = 0 if training and sizes[group] <= room[0] else room.index(max(room))
        parts[group] = part
        room[part] -= sizes[group]
    rest = shuffled[~large]
    rest = rest[np.lexsort((sizes[rest] == 1, of_stratum[rest, 1], of_stratum[rest, 0]))]  # single rows fill up
    left = sum(max(0.0, rows) for rows in room) or 1.0
    shares = [max(0.0, rows) / left for rows in room]
    due = [0.0] * len(want)
    before = -1
    for group, size, stratum in zip(rest.tolist(), sizes[rest].tolist(), of_stratum[rest, 0].tolist(), strict=True):
        best = -1
        for part, share in enumerate(shares):
            due[part] += share * size
            if room[part] >= size and (best < 0 or due[part] > due[best]):
                best = part
        if best < 0:
            best = room.index(max(room))
        if training and stratum != before and room[0] >= size:
            best = 0
        before = stratum
        parts[group] = best
        room[best] -= size
        due[best] -= size
    return parts


def _fill_empty(parts: np.ndarray, sizes: np.ndarray, count: int) -> None:
    """Give every part a group, where another part has several."""
    for part in range(count):
        held = np.bincount(parts, minlength=count)
        if held[part] == 0 and held.max() > 1:
            donors = np.flatnonzero(parts == held.argmax())
            parts[donors[sizes[donors].argmin()]] = part


def merge_groups(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Groups of rows that are together in one of two ways of grouping, directly or by way of others.

    Args:
        first, second: ``[R]``, numbers of groups.

    Returns:
        ``int64 [R]``.
    """
    _, first = np.unique(first, return_inverse=True)
    _, second = np.unique(second, return_inverse=True)
    label = first.astype(np.int64)
    while True:
        before = label
        for groups in (second, first):
            smallest = np.full(groups.max(initial=-1) + 1, len(label), np.int64)
            np.minimum.at(smallest, groups, label)
            label = smallest[groups]
        if np.array_equal(label, before):
            return label
