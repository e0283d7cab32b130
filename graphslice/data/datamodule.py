"""LightningDataModule: labelled molecules, featurized, split and batched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch

from graphslice.batch import GraphBatch
from graphslice.config import RunConfig
from graphslice.data.collate import collate_rows
from graphslice.data.featurize import store_of
from graphslice.data.loader import BatchLoader, EvalBatches, TrainBatches
from graphslice.data.sources import Source
from graphslice.data.splits import Splits, random_split, scaffold_split
from graphslice.errors import InputError
from graphslice.nn.compiled import row_multiple
from graphslice.tasks import to_network


class MoleculeData(pl.LightningDataModule):
    """Featurizes a source, splits it and serves batches.

    Attributes:
        splits: rows of each split by name, rejected rows left out.
        store: the molecules, row by row as the source has them.
        rejected: reason by row.
        kept: ``int64``, the other rows.
        labels: ``float64`` ``[rows, T]``, as the network learns them.
    """

    def __init__(self, source: Source, config: RunConfig, progress: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self.source, self.config = source, config
        self._train_loader: BatchLoader | None = None
        self.rejected = dict(source.rejected)
        self._featurize(progress)
        self.splits = self._make_splits()
        self.labels = to_network(source.targets, source.tasks)
        self._check_labels()

    def _featurize(self, progress: Callable[[int], None] | None) -> None:
        cache = self.config.data.cache
        self.store = store_of(self.source, self.config.graph, None if cache is None else Path(cache), progress)
        limit = self.config.graph.max_atoms
        for row in np.flatnonzero(self.store.sizes > limit).tolist():  # graphs come in any size
            self.rejected[row] = f"{self.store.sizes[row]} atoms, more than the limit of {limit}"
        for row, reason in self.store.errors.items():
            self.rejected.setdefault(row, reason)
        kept = np.ones(len(self.source), dtype=bool)
        kept[list(self.rejected)] = False
        self.kept = np.flatnonzero(kept)
        if not len(self.kept):
            row, reason = next(iter(sorted(self.rejected.items())))
            raise InputError(
                f"{self.source.name}: none of its {len(self.source)} rows can be used; row {row + 1}: {reason}"
            )

    def _make_splits(self) -> Splits:
        splits = self._split_rows()
        for split, purpose in (("train", "training"), ("valid", "validation")):
            if len(splits.get(split, ())) == 0:
                advice = "its split column gives it none" if self.source.splits else "at least 3 rows are needed"
                raise InputError(
                    f"{self.source.name}: no usable row is for {purpose} "
                    f"({len(self.kept)} of {len(self.source)} rows can be used): {advice}"
                )
        return splits

    def _split_rows(self) -> Splits:
        if self.source.splits is not None:
            kept = np.zeros(len(self.source), dtype=bool)
            kept[self.kept] = True
            return {split: rows[kept[rows]] for split, rows in self.source.splits.items()}
        if self.config.data.split != "scaffold":
            return random_split(self.kept, self.config.data.seed)
        if not self.source.smiles:
            raise InputError("a scaffold split needs SMILES; graphs have none: use random")
        return scaffold_split(self.kept, self.source.smiles, self.config.data.seed)

    def _check_labels(self) -> None:
        missing = np.isnan(self.train_labels).all(axis=0)
        if missing.any():
            empty = self.source.target_names[int(np.flatnonzero(missing)[0])]
            raise InputError(f"{self.source.name}: no training row has a value of the target {empty!r}")

    @property
    def train_labels(self) -> np.ndarray:
        """``float64 [R, T]`` of the training molecules, as the network learns them."""
        return self.labels[self.splits["train"]]

    def train_dataloader(self) -> BatchLoader:
        rows = self.splits["train"]
        self._train_loader = self._loader(rows, self._train_batches(rows))
        return self._train_loader

    def num_train_lengths(self) -> int:
        """How many different numbers of rows the training batches of this device have."""
        return len(self._train_batches(self.splits["train"]).widths(self._multiple()))

    def smallest_train_batch(self, size: int) -> GraphBatch:
        """The smallest training molecules, some of them again where there are fewer, padded as training batches are."""
        rows = self.splits["train"]
        order = rows[np.argsort(self.store.sizes[rows], kind="stable")]
        settings = self.config.collate_settings | {"multiple": self._multiple()}
        return collate_rows(self.store, np.resize(order, size) if len(order) < size else order[:size], **settings)

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
