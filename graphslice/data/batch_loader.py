"""Which molecules make a batch, and the threads that prepare batches while the model works."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np

from graphslice.batch import GraphBatch
from graphslice.data.atom_bond_labels import AtomBondLabels
from graphslice.data.collate import collate_rows
from graphslice.data.store import GraphStore
from graphslice.errors import InputError


def batches_per_epoch(molecules: int, batch_size: int, world: int = 1) -> int:
    """How many batches :class:`TrainBatches` makes of some molecules.

    What remains after the whole batches makes a batch of its own where every device gets a molecule of it.

    Args:
        molecules: of the training split.
        batch_size: molecules of one step, over all devices.
        world: how many devices there are.
    """
    whole, rest = divmod(molecules, batch_size)
    return whole + (rest >= world)


class TrainBatches:
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
        return batches_per_epoch(len(self.sizes), self.batch_size, self.world)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first = divmod(self.step(), len(self))
        for rows in self._epoch(epoch)[first:]:
            yield rows[self.rank :: self.world].tolist()

    def widths(self, multiple: int) -> set[int]:
        """The numbers of rows, graph token included, that the whole batches of an epoch have when padded.

        Args:
            multiple: as of :func:`~graphslice.data.collate.collate_rows`.
        """
        whole = [rows[self.rank :: self.world] for rows in self._epoch(0) if len(rows) == self.batch_size]
        return {-(-(int(self.sizes[rows].max()) + 1) // multiple) * multiple for rows in whole}

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


class EvalBatches:
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


class Batches(Protocol):
    """Lists of indices, one a batch."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[list[int]]: ...


class BatchLoader:
    """Batches of a store, in order, prepared by threads while the last one is used.

    Threads and not processes: the compiled code that makes a batch lets go of Python's lock, and
    nothing has to be sent from one process to another.

    Args:
        store: of molecules.
        rows: ``int64 [R]``, those that the batches choose from.
        batches: :class:`TrainBatches`, :class:`EvalBatches` or lists of indices into ``rows``.
        settings: ``path_ties`` and ``max_path`` of :func:`~graphslice.data.collate.collate_rows`.
        targets: ``float [rows of the store, T]``, or those of the atoms or bonds of all rows.
        auxiliary: labels of the atoms and of the bonds of all rows, by level, that are learned beside them.
        threads: how many; 0 prepares each batch when it is asked for.
        pin_memory: put the batches where a GPU can fetch them by itself.

    Attributes:
        waited: seconds spent waiting for the threads so far.
    """

    PREFETCH = 2  # batches a thread may be ahead

    def __init__(
        self,
        store: GraphStore,
        rows: np.ndarray,
        batches: Batches,
        settings: dict,
        *,
        targets: np.ndarray | AtomBondLabels | None = None,
        auxiliary: Mapping[str, AtomBondLabels] | None = None,
        threads: int = 0,
        pin_memory: bool = False,
    ) -> None:
        self.store, self.rows, self.batches, self.settings = store, rows, batches, settings
        self.targets, self.auxiliary, self.threads, self.pin_memory = targets, auxiliary or {}, threads, pin_memory
        self.wait_seconds = 0.0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[GraphBatch]:
        if self.threads == 0:
            yield from map(self._make, self.batches)
            return
        pending: deque[Future[GraphBatch]] = deque()
        with ThreadPoolExecutor(self.threads, "batches") as pool:
            try:
                for indices in self.batches:
                    pending.append(pool.submit(self._make, indices))
                    if len(pending) > self.PREFETCH * self.threads:
                        yield self._wait(pending.popleft())
                while pending:
                    yield self._wait(pending.popleft())
            finally:
                for future in pending:
                    future.cancel()

    def _wait(self, batch: Future[GraphBatch]) -> GraphBatch:
        begin = time.perf_counter()
        made = batch.result()
        self.wait_seconds += time.perf_counter() - begin
        return made

    def _make(self, indices: list[int]) -> GraphBatch:
        rows = self.rows[indices]
        batch = collate_rows(self.store, rows, targets=self.targets, auxiliary=self.auxiliary, **self.settings)
        return batch.pin_memory() if self.pin_memory else batch
