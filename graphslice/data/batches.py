"""Batches: which molecules form one, the arrays of a batch, which need no torch, and its preparation in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from graphslice.chem import paths
from graphslice.chem.molecule import MolArrays, MolGraph
from graphslice.chem.parse import MoleculeError
from graphslice.chem.paths import bond_matrices
from graphslice.config import ATOM, MOLECULE
from graphslice.data.labels import Labels
from graphslice.data.store import GraphStore
from graphslice.errors import InputError, check_number
from graphslice.feature_dims import MAX_DISTANCE

if TYPE_CHECKING:
    from graphslice.batch import GraphBatch

#: Is called with the number of molecules that were done since the last call.
Progress: TypeAlias = Callable[[int], object]

_TIE_RULES = {"mean": paths.MEAN, "floyd-warshall": paths.FLOYD_WARSHALL}


def no_progress(molecules: int) -> None:
    """Ignore the progress."""


def batches_per_epoch(molecules: int, batch_size: int, world: int = 1) -> int:
    """Count the batches of an epoch on ``world`` devices; an incomplete last one needs a molecule for each device."""
    full_batches, rest = divmod(molecules, batch_size)
    return full_batches + (rest >= world)


class TrainBatches:
    """Shuffled training batches of one epoch, starting at any step: their order depends on the seed and the epoch only,
    so a resumed run continues with exactly the batches it had not seen. The molecules are shuffled, sorted by size
    within every ``WINDOW`` batches and cut into batches, whose order is shuffled again, which needs little padding."""

    WINDOW = 32

    def __init__(
        self,
        sizes: np.ndarray,  # int64 [R], numbers of atoms
        batch_size: int,  # molecules per step, over all devices
        seed: int,
        rank: int = 0,  # index of this device
        world: int = 1,  # number of devices
        step: Callable[[], int] = lambda: 0,  # optimiser steps so far: a resumed run continues there
    ) -> None:
        self.sizes, self.batch_size, self.seed = sizes, batch_size, seed
        self.rank, self.world, self.step = rank, world, step
        if batch_size < world or len(self) == 0:
            raise InputError(
                f"{world} devices need at least {world} molecules per batch, but there are {len(sizes)} training "
                f"molecules and trainer.batch_size is {batch_size}: use fewer devices or a larger batch size"
            )

    def __len__(self) -> int:
        return batches_per_epoch(len(self.sizes), self.batch_size, self.world)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first = divmod(self.step(), len(self))
        for rows in self._epoch(epoch)[first:]:
            yield rows[self.rank :: self.world].tolist()

    def widths(self, multiple: int) -> set[int]:
        """Return the widths (atoms plus graph token) of full batches of the first epoch, padded to a ``multiple``."""
        full_batches = [rows[self.rank :: self.world] for rows in self._epoch(0) if len(rows) == self.batch_size]
        return {-(-(int(self.sizes[rows].max()) + 1) // multiple) * multiple for rows in full_batches}

    def _epoch(self, epoch: int) -> list[np.ndarray]:
        random = np.random.default_rng((self.seed, epoch))
        order = random.permutation(len(self.sizes))[: len(self) * self.batch_size]
        window = self.WINDOW * self.batch_size
        batches: list[np.ndarray] = []
        for start in range(0, len(order), window):
            rows = order[start : start + window]
            rows = rows[np.argsort(self.sizes[rows], kind="stable")]
            sorted_batches = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
            batches += [sorted_batches[i] for i in random.permutation(len(sorted_batches))]
        return batches


def eval_batches(sizes: np.ndarray, batch_size: int, rank: int = 0, world: int = 1) -> list[list[int]]:
    """Return batches of molecules with ``sizes`` atoms, sorted by size; surplus devices repeat the smallest molecule. A
    padded batch has at most as many pairs of atoms as ``batch_size`` molecules of 32 atoms."""
    order = np.argsort(sizes, kind="stable")
    order = order[rank::world] if rank < len(order) else order[:1]  # every device needs a molecule
    batches: list[list[int]] = []
    budget = batch_size * 33**2
    for row in order.tolist():
        fits = batches and len(batches[-1]) < batch_size and (len(batches[-1]) + 1) * (sizes[row] + 1) ** 2 <= budget
        if not fits:
            batches.append([])
        batches[-1].append(row)
    return batches


def batch_arrays(
    store: GraphStore,
    rows: np.ndarray,  # int [B], each with a molecule of at least one atom
    *,
    path_ties: str = "mean",  # "mean" over all shortest paths, or "floyd-warshall": the one of Graphormer's code
    max_path: int = 5,  # encoded bonds of a path, from its start
    multiple: int = 1,  # of the padded number of atoms plus graph token
    targets: Labels | None = None,  # of all rows of the store
    descriptors: Sequence[str] = (),
    level: str = MOLECULE,
    bonds: bool = False,  # add the matrix of bonds, for message passing
    auxiliary: Mapping[str, Labels] | None = None,  # of atoms and bonds of all rows, by level
) -> dict[str, np.ndarray]:
    """Collate rows of a store into the arrays of a :class:`~graphslice.batch.GraphBatch` that are not None."""
    check_number("max_path", max_path, 1, MAX_DISTANCE)
    check_number("multiple", multiple, 1)
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    atom_ptr, bond_ptr, atoms, degrees, pairs, bond_type_ids = store.gather(rows)
    lengths = np.diff(atom_ptr)
    if not lengths.all():
        raise MoleculeError(f"row {rows[lengths.argmin()]} of {store.name} has no molecule")
    if extra := -(atoms.shape[1] + 1) % multiple:
        atoms = np.pad(atoms, ((0, 0), (0, extra), (0, 0)))
        degrees = np.pad(degrees, ((0, 0), (0, extra)))
    path_types, distances, ptr, codes, weights = paths.shortest_path_types(
        atom_ptr, bond_ptr, pairs, bond_type_ids, _TIE_RULES[path_ties], max_path, atoms.shape[1]
    )
    if len(distances) <= np.iinfo(np.int16).max:
        path_types = path_types.astype(np.int16)
    ends = atom_ptr, bond_ptr, pairs, bond_type_ids
    arrays = {
        "atoms": atoms,
        "degrees": degrees,
        "lengths": lengths,
        "path_types": path_types,
        "path_distances": distances,
        "path_ptr": ptr[:-1],
        "path_codes": codes,
        "path_weights": weights,
        "rows": rows,
    }
    if targets is not None:
        arrays["targets"] = targets[rows].astype(np.float32)
        if targets.bounds is not None:
            arrays["bounds_of_targets"] = targets.bounds[rows].astype(np.float32)
        if targets.weights is not None:
            arrays["weights"] = targets.weights[rows].astype(np.float32)
    if descriptors:
        arrays["descriptors"] = store.descriptors(rows, descriptors)
    if level != MOLECULE:
        arrays["atom_bond_index"] = _atom_bond_index(level, *ends)
    if bonds:
        arrays["bonds"] = bond_matrices(*ends, atoms.shape[1])
    return arrays | _auxiliary(auxiliary or {}, rows, *ends)


def _auxiliary(labels: Mapping[str, Labels], rows: np.ndarray, *ends: np.ndarray) -> dict[str, np.ndarray]:
    """Compute ``atom_index``, ``bond_index`` and the targets of atoms and bonds, of rows that have them."""
    fields = {}
    for level, level_labels in labels.items():
        atom_bond_index = _atom_bond_index(level, *ends)
        labelled = level_labels.counts_of(rows) > 0
        fields[f"{level}_index"] = atom_bond_index[labelled[atom_bond_index[:, 0]]]
        fields[f"{level}_targets"] = level_labels[rows].astype(np.float32)
    return fields


def _atom_bond_index(
    level: str, atom_ptr: np.ndarray, bond_ptr: np.ndarray, bonds: np.ndarray, bond_type_ids: np.ndarray
) -> np.ndarray:
    """Compute ``atom_bond_index``, ``int64 [M, 4]``, from the arrays that :meth:`GraphStore.gather` returns."""
    counts = np.diff(atom_ptr if level == ATOM else bond_ptr)
    molecules = np.repeat(np.arange(len(counts)), counts)
    if level == ATOM:
        atoms = np.arange(atom_ptr[-1]) - atom_ptr[molecules]
        columns = [molecules, atoms, atoms, np.zeros_like(atoms)]
    else:
        columns = [molecules, *bonds.T, bond_type_ids]
    return np.stack(columns, axis=1).astype(np.int64)


def collate_rows(store: GraphStore, rows: np.ndarray, **settings: Any) -> GraphBatch:
    """Collate rows of a store into a batch: see :func:`batch_arrays`."""
    from graphslice.batch import GraphBatch

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
