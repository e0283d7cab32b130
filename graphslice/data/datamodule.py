"""Molecules of a labelled dataset: featurized, split and batched."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphslice.batch import GraphBatch
from graphslice.chem.descriptors import feature_column_names
from graphslice.config import MOLECULE, RunConfig
from graphslice.data.batches import BatchLoader, Progress, TrainBatches, eval_batches, extreme_batches, no_progress
from graphslice.data.columns import check_feature_columns
from graphslice.data.dataset import (
    UNLABELLED,
    ZERO_WEIGHT,
    LabelledDataset,
    check_usable,
    describe_reasons,
    usable_mask,
)
from graphslice.data.featurize import molecule_keys
from graphslice.data.labels import Labels
from graphslice.data.preprocess import cached_store
from graphslice.data.split_maker import (
    Duplicates,
    GroupedRows,
    SplitMaker,
    count_shared,
    find_duplicates,
    keys_with_columns,
)
from graphslice.data.splits import Splits, random_subset
from graphslice.errors import InputError, pluralize, quoted_list
from graphslice.tasks import (
    REGRESSION,
    Task,
    bounds_to_training_scale,
    expected_values,
    to_training_scale,
    transformed,
    transformed_back,
)

#: Smallest number of molecules for training and validation.
MIN_TRAINING = 10
# The distribution of the descriptors is estimated from at most this many training molecules.
_MAX_DESCRIPTOR_ROWS = 20_000


@dataclass(frozen=True)
class DeviceShare:
    """Device of a run, and its share of every batch; by default all of each, on a single CPU."""

    rank: int = 0
    world: int = 1
    kind: str = "cpu"  # type of the device, such as cpu or cuda
    precision: str = "32-true"  # 32-true, bf16-mixed or 16-mixed
    padding_multiple: int = 1  # of the width of a batch


class MoleculeData:
    """Featurized and split molecules of a labelled dataset, and their batches; ``rejected`` has the reasons by row.
    Atom- and bond-level labels are in the order of ``store``, ``labels`` on the training scale."""

    def __init__(
        self,
        dataset: LabelledDataset,
        config: RunConfig,
        progress: Progress = no_progress,
        splits: Splits | None = None,
    ) -> None:
        """Featurize and split the molecules; the ``splits`` of a resumed run override those of the configuration."""
        self.dataset, self.config = dataset, config
        self.rejected = dict(dataset.rejected)
        self._featurize(progress)
        if splits is None and config.data.rejected == "few":
            self._check_rejected()
        self._split(splits)
        self._transform(dataset.tasks)
        self._check_labels()

    def with_tasks(self, tasks: list[Task]) -> MoleculeData:
        """Return the same molecules with other transforms of the targets."""
        other = copy(self)
        other._transform(tasks)
        return other

    def _with(self, **changes: Any) -> MoleculeData:
        other = copy(self)
        vars(other).update(changes)
        return other

    def _transform(self, tasks: list[Task]) -> None:
        """Transform the labels as the tasks say, and mark positive targets; raise :class:`InputError` for a label that
        has no logarithm."""
        labels, train = self.dataset.all_labels, self.splits["train"]
        if (log := np.array([task.transform == "log" for task in tasks])).any():
            upper = np.fmin(labels.means(), np.inf if labels.bounds is None else labels.bounds[..., 1])
            for row, t in np.argwhere((upper <= 0) & log)[:1].tolist():
                raise InputError(
                    f"{self.dataset.name}: the target {tasks[t].name!r} is {upper[row, t]:g} in row {row + 1}, which "
                    "has no logarithm: leave out such values, or leave out data.transform"
                )
        bounds = None if labels.bounds is None else bounds_to_training_scale(labels.bounds, tasks)
        weights = None if labels.weights is None else labels.weights / labels.weights[train].mean()
        least = self.dataset.least_labels
        tasks = [replace(task, positive=bool(least[t] >= 0 and not task.classes)) for t, task in enumerate(tasks)]
        self.dataset = replace(self.dataset, tasks=tasks)
        self.labels = replace(labels, values=to_training_scale(labels.values, tasks), bounds=bounds, weights=weights)

    def _featurize(self, progress: Progress) -> None:
        cache = self.config.data.cache
        folder = None if cache is None else Path(cache)
        names = self.config.data.descriptors
        self.store = cached_store(self.dataset, self.config.graph, folder, progress, names)
        limit = self.config.graph.max_atoms
        for row in np.flatnonzero(self.store.sizes > limit).tolist():  # graphs come in any size
            self.rejected[row] = f"{self.store.sizes[row]} atoms, more than the limit of {limit}"
        self.rejected = self.store.faults | self.rejected
        if self.dataset.level != MOLECULE:
            self._to_graph_order(self.dataset.all_labels)
        self.usable_rows = np.flatnonzero(usable_mask(len(self.dataset), self.rejected))
        dataset = self.dataset
        check_usable(dataset.name, len(dataset), self.rejected, dataset.smiles_column, dataset.smiles)

    def _check_rejected(self) -> None:
        wrong = {row: reason for row, reason in self.rejected.items() if reason not in (UNLABELLED, ZERO_WEIGHT)}
        usable = len(self.usable_rows)
        if len(wrong) > usable:
            raise InputError(
                f"{self.dataset.name}: only {usable:,} of {usable + len(wrong):,} labelled rows can be used; "
                f"{describe_reasons(wrong, 'rejected')}: correct the table, or give data.rejected any to train on the "
                "other rows"
            )

    def _to_graph_order(self, labels: Labels) -> None:
        rows = np.arange(len(self.store))
        counts = np.where(self.store.sizes > 0, self.store.atom_bond_counts(labels.level, rows), -1)
        self.rejected = labels.length_errors(counts, self.dataset.target_names) | self.rejected
        self.dataset = replace(self.dataset, all_labels=labels.in_graph_order(counts, self.store.order(rows)))

    def _split(self, existing_splits: Splits | None) -> None:
        dataset, config = self.dataset, self.config.data
        usable = usable_mask(len(dataset), self.rejected)
        predefined = dataset.splits and {split: rows[usable[rows]] for split, rows in dataset.splits.items()}
        if dataset.is_pcqm4m and predefined is not None and not config.folds:
            existing_splits = predefined
        if existing_splits is not None:
            self.splits = {"valid": np.empty(0, np.int64), **existing_splits}
        else:
            maker = self._split_maker()
            self.splits = maker.make(predefined)
            maker.check_classes(self.splits["train"], dataset.tasks)
            if self.config.trainer.refit == "on":  # folds replace the validation set
                train = np.sort(np.concatenate([self.splits["train"], self.splits["valid"]]))
                self.splits |= {"train": train, "valid": np.empty(0, np.int64)}

    @property
    def duplicates(self) -> Duplicates:
        """Duplicates among the usable rows, whose numbers are compared on the scale of training."""
        if self.dataset.is_pcqm4m:
            return Duplicates(0, 0)  # millions of molecules, which are not searched
        rows, labels = self.usable_rows, self.labels
        identity, family = molecule_keys(self.store, rows)
        if feature_columns := feature_column_names(self.config.data.descriptors):
            identity = keys_with_columns(identity, self.store.descriptors(rows, feature_columns))
        bounds = None if labels.bounds is None else labels.bounds[rows]
        classes = np.array([bool(task.classes) for task in self.dataset.tasks])
        found = find_duplicates(rows, identity, labels[rows], classes, bounds, labels.counts_of(rows))
        return replace(found, shared=count_shared(self.splits, rows, family))

    def _split_maker(self) -> SplitMaker:
        rows, of_molecules = self.usable_rows, self.dataset.level == MOLECULE  # the means of others stratify nothing
        is_class = np.array([bool(task.classes) and of_molecules for task in self.dataset.tasks])
        families, labels = molecule_keys(self.store, rows).family, self.dataset.targets[rows]
        labels = np.where(is_class | np.isnan(labels), labels, 0.0)
        grouped = GroupedRows(rows, families, labels, stratified=is_class)
        return SplitMaker(self.dataset.name, self.store, grouped, self.config.data)

    def invalid_labels(self) -> dict[int, str]:
        """Return the reasons, by row, for the rows that are used without a label that is invalid."""
        return {row: reason for row, reason in self.dataset.invalid_labels.items() if row not in self.rejected}

    def inner_folds(self, folds: int) -> list[np.ndarray]:
        """Divide the training set into folds, as the dataset is split: ``int64`` rows of each. Folds are of families if
        a target is known in one scaffold or cluster alone, without whose fold nothing is learned of it."""
        maker, train = self._split_maker(), self.splits["train"]
        parts = maker.inner_folds(train, folds)
        known = ~np.isnan(self.dataset.targets[train])
        without = [known[~np.isin(train, part)].any(axis=0) for part in parts]
        if (known.any(axis=0) & ~np.all(without, axis=0)).any():
            parts = maker.inner_folds(train, folds, by_family=True)
        return parts

    def without(self, rows: np.ndarray) -> MoleculeData:
        """Return the same molecules with a smaller training set; ``rows``: ``int64``."""
        return self._with(splits=self.splits | {"train": np.setdiff1d(self.splits["train"], rows)})

    def without_test_set(self) -> MoleculeData:
        return self._with(splits={name: rows for name, rows in self.splits.items() if name != "test"})

    def with_config(self, config: RunConfig) -> MoleculeData:
        """Return the same molecules and split with other settings of the training."""
        return self._with(config=config)

    def check_split(self, config: RunConfig) -> None:
        """Raise :class:`InputError` if the molecules cannot be trained on when split as in another configuration."""
        resplit = self.with_config(config)
        resplit._split(None)
        resplit._transform(self.dataset.tasks)
        resplit._check_labels()
        resplit.check_size()

    @property
    def num_development_rows(self) -> int:
        """Number of rows for training and validation that have a label of a target."""
        rows = np.concatenate([self.splits["train"], self.splits["valid"]])
        return int(self.dataset.all_labels.known()[rows].sum())

    def check_size(self) -> None:
        """Raise :class:`InputError` if the training set and the validation set are too small."""
        count = self.num_development_rows
        if count >= MIN_TRAINING:
            return
        wrong = {row: reason for row, reason in self.rejected.items() if reason != UNLABELLED}
        rejected = f" ({describe_reasons(wrong, 'rejected')})" if wrong else ""
        raise InputError(
            f"{self.dataset.name}: {pluralize(count, 'molecule')} for training and validation, but at least "
            f"{MIN_TRAINING} are needed{rejected}: add labelled molecules, or hold out a smaller test set"
        )

    def _check_labels(self) -> None:
        auxiliary = [(labels, [*labels.names]) for labels in self.dataset.auxiliary.values()]
        for labels, names in [(self.labels, self.dataset.target_names), *auxiliary]:
            missing = np.isnan(labels[self.splits["train"]]).all(axis=0)
            if missing.any():
                unknown = quoted_list(np.array(names)[missing])
                raise InputError(
                    f"{self.dataset.name}: no training row has a value, other than bounds, of the target {unknown}: "
                    "leave it out"
                )
        columns = feature_column_names(self.config.data.descriptors)
        values = self.store.descriptors(self.splits["train"], columns)
        check_feature_columns(values, columns, f"{self.dataset.name} (training rows)")

    def number_labels(self, rows: np.ndarray) -> np.ndarray:
        """Return molecule-level labels ``[R, T]``, for training bounds :func:`~graphslice.tasks.expected_values`."""
        labels, bounds = self.dataset.targets[rows].copy(), self.dataset.bounds(rows)
        if bounds is None:
            return labels
        for t, task in enumerate(self.dataset.tasks):
            if task.kind == REGRESSION:
                scaled = transformed(labels[:, t], task)
                filled = expected_values(scaled, bounds_to_training_scale(bounds[:, t : t + 1], [task])[:, 0])
                labels[:, t] = np.where(np.isnan(scaled), transformed_back(filled, task), labels[:, t])
        return labels

    @property
    def train_labels(self) -> np.ndarray:
        """Labels of the training set on the training scale, ``float64 [R, T]``: one row per molecule, atom or bond."""
        return self.labels[self.splits["train"]]

    def train_auxiliary_labels(self) -> dict[str, Labels]:
        held_out = np.setdiff1d(np.arange(len(self.dataset)), self.splits["train"])
        return {level: labels.without(held_out) for level, labels in self.dataset.auxiliary.items()}

    def train_descriptors(self) -> np.ndarray:
        """Return descriptors of the training set, ``float32 [R, F]``; of more than 20,000 molecules a random sample."""
        rows = random_subset(self.splits["train"], _MAX_DESCRIPTOR_ROWS)
        return self.store.descriptors(rows, self.config.data.descriptors)

    def train_loader(self, share: DeviceShare, step: Callable[[], int]) -> BatchLoader:
        """Return a loader of the training batches of an epoch that remain after the optimiser steps of ``step()``."""
        return self._loader(self.splits["train"], self._train_batches(share, step), share)

    def num_train_widths(self, share: DeviceShare) -> int:
        """Return the number of distinct padded widths of the training batches of a device."""
        return len(self._train_batches(share).widths(share.padding_multiple))

    def extreme_train_batches(self, size: int, share: DeviceShare) -> list[GraphBatch]:
        """Collate a batch of the smallest and one of the largest training molecules, padded like training batches."""
        settings = self.config.collate_settings | {"multiple": share.padding_multiple}
        return extreme_batches(self.store, self.splits["train"], size, **settings)

    def _train_batches(self, share: DeviceShare, step: Callable[[], int] = lambda: 0) -> TrainBatches:
        settings, sizes = self.config.trainer, self.store.sizes[self.splits["train"]]
        return TrainBatches(sizes, settings.batch_size, settings.seed, share.rank, share.world, step)

    def eval_loader(self, split: str, share: DeviceShare) -> BatchLoader:
        """Return a loader of one split that yields every molecule once, on one of all devices."""
        rows = self.splits[split]
        batch_size = max(64, self.config.trainer.batch_size)
        return self._loader(rows, eval_batches(self.store.sizes[rows], batch_size, share.rank, share.world), share)

    def _loader(self, rows: np.ndarray, batches: TrainBatches | list[list[int]], share: DeviceShare) -> BatchLoader:
        workers = self.config.trainer.workers
        on_gpu = share.kind == "cuda"
        labels = {"targets": self.labels, "auxiliary": self.dataset.auxiliary}
        return BatchLoader(
            self.store,
            rows,
            batches,
            self.config.collate_settings | {"multiple": share.padding_multiple} | labels,
            # Without a GPU the model itself uses all cores.
            threads=int(workers) if workers != "auto" else 2 if on_gpu else 0,
            pin_memory=on_gpu,
        )
