"""LightningDataModule: labelled molecules, featurized, split and batched."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch

from graphslice.batch import GraphBatch
from graphslice.chem.descriptors import own_of
from graphslice.config import MOLECULE, RunConfig
from graphslice.data.collate import collate_rows
from graphslice.data.duplicates import Duplicates, count_duplicates, count_shared, merge_rows, with_columns
from graphslice.data.featurize import store_of
from graphslice.data.hashes import hash_rows
from graphslice.data.loader import BatchLoader, EvalBatches, TrainBatches
from graphslice.data.site_orders import ordered
from graphslice.data.sites import SiteLabels
from graphslice.data.source import Source, usable
from graphslice.data.splits import Splits
from graphslice.data.splits.making import SplitMaker
from graphslice.errors import InputError
from graphslice.nn.compiled import row_multiple
from graphslice.tasks import to_network
from graphslice.trees.beside import KINDS

# Training molecules whose descriptors say how those of all are distributed.
_MOST_DESCRIBED = 20_000


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
        source: Source,
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
        self.source, self.config = source, config
        self._train_loader: BatchLoader | None = None
        self.rejected = dict(source.rejected)
        self._featurize(progress)
        self._split(splits)
        self.labels = self._learned()
        self._check_labels()

    def _featurize(self, progress: Callable[[int], None] | None) -> None:
        cache = self.config.data.cache
        folder, descriptors = None if cache is None else Path(cache), self.config.data.descriptors
        if self.config.trainer.baselines == "on":
            descriptors = tuple(dict.fromkeys([*descriptors, *KINDS]))
        self.store = store_of(self.source, self.config.graph, folder, progress, descriptors)
        limit = self.config.graph.max_atoms
        for row in np.flatnonzero(self.store.sizes > limit).tolist():  # graphs come in any size
            self.rejected[row] = f"{self.store.sizes[row]} atoms, more than the limit of {limit}"
        for row, reason in self.store.errors.items():
            self.rejected.setdefault(row, reason)
        if self.source.sites is not None:
            self._order_sites(self.source.sites)
        self.kept = np.flatnonzero(usable(len(self.source), self.rejected))
        if not len(self.kept):
            row, reason = next(iter(sorted(self.rejected.items())))
            raise InputError(
                f"{self.source.name}: none of its {len(self.source)} rows can be used; row {row + 1}: {reason}"
            )

    def _order_sites(self, sites: SiteLabels) -> None:
        """Bring labels of atoms or bonds into the order of the store."""
        sites, faults = ordered(sites, self.source.smiles, self.config.graph, self.source.target_names)
        self.source = replace(self.source, sites=sites)
        self.rejected = faults | self.rejected

    def _split(self, begun_with: Splits | None) -> None:
        """Split the rows, count what is repeated among them, and merge it where that is asked for."""
        source, config = self.source, self.config.data
        own = self._own_splits()
        if source.is_pcqm4m and own is not None:  # OGB's, of millions of molecules: nothing is to be said of it
            self.splits, self.duplicates = own, Duplicates(0, 0, 0)
            return
        targets = source.targets[self.kept]
        # Of atoms and bonds there are means here, by which no split can be stratified.
        classes = np.array([bool(task.classes) and source.level == MOLECULE for task in source.tasks])
        hashes = hash_rows(self.store, self.kept)
        beside = own_of(config.descriptors)
        identity = hashes.identity
        if beside:
            identity = with_columns(identity, self.store.descriptors(self.kept, beside))
        self.duplicates = count_duplicates(identity, targets, classes)
        if begun_with is not None:
            self.splits = begun_with
            return
        maker = SplitMaker(source.name, self.store, self.kept, hashes.family, targets[:, classes], config)
        self.splits = maker.make(own)
        maker.check_classes(self.splits["train"], [source.tasks[t] for t in np.flatnonzero(classes)])
        if source.splits is not None:
            shared = count_shared(self.splits, self.kept, hashes.family)
            self.duplicates = replace(self.duplicates, shared=shared)
        if config.duplicates == "merge":
            self._merge(identity, classes)

    def _own_splits(self) -> Splits | None:
        """The splits that the source names, without rejected rows."""
        if self.source.splits is None:
            return None
        kept = usable(len(self.source), self.rejected)
        return {split: rows[kept[rows]] for split, rows in self.source.splits.items()}

    def _merge(self, identity: np.ndarray, classes: np.ndarray) -> None:
        """One row of those for training of a molecule. The other splits stay as they are: a model is judged by them."""
        rows = self.splits["train"]
        of_rows = np.searchsorted(self.kept, rows)
        merged = merge_rows(rows, identity[of_rows], self.source.targets[rows], classes, self.source.target_names)
        targets = self.source.targets.copy()
        targets[merged.rows] = merged.targets
        self.source = replace(self.source, targets=targets)
        self.rejected |= merged.reasons
        gone = list(merged.reasons)
        self.kept = np.setdiff1d(self.kept, gone)
        self.splits = {**self.splits, "train": np.setdiff1d(rows, gone)}
        self.duplicates = replace(self.duplicates, merged=len(gone) - merged.dropped, dropped=merged.dropped)
        if not len(self.splits["train"]):
            raise InputError(
                f"{self.source.name}: all rows for training contradict each other: give data.duplicates keep"
            )

    def _learned(self) -> np.ndarray | SiteLabels:
        source = self.source
        return to_network(source.targets, source.tasks) if source.sites is None else source.sites

    def check_split_of(self, config: RunConfig) -> None:
        """Raise :class:`InputError` if the same molecules, split as another run wants it, cannot be learned."""
        other = copy(self)
        other.config, other.rejected = config, dict(self.rejected)
        other._split(None)
        other.labels = other._learned()
        other._check_labels()

    def _check_labels(self) -> None:
        missing = np.isnan(self.train_labels).all(axis=0)
        if missing.any():
            empty = self.source.target_names[int(np.flatnonzero(missing)[0])]
            folds = " or give fewer folds" if self.config.data.folds else ""
            raise InputError(
                f"{self.source.name}: no training row has a value of the target {empty!r}: leave it out{folds}"
            )
        own, rows = own_of(self.config.data.descriptors), self.splits["train"]
        if own and (empty_columns := np.isnan(self.store.descriptors(rows, own)).all(axis=0)).any():
            raise InputError(
                f"{self.source.name}: no training row has a number in the column {own[empty_columns.argmax()]!r} of "
                "--features: leave it out"
            )
        for labels in self.source.auxiliary.values():
            missing = np.isnan(labels[self.splits["train"]]).all(axis=0)
            if missing.any():
                raise InputError(
                    f"{self.source.name}: no training row has a value of the target {labels.names[missing.argmax()]!r}"
                )

    @property
    def train_labels(self) -> np.ndarray:
        """``float64 [R, T]`` of the training molecules, or of all their atoms or bonds, as the network learns them."""
        return self.labels[self.splits["train"]]

    def train_auxiliary(self) -> dict[str, SiteLabels]:
        """The auxiliary labels of the training molecules, by level."""
        others = np.setdiff1d(np.arange(len(self.source)), self.splits["train"])
        return {level: labels.without(others) for level, labels in self.source.auxiliary.items()}

    def train_descriptors(self) -> np.ndarray:
        """``float32 [R, F]``, the descriptors of the training molecules, of many thousand a part drawn at random."""
        rows = self.splits["train"]
        if len(rows) > _MOST_DESCRIBED:
            rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_DESCRIBED, replace=False))
        return self.store.descriptors(rows, self.config.data.descriptors)

    def train_dataloader(self) -> BatchLoader:
        rows = self.splits["train"]
        self._train_loader = self._loader(rows, self._train_batches(rows))
        return self._train_loader

    def num_train_lengths(self) -> int:
        """How many different numbers of rows the training batches of this device have."""
        return len(self._train_batches(self.splits["train"]).widths(self._multiple()))

    def extreme_train_batches(self, size: int) -> list[GraphBatch]:
        """The smallest training molecules and the largest, some of them again where there are fewer than ``size``;
        padded as training batches are."""
        rows = self.splits["train"]
        order = rows[np.argsort(self.store.sizes[rows], kind="stable")]
        settings = self.config.collate_settings | {"multiple": self._multiple()}
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

    def seconds_waited(self) -> float:
        """Spent waiting for the threads that prepare training batches, so far."""
        return 0.0 if self._train_loader is None else self._train_loader.waited

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
            self.config.collate_settings | {"multiple": self._multiple()},
            targets=self.labels,
            auxiliary=self.source.auxiliary,
            threads=self._threads(),
            pin_memory=self._on_gpu(),
        )

    def _trainer(self) -> pl.Trainer:
        assert self.trainer is not None, "batches for training are served to a trainer"
        return self.trainer

    def _on_gpu(self) -> bool:
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def _multiple(self) -> int:
        if not self._on_gpu():
            return 1
        return row_multiple("cuda", torch.float32 if "32" in str(self._trainer().precision) else torch.bfloat16)

    def _threads(self) -> int:
        if self.config.trainer.workers != "auto":
            return int(self.config.trainer.workers)
        return 2 if self._on_gpu() else 0  # without a GPU the cores are busy with the model
