"""Splitting of a dataset into training, validation and test sets, or into cross-validation folds, and duplicate rows.

Groups of rows that must stay together (families, scaffolds, clusters of fingerprints) are assigned to the parts with
stratification of classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from graphslice.config import DataConfig
from graphslice.data.featurize import fingerprint_rows, scaffold_keys
from graphslice.data.labels import pointers
from graphslice.data.splits import SPLIT_METHODS, Splits, split_name
from graphslice.data.store import GraphStore
from graphslice.errors import InputError, pluralize, quoted_list
from graphslice.tasks import Task

#: Maximum number of molecules: the neighbour matrix has one bit per pair, 113 MB in total.
MAX_CLUSTERED = 30_000
#: Maximum Tanimoto distance of Morgan fingerprints between neighbours. In the demo set, one of 450 pairs is within this
#: distance, and the largest cluster has 3% of the rows (6% at 0.7, 23% at 0.8). DeepChem's Butina split uses 0.6 too.
MAX_DISTANCE = 0.6

# Rows compared with all others at a time; a multiple of 8.
_BLOCK_ROWS = 1_024


def butina_clusters(fingerprints: np.ndarray, distance: float = MAX_DISTANCE) -> np.ndarray:
    """Cluster ``bool [R, bits]`` within a Tanimoto ``distance`` by Taylor-Butina: ``int64 [R]``, from 0. The molecule
    with the most neighbours at the start (of several the last, as in RDKit) forms the next cluster with its unassigned
    neighbours."""
    rows = len(fingerprints)
    neighbours, counts = _neighbours(fingerprints, distance)
    clusters = np.full(rows, -1, np.int64)
    num_clusters = 0
    for row in np.lexsort((np.arange(rows), counts))[::-1].tolist():
        if clusters[row] < 0:
            near = np.flatnonzero(np.unpackbits(neighbours[row], count=rows))
            clusters[near[clusters[near] < 0]] = num_clusters
            num_clusters += 1
    return clusters


def _neighbours(fingerprints: np.ndarray, distance: float) -> tuple[np.ndarray, np.ndarray]:
    """Compute the neighbours of each row, itself included: bits ``uint8 [R, R / 8]`` and counts ``int64 [R]``."""
    bits = np.ascontiguousarray(fingerprints, np.float32)
    rows, sizes = len(bits), bits.sum(axis=1)
    neighbours, counts = np.zeros((rows, (rows + 7) // 8), np.uint8), np.zeros(rows, np.int64)
    for start in range(0, rows, _BLOCK_ROWS):  # each block is compared with itself and the later rows
        end = min(start + _BLOCK_ROWS, rows)
        both = bits[start:end] @ bits[start:].T
        either = sizes[start:end, None] + sizes[start:] - both
        # both / either >= 1 - distance, without division. Integers of this size are exact in float32.
        near = both >= np.float32(1 - distance) * either - np.float32(1e-4)
        neighbours[start:end, start // 8 :] = np.packbits(near, axis=1)
        counts[start:end] += near.sum(axis=1)
        after = near[:, end - start :]
        neighbours[end:, start // 8 : (end + 7) // 8] |= np.packbits(after.T, axis=1)
        counts[end:] += after.sum(axis=0)
    return neighbours, counts


def strata(labels: np.ndarray) -> np.ndarray:
    """Find the two rarest classes of labels ``float64 [R, K]`` (nan: unknown): ``int64 [R, 2]``, the rarest first. They
    are ranks over the classes of all targets, 0 for the rarest, the largest rank where there is none."""
    rows = len(labels)
    # Sort key of a class: its number of rows, then its index among all classes.
    keys = np.full((rows, max(2, labels.shape[1])), (rows + 1) * 2**32)
    num_classes = 0
    for k, column in enumerate(labels.T):
        known = ~np.isnan(column)
        _, which, counts = np.unique(column[known], return_inverse=True, return_counts=True)
        keys[known, k] = (counts * 2**32 + num_classes + np.arange(len(counts)))[which]
        num_classes += len(counts)
    two = np.partition(keys, 1, axis=1)[:, :2]
    return np.unique(two, return_inverse=True)[1].reshape(rows, 2)


def missing_classes(labels: np.ndarray, selected: np.ndarray) -> list[tuple[int, float]]:
    """Find the classes, as pairs of column and class index, that no row selected by ``bool [R]`` has."""
    missing = []
    for k, column in enumerate(labels.T):
        all_values, selected_values = set(np.unique(column).tolist()), set(np.unique(column[selected]).tolist())
        missing += [(k, value) for value in sorted(all_values - selected_values) if value == value]
    return missing


@dataclass(frozen=True)
class GroupedRows:
    """Rows to be split, with groups that must not be divided."""

    rows: np.ndarray  # int64 [R], ascending
    groups: np.ndarray  # [R], integers
    labels: np.ndarray  # float64 [R, T], classes, and 0 where a regression target is known; nan where unknown
    stratified: np.ndarray  # bool [T], targets whose classes are balanced over the parts

    def subset(self, rows: np.ndarray) -> GroupedRows:
        selected = np.isin(self.rows, rows)
        return replace(self, rows=self.rows[selected], groups=self.groups[selected], labels=self.labels[selected])

    def partition(self, want: list[int], rng: np.random.Generator, training: bool = True) -> list[np.ndarray]:
        """Return the rows of each part, ascending; their numbers match ``want`` up to the size of a group.

        1. Groups larger than half of the smallest part are assigned in descending order of size: to the training set
           while they fit, otherwise to the part with the most remaining capacity.
        2. The other groups follow in random order (if stratified, sorted by their rarest class, then by the second
           rarest). Each is assigned to the part that is furthest behind its share.
        3. An empty part receives the smallest group of a part that has several groups.
        4. For each class or regression target that the training set (the first part if ``training``) lacks, one group
           with it, the smallest, is moved.
        """
        _, members, sizes = np.unique(self.groups, return_inverse=True, return_counts=True)
        group_strata = np.zeros((len(sizes), 2), np.int64)
        if self.stratified.any():
            row_strata = strata(self.labels[:, self.stratified])
            order = np.lexsort((row_strata[:, 1], row_strata[:, 0], members))
            group_strata = row_strata[order[np.searchsorted(members[order], np.arange(len(sizes)))]]
        parts = _assign_groups(sizes, group_strata, want, rng, training)
        _fill_empty(parts, sizes, len(want))
        for k, value in missing_classes(self.labels, parts[members] == 0) if training else ():
            candidates = np.unique(members[self.labels[:, k] == value])
            if (parts[candidates] != 0).all():  # false if one was moved because of another class
                parts[candidates[sizes[candidates].argmin()]] = 0
        return [self.rows[parts[members] == part] for part in range(len(want))]


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
    """Merge two groupings ``[R]``: the connected components, ``int64 [R]``, of rows that share a group in either."""
    _, first = np.unique(first, return_inverse=True)
    _, second = np.unique(second, return_inverse=True)
    edges = coo_array((np.ones(len(first), bool), (first, len(first) + second)), shape=(2 * len(first),) * 2)
    return connected_components(edges, directed=False)[1][first].astype(np.int64)


# Maximum share of the training rows that is taken for validation if the dataset names no validation set.
_MAX_VALID_SHARE = 0.25


class SplitMaker:
    """Splits the usable rows of a dataset; built-in splits never separate a family, to avoid leakage.

    MoleculeNet's scaffold split (Wu et al. 2018) sorts the groups by size, is deterministic and puts all rare scaffolds
    into the test set. Here groups larger than half of the test set go to the training set, and the seed decides about
    the others: results can be averaged over seeds, and the test set does not consist of singletons only.
    """

    def __init__(self, name: str, store: GraphStore, families: GroupedRows, config: DataConfig) -> None:
        """``families`` are those of all usable rows, with the classification targets stratified."""
        self.name, self.store, self.families, self.rows = name, store, families, families.rows
        self.config, self.seed = config, config.seed
        _, self.valid_share, self.test_share = config.split_shares
        self.method = config.split if config.split in SPLIT_METHODS else "random"
        self.folds, _ = config.folds_and_repeats

    def make(self, own: Splits | None) -> Splits:
        """Split the rows, keeping ``own``, the split that comes with the dataset. If that has no validation set, one is
        taken from the training rows: a tenth of all usable rows, as in built-in splits, but at most a quarter of the
        training rows."""
        if own is None:
            grouped = self._grouped()
            splits = self._cross_validation_split(grouped) if self.folds else self._train_valid_test(grouped)
            self._check_not_empty(splits.items(), grouped)
            return splits
        if self.folds or self.config.split_sizes is not None:
            setting = "folds" if self.folds else "split_sizes"
            raise InputError(
                f"{self.name} has its own split: leave out data.{setting}, or choose a split method with data.split "
                f"{', '.join(SPLIT_METHODS)}"
            )
        own = {"train": np.empty(0, np.int64), **own}
        self._check_not_empty((name, rows) for name, rows in own.items() if name in ("train", "valid"))
        if "valid" in own:
            return own
        grouped = self._grouped().subset(own["train"])
        train, valid = self._split_off_validation(grouped, sum(map(len, own.values())), self._validation_rng())
        self._check_not_empty([("train", train), ("valid", valid)], grouped)
        return {"train": train, "valid": valid, **{name: own[name] for name in own if name != "train"}}

    def _train_valid_test(self, grouped: GroupedRows) -> Splits:
        rows = len(self.rows)
        valid = max(1, int(rows * self.valid_share))
        test = max(1, int(rows * self.test_share)) if self.test_share else 0
        want = {"train": max(0, rows - valid - test), "valid": valid} | ({"test": test} if test else {})
        parts = grouped.partition([*want.values()], np.random.default_rng(self.seed))
        splits = dict(zip(want, parts, strict=True))
        if self.config.carve > 0 and len(splits["train"]):  # the same test set, another validation set
            rest = grouped.subset(np.sort(np.concatenate([splits["train"], splits["valid"]])))
            splits["train"], splits["valid"] = rest.partition([rows - valid - test, valid], self._validation_rng())
        return splits

    def _validation_rng(self) -> np.random.Generator:
        """Random generator of the validation set; ``data.carve`` selects another one."""
        return np.random.default_rng([self.seed, self.config.carve] if self.config.carve else self.seed)

    def _cross_validation_split(self, grouped: GroupedRows) -> Splits:
        """Split for one cross-validation fold: it is the test set; every repeat draws new folds."""
        repeat, held_out = divmod(self.config.fold or 0, self.folds)
        rows = len(self.rows)
        want = [rows // self.folds + (fold < rows % self.folds) for fold in range(self.folds)]
        folds = grouped.partition(want, np.random.default_rng([self.seed, repeat]), training=False)
        self._check_not_empty((("test", fold) for fold in folds), grouped)
        rest = grouped.subset(np.concatenate([fold for index, fold in enumerate(folds) if index != held_out]))
        train, valid = self._split_off_validation(rest, rows, np.random.default_rng([self.seed, repeat, 1 + held_out]))
        return {"train": train, "valid": valid, "test": folds[held_out]}

    def inner_folds(self, rows: np.ndarray, folds: int, *, by_family: bool = False) -> list[np.ndarray]:
        """Divide usable rows, ascending, into folds of about equal size, fewer if there are fewer groups. ``by_family``
        keeps families together, but not scaffolds or clusters."""
        want = [len(rows) // folds + (fold < len(rows) % folds) for fold in range(folds)]
        random = np.random.default_rng([self.seed, *b"inner folds"])
        grouped = self.families if by_family else self._grouped()
        parts = grouped.subset(rows).partition(want, random, training=False)
        return [part for part in parts if len(part)]

    def _split_off_validation(
        self, grouped: GroupedRows, total_rows: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Split rows into training and validation set; the latter is a share of ``total_rows``."""
        rows = len(grouped.rows)
        valid = max(1, min(int(total_rows * self.valid_share), int(rows * _MAX_VALID_SHARE)))
        return grouped.partition([max(0, rows - valid), valid], rng)

    def _grouped(self) -> GroupedRows:
        """Group rows that stay in one part: families, merged with scaffolds or clusters by the split method."""
        groups = self.families.groups
        if self.method == "scaffold":
            groups = merge_groups(scaffold_keys(self.store, self.rows), groups)
        elif self.method == "cluster":
            if len(self.rows) > MAX_CLUSTERED:
                raise InputError(
                    f"{self.name}: a cluster split compares all pairs of molecules and supports at most "
                    f"{MAX_CLUSTERED:,} rows, not {len(self.rows):,}: use data.split scaffold"
                )
            groups = merge_groups(butina_clusters(fingerprint_rows(self.store, self.rows)), groups)
        return replace(self.families, groups=groups, stratified=self.families.stratified & (self.method == "random"))

    def _check_not_empty(self, splits: Iterable[tuple[str, np.ndarray]], grouped: GroupedRows | None = None) -> None:
        empty = [split_name(split) for split, rows in splits if len(rows) == 0]
        if not empty:
            return
        groups = ""
        if grouped is not None:
            kind = "molecule" if self.method == "random" else self.method
            groups = f", of {pluralize(len(np.unique(grouped.groups)), kind)} (salts and isomers count as one)"
        raise InputError(
            f"{self.name}: the {empty[0]} set would be empty; {len(self.rows)} of {len(self.store)} rows can be used"
            f"{groups}: add molecules, give data.split random, or fewer folds"
        )

    def check_classes(self, train: np.ndarray, tasks: Sequence[Task]) -> None:
        """Raise :class:`InputError` if the training rows lack a class of one of the T targets, which have the tasks."""
        labels = np.where(self.families.stratified, self.families.labels, np.nan)
        for k, value in missing_classes(labels, np.isin(self.rows, train)):
            count = int((labels[:, k] == value).sum())
            raise InputError(
                f"{self.name}: no training row has the class {tasks[k].classes[int(value)]!r} of the target "
                f"{tasks[k].name!r}, which {count} other row{'s have' if count > 1 else ' has'}: add rows with it, "
                f"or use another split (data.split {', '.join(SPLIT_METHODS)}, data.seed)"
            )


# Labels of one molecule agree if they differ by at most this fraction of the standard deviation of the target.
_AGREEMENT_TOLERANCE = 0.1


@dataclass(frozen=True)
class Duplicates:
    """Duplicates among the usable rows of a dataset: rows with the same model input."""

    molecules: int  # with several rows
    rows: int  # of all these molecules
    # Rows by molecule whose classes differ, or whose numbers differ by over a tenth of the standard deviation of the
    # target; bounds conflict if no number respects them.
    conflicting: tuple[tuple[int, ...], ...] = ()
    shared: dict[str, int] = field(default_factory=dict)  # rows by predefined split with a family of the training set

    def describe(self) -> str | None:
        """Return a one-line summary for the user; None if there are no duplicates."""
        clauses = []
        if self.molecules:
            clauses.append(
                f"{self.rows:,} rows of {pluralize(self.molecules, 'molecule')} are duplicates, "
                f"{pluralize(len(self.conflicting), 'molecule')} with conflicting labels"
            )
        if self.conflicting:
            first = [quoted_list((row + 1 for row in rows), 8, str) for rows in self.conflicting[:3]]
            clauses[-1] += (
                " (other classes, or numbers further apart than a tenth of the standard deviation): rows "
                f"{'; '.join(first)}"
            )
        if shared := {split_name(split): rows for split, rows in self.shared.items() if rows}:
            clauses.append(
                f"possible leakage: {' and '.join(pluralize(rows, f'{split} row') for split, rows in shared.items())} "
                "with a molecule of the training set, or a salt, tautomer or stereoisomer of one"
            )
        return "; ".join(clauses) or None


def find_duplicates(
    rows: np.ndarray,
    identity: np.ndarray,
    targets: np.ndarray,
    classes: np.ndarray,
    bounds: np.ndarray | None = None,
    counts: np.ndarray | None = None,
) -> Duplicates:
    """Find duplicates of :func:`keys_with_columns` among rows ``int64 [R]``, without ``shared``; ``targets``,
    ``float64 [R, T]``, are nan where unknown or in ``bounds [R, T, 2]``; ``classes``, ``bool [T]``: classification.
    Rows of atoms or bonds have ``counts int64 [R]`` labels, compared place by place."""
    _, molecule, sizes = np.unique(identity, return_inverse=True, return_counts=True)
    counts = np.ones(len(rows), np.int64) if counts is None else counts
    widths = np.zeros(len(sizes), np.int64)
    np.maximum.at(widths, molecule, counts)
    places = np.arange(len(targets)) - np.repeat(pointers(counts)[:-1], counts)
    slots = np.repeat(pointers(widths)[molecule], counts) + places  # of each label, one for each place of a molecule
    limit = np.where(classes, 0.0, _AGREEMENT_TOLERANCE * np.ma.masked_invalid(targets).std(axis=0).filled(0.0))
    differ = np.zeros(widths.sum(), bool)
    for t, labels in enumerate(targets.T):
        low, high = (-np.inf, np.inf) if bounds is None else bounds[:, t].T
        largest, smallest = np.full(len(differ), -np.inf), np.full(len(differ), np.inf)
        np.maximum.at(largest, slots, np.where(np.isnan(labels), low, labels))
        np.minimum.at(smallest, slots, np.where(np.isnan(labels), high, labels))
        differ |= largest - smallest > limit[t]
    conflicting = np.unique(np.repeat(np.arange(len(sizes)), widths)[differ])
    order, begins, repeated = np.argsort(molecule, kind="stable"), pointers(sizes), sizes[sizes > 1]
    conflicts = tuple(tuple(rows[order[begins[k] : begins[k + 1]]].tolist()) for k in conflicting.tolist())
    return Duplicates(len(repeated), int(repeated.sum()), conflicts)


def count_shared(splits: Splits, rows: np.ndarray, family: np.ndarray) -> dict[str, int]:
    """Detect leakage: count rows (``int64 [R]``, ascending) of held-out splits with a family of the training set."""
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
