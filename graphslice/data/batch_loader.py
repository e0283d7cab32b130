"""Loader that prepares batches in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from graphslice.batch import GraphBatch
from graphslice.chem.molecule import MolArrays, MolGraph
from graphslice.data.batch_samplers import TrainBatches
from graphslice.data.batches import batch_arrays
from graphslice.data.store import GraphStore


def collate_rows(store: GraphStore, rows: np.ndarray, **settings: Any) -> GraphBatch:
    """Collate rows of a store into a batch: see :func:`~graphslice.data.batches.batch_arrays`."""
    return GraphBatch.from_arrays(batch_arrays(store, rows, **settings))  # the store was checked when it was opened


def collate(graphs: Sequence[MolGraph], values: Mapping[str, np.ndarray] | None = None, **settings) -> GraphBatch:
    """Collate graphs, each with an atom, as :func:`collate_rows`; ``values`` as in :meth:`GraphStore.from_arrays`."""
    store = GraphStore.from_arrays(MolArrays.from_graphs(graphs), descriptors=values)
    return collate_rows(store, np.arange(len(graphs)), **settings)


def extreme_batches(store: GraphStore, rows: np.ndarray, size: int = 4, **settings: Any) -> list[GraphBatch]:
    """Collate a batch of the smallest and one of the largest of rows ``int64 [R]``, repeated if there are too few."""
    order = rows[np.argsort(store.sizes[rows], kind="stable")]
    return [collate_rows(store, np.resize(one, size), **settings) for one in (order, order[::-1])]


class BatchLoader:
    """Collates batches of a store in order, in threads rather than processes: the compiled code that makes a batch
    releases the global interpreter lock, and no data have to be sent."""

    PREFETCH = 2  # batches that each thread may be ahead

    def __init__(
        self,
        store: GraphStore,
        rows: np.ndarray,  # int64 [R], which the batches index
        batches: TrainBatches | list[list[int]],
        settings: dict,  # keyword arguments of batch_arrays
        *,
        threads: int = 0,  # 0 collates each batch when it is requested
        pin_memory: bool = False,  # copy to page-locked memory, for asynchronous transfer to a GPU
    ) -> None:
        self.store, self.rows, self.batches, self.settings = store, rows, batches, settings
        self.threads, self.pin_memory = threads, pin_memory

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[GraphBatch]:
        if self.threads == 0:
            yield from map(self._make_batch, self.batches)
            return
        pending: deque[Future[GraphBatch]] = deque()
        with ThreadPoolExecutor(self.threads, "batches") as pool:
            try:
                for indices in self.batches:
                    pending.append(pool.submit(self._make_batch, indices))
                    if len(pending) > self.PREFETCH * self.threads:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()

    def _make_batch(self, indices: list[int]) -> GraphBatch:
        batch = collate_rows(self.store, self.rows[indices], **self.settings)
        return batch.pin_memory() if self.pin_memory else batch
