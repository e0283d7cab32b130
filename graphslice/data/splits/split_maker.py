"""Splitting of a dataset into training, validation and test sets, or into cross-validation folds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.config import DataConfig
from graphslice.data.molecule_keys import fingerprint_rows, scaffold_keys
from graphslice.data.splits import SPLIT_METHODS, Splits
from graphslice.data.splits.clusters import MAX_CLUSTERED, butina_clusters
from graphslice.data.splits.grouped_split import GroupedRows, merge_groups
from graphslice.data.splits.stratification import missing_classes
from graphslice.data.store import GraphStore
from graphslice.errors import InputError
from graphslice.tasks import Task

_VALID_SHARE = _TEST_SHARE = 0.1
# Maximum share of the training rows that is taken for validation if the dataset names no validation set.
_MAX_VALID_SHARE = 0.25
_SET_NAMES = {"train": "training", "valid": "validation", "test": "test"}


class SplitMaker:
    """Splits the usable rows of a dataset.

    To avoid leakage, built-in splits never separate a family: a compound with its salts, tautomers and stereoisomers
    (:class:`~graphslice.chem.molecule_hash.MoleculeHashes`;
    :meth:`~graphslice.data.splits.grouped_split.GroupedRows.partition` assigns them). The methods are:

    - random split: 80 / 10 / 10 percent, stratified by the classes of classification targets. With several such
      targets, the rarest class of a row counts.
    - scaffold split: every Bemis-Murcko scaffold is in one split only. MoleculeNet's split (Wu et al. 2018) sorts the
      groups by size, is deterministic and puts all rare scaffolds into the test set. Here groups larger than half of
      the test set go to the training set, and the seed decides about the others: results can be averaged over seeds,
      and the test set does not consist of singletons only.
    - cluster split: every cluster of :func:`~graphslice.data.splits.clusters.butina_clusters` is in one split.

    Args:
        name: name of the dataset, for messages.
        store: all molecules.
        rows: ``int64 [R]``, usable rows, ascending.
        families: ``uint64 [R]``, family of each of these rows.
        labels: ``float64 [R, K]``, their class indices of the classification targets, nan where unknown.
        config: split method, seed and folds.
    """

    def __init__(
        self,
        name: str,
        store: GraphStore,
        rows: np.ndarray,
        families: np.ndarray,
        labels: np.ndarray,
        config: DataConfig,
    ) -> None:
        self.name, self.store, self.rows, self.families, self.labels = name, store, rows, families, labels
        self.seed = config.seed
        self.method = config.split if config.split in SPLIT_METHODS else "random"
        self.folds, self.repeats = config.folds_and_repeats
        self.fold, self.carve = config.fold or 0, config.carve

    def make(self, own: Splits | None) -> Splits:
        """Split the rows.

        A split that comes with the dataset is kept. If it has no validation set, one is taken from the training rows:
        a tenth of all usable rows, as in built-in splits, so that the validation error is equally precise, but at most
        a quarter of the training rows, in case the test set is large.

        Args:
            own: usable rows of each split by name, if the dataset comes with a split.

        Returns:
            Rows of each split by name.

        Raises:
            InputError: if the rows cannot be split as configured, or the training or validation set would be empty.
        """
        if own is not None and self.folds:
            raise InputError(
                f"{self.name} has its own split, which folds would replace: leave out folds, or choose "
                f"a split method with --split {', '.join(SPLIT_METHODS)}"
            )
        if own is None:
            grouped = self._grouped()
            splits = self._cross_validation_split(grouped) if self.folds else self._train_valid_test(grouped)
            self._check_not_empty(splits, grouped)
        elif len(own.get("train", ())) == 0:
            raise self._empty_split_error("training", "mark some rows as train")
        elif "valid" not in own:
            grouped = self._grouped().subset(own["train"])
            train, valid = self._split_off_validation(
                grouped, sum(map(len, own.values())), self._validation_rng(self.seed)
            )
            splits = {"train": train, "valid": valid, **{name: own[name] for name in own if name != "train"}}
            self._check_not_empty({"train": train, "valid": valid}, grouped)
        else:
            splits = own
            if len(splits["valid"]) == 0:
                raise self._empty_split_error(
                    "validation", "mark other rows as valid, or none to take them from the training set"
                )
        return splits

    def _train_valid_test(self, grouped: GroupedRows) -> Splits:
        rows = len(self.rows)
        valid, test = (max(1, int(rows * share)) for share in (_VALID_SHARE, _TEST_SHARE))
        parts = grouped.partition([max(0, rows - valid - test), valid, test], np.random.default_rng(self.seed))
        splits = dict(zip(("train", "valid", "test"), parts, strict=True))
        if self.carve > 0 and len(splits["train"]):  # the same test set, another validation set
            rest = grouped.subset(np.sort(np.concatenate([splits["train"], splits["valid"]])))
            splits["train"], splits["valid"] = rest.partition(
                [rows - valid - test, valid], self._validation_rng(self.seed)
            )
        return splits

    def _validation_rng(self, *seeds: int) -> np.random.Generator:
        """Random generator of the validation set; ``data.carve`` selects another one."""
        return np.random.default_rng([*seeds, self.carve] if self.carve else seeds[0])

    def _cross_validation_split(self, grouped: GroupedRows) -> Splits:
        """Split for one cross-validation fold: it is the test set; every repeat draws new folds."""
        repeat, held_out = divmod(self.fold, self.folds)
        rows = len(self.rows)
        want = [rows // self.folds + (fold < rows % self.folds) for fold in range(self.folds)]
        folds = grouped.partition(want, np.random.default_rng([self.seed, repeat]), training=False)
        if (empty := sum(len(fold) == 0 for fold in folds)) > 0:
            raise InputError(
                f"{self.name}: {empty} of {self.folds} folds would be empty, because its {rows} usable rows have only "
                f"{len(np.unique(grouped.groups))} different {self._group_noun(2)}: choose fewer folds"
            )
        rest = grouped.subset(np.concatenate([fold for index, fold in enumerate(folds) if index != held_out]))
        train, valid = self._split_off_validation(rest, rows, np.random.default_rng([self.seed, repeat, 1 + held_out]))
        return {"train": train, "valid": valid, "test": folds[held_out]}

    def _split_off_validation(
        self, grouped: GroupedRows, total_rows: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Split rows into training and validation set; the latter is a share of ``total_rows``."""
        rows = len(grouped.rows)
        valid = max(1, min(int(total_rows * _VALID_SHARE), int(rows * _MAX_VALID_SHARE)))
        return grouped.partition([max(0, rows - valid), valid], rng)

    # --- groups of rows that are not separated ----------------------------------------------------

    def _grouped(self) -> GroupedRows:
        """Group rows that stay in one part: families, merged with scaffolds or clusters by the split method."""
        groups = self.families
        if self.method == "scaffold":
            groups = merge_groups(scaffold_keys(self.store, self.rows), groups)
        elif self.method == "cluster":
            if len(self.rows) > MAX_CLUSTERED:
                raise InputError(
                    f"{self.name}: a cluster split compares all pairs of molecules and supports at most "
                    f"{MAX_CLUSTERED:,} rows, not {len(self.rows):,}: use --split scaffold"
                )
            groups = merge_groups(butina_clusters(fingerprint_rows(self.store, self.rows)), groups)
        _, group_ids = np.unique(groups, return_inverse=True)
        return GroupedRows(self.rows, group_ids, self.labels, stratified=self.method == "random")

    def _group_noun(self, count: int) -> str:
        noun = {"random": "molecule", "scaffold": "scaffold", "cluster": "cluster"}[self.method]
        return noun + "s" * (count != 1)

    # --- errors -----------------------------------------------------------------------------------

    def _check_not_empty(self, splits: Splits, grouped: GroupedRows) -> None:
        for split, members in splits.items():
            if len(members) == 0:
                groups = len(np.unique(grouped.groups))
                advice = (
                    "add molecules (salts and isomers count as one)"
                    if self.method == "random"
                    else "use --split random"
                )
                problem = f"{len(grouped.rows)} rows of {groups} {self._group_noun(groups)} cannot be split"
                raise self._empty_split_error(_SET_NAMES[split], f"{problem}: {advice}")

    def _empty_split_error(self, set_name: str, advice: str) -> InputError:
        usable = f"{len(self.rows)} of {len(self.store)} rows can be used"
        return InputError(f"{self.name}: the {set_name} set would be empty ({usable}): {advice}")

    def check_classes(self, train: np.ndarray, tasks: Sequence[Task]) -> None:
        """Check that the training set has every class of every classification target.

        Args:
            train: ``int64``, rows of the training set.
            tasks: tasks of the K targets.

        Raises:
            InputError: if it lacks a class.
        """
        for k, value in missing_classes(self.labels, np.isin(self.rows, train)):
            count = int((self.labels[:, k] == value).sum())
            raise InputError(
                f"{self.name}: no training row has the class {tasks[k].classes[int(value)]!r} of the target "
                f"{tasks[k].name!r}, which {count} other row{'s have' if count > 1 else ' has'}: add rows with it, "
                f"or use another split (--split {', '.join(SPLIT_METHODS)}, --seed)"
            )
