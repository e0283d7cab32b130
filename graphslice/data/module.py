"""LightningDataModule: labelled molecules, featurized, split and batched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytorch_lightning as pl
from torch.utils.data import DataLoader, Dataset, Sampler

from graphslice.config import RunConfig
from graphslice.data import splits
from graphslice.data.batch import GraphBatch, collate
from graphslice.data.sources import Source
from graphslice.data.store import GraphStore, featurize, featurizers
from graphslice.errors import InputError


class TrainBatches(Sampler[list[int]]):
    """Batches of an epoch in an order that the seed and the epoch decide, from any step onwards.

    Where training stands is read from its step count, so a resumed run continues with exactly the
    batches it had not seen. Every device gets its share of each batch, and as many batches. The
    molecules are shuffled, those of every ``WINDOW`` batches sorted by size and cut into batches,
    and these shuffled: batches of similar sizes need little padding.

    Args:
        sizes: ``int64 [R]``, the number of atoms of each molecule.
        batch_size: molecules of one step, over all devices.
        seed: of the order.
        rank, world: which of how many devices this is.
        step: gives the number of optimiser steps done so far.
    """

    WINDOW = 32

    def __init__(
        self,
        sizes: np.ndarray,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        step: Callable[[], int] = lambda: 0,
    ) -> None:
        self.sizes, self.batch_size, self.seed = sizes, batch_size, seed
        self.rank, self.world, self.step = rank, world, step
        if batch_size < world or len(self) == 0:
            raise InputError(
                f"{world} devices need at least as many molecules in a batch: there are {len(sizes)} training "
                f"molecules, and trainer.batch_size is {batch_size}"
            )

    def __len__(self) -> int:
        whole, rest = divmod(len(self.sizes), self.batch_size)
        # The rest makes a batch of its own where every device gets a molecule of it.
        return whole + (rest >= self.world)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first = divmod(self.step(), len(self))
        for rows in self._epoch(epoch)[first:]:
            yield rows[self.rank :: self.world].tolist()

    def _epoch(self, epoch: int) -> list[np.ndarray]:
        random = np.random.default_rng((self.seed, epoch))
        order = random.permutation(len(self.sizes))[: len(self) * self.batch_size]
        window = self.WINDOW * self.batch_size
        batches: list[np.ndarray] = []
        for begin in range(0, len(order), window):
            rows = order[begin : begin + window]
            rows = rows[np.argsort(self.sizes[rows], kind="stable")]
            cut = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
            batches += [cut[i] for i in random.permutation(len(cut))]
        return batches


class EvalBatches(Sampler[list[int]]):
    """Every molecule once, in batches of similar sizes, shared among the devices.

    Where there are more devices than molecules, those left over get the first one again.

    Args:
        sizes: ``int64 [R]``, the number of atoms of each molecule.
        batch_size: the most molecules in a batch of one device; fewer when they are large, so that
            a batch never holds more than as many pairs of atoms as ``batch_size`` of 32 atoms.
        rank, world: which of how many devices this is.
    """

    def __init__(self, sizes: np.ndarray, batch_size: int = 256, rank: int = 0, world: int = 1) -> None:
        order = np.argsort(sizes, kind="stable")
        order = order[rank::world] if rank < len(order) else order[:1]  # no device may have none
        self.batches: list[list[int]] = []
        budget = batch_size * 33**2
        batch: list[int] = []
        for row in order.tolist():
            if batch and (len(batch) == batch_size or (len(batch) + 1) * (sizes[row] + 1) ** 2 > budget):
                self.batches.append(batch)
                batch = []
            batch.append(row)
        if batch:
            self.batches.append(batch)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


class _Rows(Dataset):
    """Hands a whole batch of rows at a time to collate."""

    def __init__(self, store: Sequence, positions: np.ndarray, rows: np.ndarray, targets: np.ndarray, settings: dict):
        self.store, self.positions, self.rows = store, positions, rows
        self.targets, self.settings = targets, settings

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> GraphBatch:
        rows = self.rows[indices]
        graphs = [self.store[i] for i in self.positions[rows]]
        return collate(graphs, targets=self.targets[rows], rows=rows, **self.settings)


def _as_is(batch: GraphBatch) -> GraphBatch:
    return batch


class MoleculeData(pl.LightningDataModule):
    """Featurizes a source, splits it and serves batches.

    Attributes:
        split: rows of each part, rejected rows left out.
        rejected: reason by row.
        target_mean, target_std: ``float64 [T]`` of the training labels.
    """

    def __init__(self, source: Source, config: RunConfig, progress: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self.source, self.config = source, config
        self.rejected = dict(source.rejected)
        self._featurize(progress)
        self.split = self._make_split()
        self._standardise()

    def _featurize(self, progress: Callable[[int], None] | None) -> None:
        if self.source.graphs is not None:
            limit = self.config.graph.max_atoms
            for row, graph in enumerate(self.source.graphs):
                if graph is not None and graph.num_atoms > limit:
                    self.rejected[row] = f"{graph.num_atoms} atoms, more than the limit of {limit}"
            kept = [row for row in range(len(self.source)) if row not in self.rejected]
            self.store = GraphStore.from_graphs([self.source.graphs[row] for row in kept])
        else:
            wanted = [row for row in range(len(self.source)) if row not in self.rejected]
            with featurizers(len(wanted)) as pool:
                texts = [self.source.smiles[row] for row in wanted]
                self.store, reasons = featurize(texts, self.config.graph, pool=pool, progress=progress)
            self.rejected.update(
                {row: reason for row, reason in zip(wanted, reasons, strict=True) if reason is not None}
            )
            kept = [row for row, reason in zip(wanted, reasons, strict=True) if reason is None]
        if not kept:
            row, reason = next(iter(sorted(self.rejected.items())))
            raise InputError(
                f"{self.source.name}: none of its {len(self.source)} rows can be used; row {row + 1}: {reason}"
            )
        self.kept = np.array(kept, dtype=np.int64)
        # Where each row's molecule stands in the store.
        self.positions = np.full(len(self.source), -1, dtype=np.int64)
        self.positions[self.kept] = np.arange(len(self.kept))

    def _make_split(self) -> splits.Split:
        name = self.source.name
        if self.source.split is not None:
            split = {part: rows[self.positions[rows] >= 0] for part, rows in self.source.split.items()}
        elif self.config.data.split == "scaffold":
            if self.source.graphs is not None:
                raise InputError("a scaffold split needs SMILES; graphs have none: use random")
            split = splits.scaffold_split(self.kept, self.source.smiles, self.config.data.seed)
        else:
            split = splits.random_split(self.kept, self.config.data.seed)
        for part in ("train", "valid"):
            if len(split.get(part, ())) == 0:
                advice = "its split column gives it none" if self.source.split else "at least 3 rows are needed"
                raise InputError(
                    f"{name}: no usable row is for {'training' if part == 'train' else 'validation'} "
                    f"({len(self.kept)} of {len(self.source)} rows can be used): {advice}"
                )
        return split

    def _standardise(self) -> None:
        labels = self.source.targets[self.split["train"]]
        if np.isnan(labels).all(axis=0).any():
            empty = self.source.target_names[int(np.flatnonzero(np.isnan(labels).all(axis=0))[0])]
            raise InputError(f"{self.source.name}: no training row has a value of the target {empty!r}")
        self.target_mean = np.nanmean(labels, axis=0)
        spread = np.nanstd(labels, axis=0)
        self.target_std = np.where(spread > 0, spread, 1.0)

    def train_dataloader(self) -> DataLoader:
        rows = self.split["train"]
        batches = TrainBatches(
            self.store.sizes[self.positions[rows]],
            self.config.trainer.batch_size,
            self.config.trainer.seed,
            self.trainer.global_rank,
            self.trainer.world_size,
            lambda: self.trainer.global_step,
        )
        return self._loader(rows, batches)

    def val_dataloader(self) -> DataLoader:
        return self.eval_dataloader("valid", self.trainer.global_rank, self.trainer.world_size)

    def eval_dataloader(self, part: str, rank: int = 0, world: int = 1) -> DataLoader:
        """Every molecule of a part once."""
        rows = self.split[part]
        sizes = self.store.sizes[self.positions[rows]]
        return self._loader(rows, EvalBatches(sizes, max(64, self.config.trainer.batch_size), rank, world))

    def _loader(self, rows: np.ndarray, batches: Sampler[list[int]]) -> DataLoader:
        settings = {"path_ties": self.config.graph.path_ties, "max_path": self.config.model.max_path}
        workers = self._workers()
        return DataLoader(
            _Rows(self.store, self.positions, rows, self.source.targets, settings),
            batch_sampler=batches,
            collate_fn=_as_is,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=self._on_gpu(),
        )

    def _on_gpu(self) -> bool:
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def _workers(self) -> int:
        if self.config.trainer.workers != "auto":
            return int(self.config.trainer.workers)
        if not self._on_gpu():
            return 0  # the cores are busy with the model
        return min(8, max(1, (os.cpu_count() or 1) // max(1, self.trainer.world_size) - 1))
