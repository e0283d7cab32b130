"""LightningDataModule: labelled molecules, featurized, split and batched."""

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
from graphslice.data.atom_bond_order import to_graph_order
from graphslice.data.batch_loader import BatchLoader, EvalBatches, TrainBatches
from graphslice.data.collate import collate_rows
from graphslice.data.duplicates import Duplicates, count_duplicates, count_shared, keys_with_columns, merge_rows
from graphslice.data.featurize import cached_store
from graphslice.data.labelled_dataset import UNLABELLED, LabelledDataset, usable_mask
from graphslice.data.molecule_keys import molecule_keys
from graphslice.data.splits import Splits
from graphslice.data.splits.split_maker import SplitMaker
from graphslice.errors import InputError
from graphslice.nn.compiled import row_multiple
from graphslice.tasks import to_training_scale
from graphslice.trees.stacking import TREE_DESCRIPTORS

# Training molecules whose descriptors say how those of all are distributed.
_MAX_DESCRIPTOR_ROWS = 20_000


class MoleculeData(pl.LightningDataModule):
    """Featurizes a source, splits it and serves batches.

    Attributes:
        source: where the molecules come from; labels of atoms and bonds are in the order of those of ``store``.
        splits: rows of each split by name, rejected rows left out.
        store: the molecules, row by row as the source has them.
        rejected: reason by row.
        kept: ``int64``, the other rows.
        labels: ``float64`` ``[rows, T]``, as the network learns them; or those of the atoms or bonds of all rows.
        duplicates: rows of one and the same input: a molecule, with the table's own columns that are read beside it.
    """

    def __init__(
        self,
        dataset: LabelledDataset,
        config: RunConfig,
        progress: Callable[[int], None] | None = None,
        splits: Splits | None = None,
    ) -> None:
        """Read and split the molecules.

        Args:
            source: labelled molecules.
            config: how they are read, split and batched.
            progress: called with the number of molecules read, from time to time.
            splits: of a run that goes on, as it began; in place of those that the source and ``config`` say.
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
        """Raise :class:`InputError` if most rows that have a label are rejected; rows without one do not count."""
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
            f"{self.dataset.name}: only {len(self.usable_rows):,} of {labelled:,} rows that have a label can be used; "
            f"rejected: {'; '.join(examples)}: correct the table, or give --rejected any to train on the others"
        )

    def _to_graph_order(self, atom_bond_labels: AtomBondLabels) -> None:
        """Bring labels of atoms or bonds into the order of the store."""
        atom_bond_labels, faults = to_graph_order(
            atom_bond_labels, self.dataset.smiles, self.config.graph, self.dataset.target_names
        )
        self.dataset = replace(self.dataset, atom_bond_labels=atom_bond_labels)
        self.rejected = faults | self.rejected

    def _split(self, existing_splits: Splits | None) -> None:
        """Split the rows, count what is repeated among them, and merge it where that is asked for."""
        dataset, config = self.dataset, self.config.data
        own = self._predefined_splits()
        if dataset.is_pcqm4m and own is not None:  # OGB's, of millions of molecules: nothing is to be said of it
            self.splits, self.duplicates = own, Duplicates(0, 0, 0)
            return
        targets = dataset.targets[self.usable_rows]
        # Of atoms and bonds there are means here, by which no split can be stratified.
        classes = np.array([bool(task.classes) and dataset.level == MOLECULE for task in dataset.tasks])
        hashes = molecule_keys(self.store, self.usable_rows)
        beside = feature_column_names(config.descriptors)
        identity = hashes.identity
        if beside:
            identity = keys_with_columns(identity, self.store.descriptors(self.usable_rows, beside))
        self.duplicates = count_duplicates(identity, targets, classes)
        if existing_splits is not None:
            self.splits = existing_splits
            return
        maker = SplitMaker(dataset.name, self.store, self.usable_rows, hashes.family, targets[:, classes], config)
        self.splits = maker.make(own)
        maker.check_classes(self.splits["train"], [dataset.tasks[t] for t in np.flatnonzero(classes)])
        if dataset.splits is not None:
            shared = count_shared(self.splits, self.usable_rows, hashes.family)
            self.duplicates = replace(self.duplicates, shared=shared)
        if config.duplicates == "merge":
            self._merge(identity, classes)

    def _predefined_splits(self) -> Splits | None:
        """The splits that the source names, without rejected rows."""
        if self.dataset.splits is None:
            return None
        usable_rows = usable_mask(len(self.dataset), self.rejected)
        return {split: rows[usable_rows[rows]] for split, rows in self.dataset.splits.items()}

    def _merge(self, identity: np.ndarray, classes: np.ndarray) -> None:
        """One row of those for training of a molecule. The other splits stay as they are: a model is judged by them."""
        rows = self.splits["train"]
        of_rows = np.searchsorted(self.usable_rows, rows)
        merged = merge_rows(rows, identity[of_rows], self.dataset.targets[rows], classes, self.dataset.target_names)
        targets = self.dataset.targets.copy()
        targets[merged.rows] = merged.targets
        self.dataset = replace(self.dataset, targets=targets)
        self.rejected |= merged.reasons
        gone = list(merged.reasons)
        self.usable_rows = np.setdiff1d(self.usable_rows, gone)
        self.splits = {**self.splits, "train": np.setdiff1d(rows, gone)}
        self.duplicates = replace(self.duplicates, merged=len(gone) - merged.dropped, dropped=merged.dropped)
        if not len(self.splits["train"]):
            raise InputError(
                f"{self.dataset.name}: all rows for training contradict each other: give data.duplicates keep"
            )

    def _network_labels(self) -> np.ndarray | AtomBondLabels:
        dataset = self.dataset
        return (
            to_training_scale(dataset.targets, dataset.tasks)
            if dataset.atom_bond_labels is None
            else dataset.atom_bond_labels
        )

    def check_split(self, config: RunConfig) -> None:
        """Raise :class:`InputError` if the same molecules, split as another run wants it, cannot be learned."""
        other = copy(self)
        other.config, other.rejected = config, dict(self.rejected)
        other._split(None)
        other.labels = other._network_labels()
        other._check_labels()

    def _check_labels(self) -> None:
        missing = np.isnan(self.train_labels).all(axis=0)
        if missing.any():
            empty = self.dataset.target_names[int(np.flatnonzero(missing)[0])]
            folds = " or give fewer folds" if self.config.data.folds else ""
            raise InputError(
                f"{self.dataset.name}: no training row has a value of the target {empty!r}: leave it out{folds}"
            )
        own, rows = feature_column_names(self.config.data.descriptors), self.splits["train"]
        if own and (empty_columns := np.isnan(self.store.descriptors(rows, own)).all(axis=0)).any():
            raise InputError(
                f"{self.dataset.name}: no training row has a number in the column {own[empty_columns.argmax()]!r} of "
                "--features: leave it out"
            )
        for labels in self.dataset.auxiliary.values():
            missing = np.isnan(labels[self.splits["train"]]).all(axis=0)
            if missing.any():
                raise InputError(
                    f"{self.dataset.name}: no training row has a value of the target {labels.names[missing.argmax()]!r}"
                )

    @property
    def train_labels(self) -> np.ndarray:
        """``float64 [R, T]`` of the training molecules, or of all their atoms or bonds, as the network learns them."""
        return self.labels[self.splits["train"]]

    def train_auxiliary_labels(self) -> dict[str, AtomBondLabels]:
        """The auxiliary labels of the training molecules, by level."""
        others = np.setdiff1d(np.arange(len(self.dataset)), self.splits["train"])
        return {level: labels.without(others) for level, labels in self.dataset.auxiliary.items()}

    def train_descriptors(self) -> np.ndarray:
        """``float32 [R, F]``, the descriptors of the training molecules, of many thousand a part drawn at random."""
        rows = self.splits["train"]
        if len(rows) > _MAX_DESCRIPTOR_ROWS:
            rows = np.sort(np.random.default_rng(0).choice(rows, _MAX_DESCRIPTOR_ROWS, replace=False))
        return self.store.descriptors(rows, self.config.data.descriptors)

    def train_dataloader(self) -> BatchLoader:
        rows = self.splits["train"]
        self._train_loader = self._loader(rows, self._train_batches(rows))
        return self._train_loader

    def num_train_widths(self) -> int:
        """How many different numbers of rows the training batches of this device have."""
        return len(self._train_batches(self.splits["train"]).widths(self._padding_multiple()))

    def extreme_train_batches(self, size: int) -> list[GraphBatch]:
        """The smallest training molecules and the largest, some of them again where there are fewer than ``size``;
        padded as training batches are."""
        rows = self.splits["train"]
        order = rows[np.argsort(self.store.sizes[rows], kind="stable")]
        settings = self.config.collate_settings | {"multiple": self._padding_multiple()}
        some = (np.resize(order, size), np.resize(order[::-1], size))
        return [collate_rows(self.store, rows, **settings) for rows in some]

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
        """Spent waiting for the threads that prepare training batches, so far."""
        return 0.0 if self._train_loader is None else self._train_loader.wait_seconds

    def val_dataloader(self) -> BatchLoader:
        trainer = self._trainer()
        return self.eval_dataloader("valid", trainer.global_rank, trainer.world_size)

    def eval_dataloader(self, split: str, rank: int = 0, world: int = 1) -> BatchLoader:
        """Every molecule of a split once."""
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
        assert self.trainer is not None, "batches for training are served to a trainer"
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
        return 2 if self._on_gpu() else 0  # without a GPU the cores are busy with the model
