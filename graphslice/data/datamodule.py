"""LightningDataModule of a labelled dataset: featurizes, splits and batches the molecules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch

from graphslice.batch import GraphBatch
from graphslice.chem.descriptors import feature_column_names
from graphslice.config import MOLECULE, RunConfig
from graphslice.data.atom_bond_labels import AtomBondLabels
from graphslice.data.batch_loader import BatchLoader
from graphslice.data.batch_samplers import EvalBatches, TrainBatches
from graphslice.data.collate import collate_rows
from graphslice.data.duplicates import Duplicates, count_duplicates, count_shared, keys_with_columns, merge_rows
from graphslice.data.featurize import cached_store
from graphslice.data.labelled_dataset import UNLABELLED, LabelledDataset, usable_mask
from graphslice.data.molecule_keys import molecule_keys
from graphslice.data.splits import Splits, sample_rows
from graphslice.data.splits.split_maker import SplitMaker
from graphslice.errors import InputError
from graphslice.nn.compiled import row_multiple
from graphslice.tasks import to_training_scale
from graphslice.trees.stacking import TREE_DESCRIPTORS

# The distribution of the descriptors is estimated from at most this many training molecules.
_MAX_DESCRIPTOR_ROWS = 20_000


class MoleculeData(pl.LightningDataModule):
    """Data module that featurizes and splits a labelled dataset and provides its batches.

    Attributes:
        dataset: the labelled molecules; atom- and bond-level labels are in the atom and bond order of ``store``.
        splits: row numbers of each split, by name, without rejected rows.
        store: the featurized molecules, in the row order of the dataset.
        rejected: reason of rejection, by row.
        usable_rows: ``int64``, the rows that are not rejected.
        labels: ``float64`` ``[rows, T]`` on the training scale; or the atom- or bond-level labels of all rows.
        duplicates: counts of rows with identical model input (molecule and descriptor columns of the table).
    """

    def __init__(
        self,
        dataset: LabelledDataset,
        config: RunConfig,
        progress: Callable[[int], None] | None = None,
        splits: Splits | None = None,
    ) -> None:
        """Featurize and split the molecules.

        Args:
            dataset: labelled molecules.
            config: settings of featurization, splitting and batching.
            progress: called at intervals with the number of molecules that were read.
            splits: the splits of a resumed run; they override those of the dataset and of ``config``.

        Raises:
            InputError: if no row is usable, too many rows are rejected, or a target has no training label.
        """
        super().__init__()
        self.dataset, self.config = dataset, config
        self._train_loader: BatchLoader | None = None
        self.rejected = dict(dataset.rejected)
        self._featurize(progress)
        if splits is None and config.data.rejected == "few":
            self._check_rejected()
        self._split(splits)
        self.labels = self._network_labels()
        self._check_labels()

    def _featurize(self, progress: Callable[[int], None] | None) -> None:
        cache = self.config.data.cache
        folder, descriptors = None if cache is None else Path(cache), self.config.data.descriptors
        if self.config.trainer.baselines == "on":
            descriptors = tuple(dict.fromkeys([*descriptors, *TREE_DESCRIPTORS]))
        self.store = cached_store(self.dataset, self.config.graph, folder, progress, descriptors)
        limit = self.config.graph.max_atoms
        for row in np.flatnonzero(self.store.sizes > limit).tolist():  # graphs come in any size
            self.rejected[row] = f"{self.store.sizes[row]} atoms, more than the limit of {limit}"
        for row, reason in self.store.errors.items():
            self.rejected.setdefault(row, reason)
        if self.dataset.atom_bond_labels is not None:
            self._to_graph_order(self.dataset.atom_bond_labels)
        self.usable_rows = np.flatnonzero(usable_mask(len(self.dataset), self.rejected))
        if not len(self.usable_rows):
            row, reason = next(iter(sorted(self.rejected.items())))
            raise InputError(
                f"{self.dataset.name}: none of its {len(self.dataset)} rows can be used; row {row + 1}: {reason}"
            )

    def _check_rejected(self) -> None:
        """Raise :class:`InputError` if most labelled rows are rejected."""
        wrong = {row: reason for row, reason in sorted(self.rejected.items()) if reason != UNLABELLED}
        if len(wrong) <= len(self.usable_rows):
            return
        first: dict[str, int] = {}
        counts = Counter[str]()
        for row, reason in wrong.items():
            kind = re.sub(r"\d+", "", reason.split(":")[0])
            first.setdefault(kind, row)
            counts[kind] += 1
        examples = [
            f"{count:,} such as row {first[kind] + 1}, {wrong[first[kind]]}" for kind, count in counts.most_common(3)
        ]
        labelled = len(self.usable_rows) + len(wrong)
        raise InputError(
            f"{self.dataset.name}: only {len(self.usable_rows):,} of {labelled:,} labelled rows can be used; "
            f"rejected: {'; '.join(examples)}: correct the table, or give --rejected any to train on the other rows"
        )

    def _to_graph_order(self, atom_bond_labels: AtomBondLabels) -> None:
        """Sort atom- or bond-level labels into the atom or bond order of the store."""
        rows = np.arange(len(self.store))
        counts = np.where(self.store.sizes > 0, self.store.atom_bond_counts(self.dataset.level, rows), -1)
        self.rejected = atom_bond_labels.length_errors(counts, self.dataset.target_names) | self.rejected
        ordered = atom_bond_labels.in_graph_order(counts, self.store.order(rows))
        self.dataset = replace(self.dataset, atom_bond_labels=ordered)

    def _split(self, existing_splits: Splits | None) -> None:
        """Split the rows, count duplicates, and merge them if configured."""
        dataset, config = self.dataset, self.config.data
        predefined = self._predefined_splits()
        if dataset.is_pcqm4m and predefined is not None:  # millions of molecules with OGB's split: no duplicate check
            self.splits, self.duplicates = predefined, Duplicates(0, 0, 0)
            return
        targets = dataset.targets[self.usable_rows]
        # Atom- and bond-level targets are represented by their means, which cannot be used for stratification.
        classes = np.array([bool(task.classes) and dataset.level == MOLECULE for task in dataset.tasks])
        hashes = molecule_keys(self.store, self.usable_rows)
        feature_columns = feature_column_names(config.descriptors)
        identity = hashes.identity
        if feature_columns:
            identity = keys_with_columns(identity, self.store.descriptors(self.usable_rows, feature_columns))
        self.duplicates = count_duplicates(identity, targets, classes)
        if existing_splits is not None:
            self.splits = existing_splits
            return
        maker = SplitMaker(dataset.name, self.store, self.usable_rows, hashes.family, targets[:, classes], config)
        self.splits = maker.make(predefined)
        maker.check_classes(self.splits["train"], [dataset.tasks[t] for t in np.flatnonzero(classes)])
        if dataset.splits is not None:
            shared = count_shared(self.splits, self.usable_rows, hashes.family)
            self.duplicates = replace(self.duplicates, shared=shared)
        if config.duplicates == "merge":
            self._merge(identity, classes)

    def _predefined_splits(self) -> Splits | None:
        """Return the predefined splits of the dataset without rejected rows, None if it has none."""
        if self.dataset.splits is None:
            return None
        usable_rows = usable_mask(len(self.dataset), self.rejected)
        return {split: rows[usable_rows[rows]] for split, rows in self.dataset.splits.items()}

    def _merge(self, identity: np.ndarray, classes: np.ndarray) -> None:
        """Merge duplicate rows of the training set. Validation and test sets stay unchanged for evaluation."""
        rows = self.splits["train"]
        positions = np.searchsorted(self.usable_rows, rows)
        merged = merge_rows(rows, identity[positions], self.dataset.targets[rows], classes, self.dataset.target_names)
        targets = self.dataset.targets.copy()
        targets[merged.rows] = merged.targets
        self.dataset = replace(self.dataset, targets=targets)
        self.rejected |= merged.reasons
        removed = list(merged.reasons)
        self.usable_rows = np.setdiff1d(self.usable_rows, removed)
        self.splits = {**self.splits, "train": np.setdiff1d(rows, removed)}
        self.duplicates = replace(self.duplicates, merged=len(removed) - merged.dropped, dropped=merged.dropped)
        if not len(self.splits["train"]):
            raise InputError(
                f"{self.dataset.name}: all training rows have conflicting labels: give data.duplicates keep"
            )

    def _network_labels(self) -> np.ndarray | AtomBondLabels:
        dataset = self.dataset
        return (
            to_training_scale(dataset.targets, dataset.tasks)
            if dataset.atom_bond_labels is None
            else dataset.atom_bond_labels
        )

    def check_split(self, config: RunConfig) -> None:
        """Raise :class:`InputError` if the molecules cannot be trained on when split as in another configuration.

        Args:
            config: configuration of the other run.
        """
        resplit = copy(self)
        resplit.config, resplit.rejected = config, dict(self.rejected)
        resplit._split(None)
        resplit.labels = resplit._network_labels()
        resplit._check_labels()

    def _check_labels(self) -> None:
        missing = np.isnan(self.train_labels).all(axis=0)
        if missing.any():
            empty = self.dataset.target_names[int(np.flatnonzero(missing)[0])]
            folds = " or give fewer folds" if self.config.data.folds else ""
            raise InputError(
                f"{self.dataset.name}: no training row has a value of the target {empty!r}: leave it out{folds}"
            )
        columns, rows = feature_column_names(self.config.data.descriptors), self.splits["train"]
        if columns and (empty_columns := np.isnan(self.store.descriptors(rows, columns)).all(axis=0)).any():
            raise InputError(
                f"{self.dataset.name}: no training row has a number in the column "
                f"{columns[empty_columns.argmax()]!r} of --features: leave it out"
            )
        for labels in self.dataset.auxiliary.values():
            missing = np.isnan(labels[self.splits["train"]]).all(axis=0)
            if missing.any():
                raise InputError(
                    f"{self.dataset.name}: no training row has a value of the target {labels.names[missing.argmax()]!r}"
                )

    @property
    def train_labels(self) -> np.ndarray:
        """Labels of the training set on the training scale, ``float64 [R, T]``: one row per molecule, atom or bond."""
        return self.labels[self.splits["train"]]

    def train_auxiliary_labels(self) -> dict[str, AtomBondLabels]:
        """Return the auxiliary labels of the training set, by level."""
        held_out = np.setdiff1d(np.arange(len(self.dataset)), self.splits["train"])
        return {level: labels.without(held_out) for level, labels in self.dataset.auxiliary.items()}

    def train_descriptors(self) -> np.ndarray:
        """Return descriptors of the training set, ``float32 [R, F]``; of more than 20,000 molecules a random sample."""
        rows = sample_rows(self.splits["train"], _MAX_DESCRIPTOR_ROWS, np.random.default_rng(0))
        return self.store.descriptors(rows, self.config.data.descriptors)

    def train_dataloader(self) -> BatchLoader:
        rows = self.splits["train"]
        self._train_loader = self._loader(rows, self._train_batches(rows))
        return self._train_loader

    def num_train_widths(self) -> int:
        """Return the number of distinct padded widths of the training batches on this device."""
        return len(self._train_batches(self.splits["train"]).widths(self._padding_multiple()))

    def extreme_train_batches(self, size: int) -> list[GraphBatch]:
        """Collate a batch of the smallest and one of the largest training molecules, padded like training batches.

        Args:
            size: molecules per batch; molecules are repeated if the training set has fewer.
        """
        rows = self.splits["train"]
        order = rows[np.argsort(self.store.sizes[rows], kind="stable")]
        settings = self.config.collate_settings | {"multiple": self._padding_multiple()}
        extremes = (np.resize(order, size), np.resize(order[::-1], size))
        return [collate_rows(self.store, rows, **settings) for rows in extremes]

    def _train_batches(self, rows: np.ndarray) -> TrainBatches:
        trainer = self._trainer()
        return TrainBatches(
            self.store.sizes[rows],
            self.config.trainer.batch_size,
            self.config.trainer.seed,
            trainer.global_rank,
            trainer.world_size,
            lambda: trainer.global_step,
        )

    def loader_wait_seconds(self) -> float:
        """Return the seconds spent so far waiting for the threads that prepare training batches."""
        return 0.0 if self._train_loader is None else self._train_loader.wait_seconds

    def val_dataloader(self) -> BatchLoader:
        trainer = self._trainer()
        return self.eval_dataloader("valid", trainer.global_rank, trainer.world_size)

    def eval_dataloader(self, split: str, rank: int = 0, world: int = 1) -> BatchLoader:
        """Return a loader of one split that yields every molecule once.

        Args:
            split: name of the split.
            rank: index of this device.
            world: number of devices among which the batches are divided.
        """
        rows = self.splits[split]
        batch_size = max(64, self.config.trainer.batch_size)
        return self._loader(rows, EvalBatches(self.store.sizes[rows], batch_size, rank, world))

    def _loader(self, rows: np.ndarray, batches: TrainBatches | EvalBatches) -> BatchLoader:
        return BatchLoader(
            self.store,
            rows,
            batches,
            self.config.collate_settings | {"multiple": self._padding_multiple()},
            targets=self.labels,
            auxiliary=self.dataset.auxiliary,
            threads=self._threads(),
            pin_memory=self._on_gpu(),
        )

    def _trainer(self) -> pl.Trainer:
        assert self.trainer is not None, "training batches need an attached trainer"
        return self.trainer

    def _on_gpu(self) -> bool:
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def _padding_multiple(self) -> int:
        if not self._on_gpu():
            return 1
        return row_multiple("cuda", torch.float32 if "32" in str(self._trainer().precision) else torch.bfloat16)

    def _threads(self) -> int:
        if self.config.trainer.workers != "auto":
            return int(self.config.trainer.workers)
        return 2 if self._on_gpu() else 0  # without a GPU the model itself uses all cores
