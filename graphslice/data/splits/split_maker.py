"""The splits of some usable rows: those that the data bring, or those that are made."""

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
# Of the rows for training, the largest part that becomes validation where the data names none.
_MAX_VALID_SHARE = 0.25
_PURPOSES = {"train": "training", "valid": "validation", "test": "test"}


class SplitMaker:
    """Splits the usable rows of a data set.

    All rows of a family (see :class:`~graphslice.chem.molecule_hash.MoleculeHashes`) stay in one split of those that
    are made (:meth:`~graphslice.data.splits.grouped_split.GroupedRows.partition`). By method:

    - random: 80 / 10 / 10 percent, with the same shares of the values of targets that are classes; of several
      such targets a row's rarest value counts.
    - scaffold: no Bemis-Murcko scaffold in two splits. MoleculeNet's (Wu et al. 2018) sorts the groups by size and
      has one result, with all that is rare in the test. Here the groups above half of the test's size go to training
      and the others where the seed says: seeds can be averaged over, and the test is not of singletons alone.
    - cluster: no cluster of :func:`~graphslice.data.splits.clusters.butina_clusters` in two splits.

    Args:
        name: of the data, for messages.
        store: all molecules.
        rows: ``int64 [R]``, those that can be used, ascending.
        families: ``uint64 [R]`` of these rows.
        labels: ``float64 [R, K]``, their values of the targets that are classes.
        config: how to split.
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
        """The splits by name.

        Where the data has its own, they stay as they are, but for validation that it lacks: this is carved from
        the rows for training. It is a tenth of all usable rows, as many as in the splits that are made, so that the
        error that chooses a model is as sure; and a quarter of the training rows at most, where the test is large.

        Args:
            own: rows of each split by name where the data says so, among the usable ones.

        Raises:
            InputError: if they cannot be made, or one of those that training needs is empty.
        """
        if own is not None and self.folds:
            raise InputError(
                f"{self.name} has its own split, and folds need another one: leave out folds, or say how to "
                f"make them with --split {', '.join(SPLIT_METHODS)}"
            )
        if own is None:
            grouped = self._grouped()
            splits = self._fold(grouped) if self.folds else self._train_valid_test(grouped)
            self._check_not_empty(splits, grouped)
        elif len(own.get("train", ())) == 0:
            raise self._empty_split_error("training", "some rows must be named train")
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
                    "validation", "name other rows valid, or none: then some are taken from training"
                )
        return splits

    def _train_valid_test(self, grouped: GroupedRows) -> Splits:
        rows = len(self.rows)
        valid, test = (max(1, int(rows * share)) for share in (_VALID_SHARE, _TEST_SHARE))
        parts = grouped.partition([max(0, rows - valid - test), valid, test], np.random.default_rng(self.seed))
        splits = dict(zip(("train", "valid", "test"), parts, strict=True))
        if self.carve > 0 and len(splits["train"]):  # the same test, other validation
            rest = grouped.subset(np.sort(np.concatenate([splits["train"], splits["valid"]])))
            splits["train"], splits["valid"] = rest.partition(
                [rows - valid - test, valid], self._validation_rng(self.seed)
            )
        return splits

    def _validation_rng(self, *seeds: int) -> np.random.Generator:
        """What deals validation; another one for each choice of it."""
        return np.random.default_rng([*seeds, self.carve] if self.carve else seeds[0])

    def _fold(self, grouped: GroupedRows) -> Splits:
        """One fold as test, validation carved from the rest. A repeat deals the folds anew."""
        repeat, held_out = divmod(self.fold, self.folds)
        rows = len(self.rows)
        want = [rows // self.folds + (fold < rows % self.folds) for fold in range(self.folds)]
        folds = grouped.partition(want, np.random.default_rng([self.seed, repeat]), training=False)
        if (empty := sum(len(fold) == 0 for fold in folds)) > 0:
            raise InputError(
                f"{self.name}: {empty} of {self.folds} folds would be empty, for its {rows} usable rows are "
                f"{len(np.unique(grouped.groups))} {self._group_noun(2)}: choose fewer folds"
            )
        rest = grouped.subset(np.concatenate([fold for number, fold in enumerate(folds) if number != held_out]))
        train, valid = self._split_off_validation(rest, rows, np.random.default_rng([self.seed, repeat, 1 + held_out]))
        return {"train": train, "valid": valid, "test": folds[held_out]}

    def _split_off_validation(self, grouped: GroupedRows, of_all: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Rows for training and for validation."""
        rows = len(grouped.rows)
        valid = max(1, min(int(of_all * _VALID_SHARE), int(rows * _MAX_VALID_SHARE)))
        return grouped.partition([max(0, rows - valid), valid], rng)

    # --- which rows stay together -----------------------------------------------------------------

    def _grouped(self) -> GroupedRows:
        groups = self.families
        if self.method == "scaffold":
            groups = merge_groups(scaffold_keys(self.store, self.rows), groups)
        elif self.method == "cluster":
            if len(self.rows) > MAX_CLUSTERED:
                raise InputError(
                    f"{self.name}: a split by clusters compares all pairs of molecules, and {len(self.rows):,} "
                    f"are more than {MAX_CLUSTERED:,}: give --split scaffold"
                )
            groups = merge_groups(butina_clusters(fingerprint_rows(self.store, self.rows)), groups)
        _, numbers = np.unique(groups, return_inverse=True)
        return GroupedRows(self.rows, numbers, self.labels, stratified=self.method == "random")

    def _group_noun(self, count: int) -> str:
        noun = {"random": "molecule", "scaffold": "scaffold", "cluster": "cluster"}[self.method]
        return noun + "s" * (count != 1)

    # --- what is wrong ----------------------------------------------------------------------------

    def _check_not_empty(self, splits: Splits, grouped: GroupedRows) -> None:
        for split, members in splits.items():
            if len(members) == 0:
                groups = len(np.unique(grouped.groups))
                instead = (
                    "other molecules (salts and isomers count as one)" if self.method == "random" else "--split random"
                )
                of_what = f"{len(grouped.rows)} of {groups} {self._group_noun(groups)}"
                raise self._empty_split_error(_PURPOSES[split], f"{of_what} are too few to be split: give {instead}")

    def _empty_split_error(self, purpose: str, advice: str) -> InputError:
        usable = f"{len(self.rows)} of {len(self.store)} rows can be used"
        return InputError(f"{self.name}: no usable row is for {purpose} ({usable}): {advice}")

    def check_classes(self, train: np.ndarray, tasks: Sequence[Task]) -> None:
        """Refuse a split whose training rows lack a value of a target that is a class.

        Args:
            train: ``int64``, the rows for training.
            tasks: of the K targets.

        Raises:
            InputError: if one is lacking.
        """
        for k, value in missing_classes(self.labels, np.isin(self.rows, train)):
            having = int((self.labels[:, k] == value).sum())
            raise InputError(
                f"{self.name}: no training row has the class {tasks[k].classes[int(value)]!r} of the target "
                f"{tasks[k].name!r}, which {having} other row{'s have' if having > 1 else ' has'}: give more rows with "
                f"it, or split otherwise (--split {', '.join(SPLIT_METHODS)}, --seed)"
            )
