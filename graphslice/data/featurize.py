"""Parallel parsing of SMILES in a pool of processes."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, Union

import numpy as np

from graphslice.chem.atom_bond_order import ORDER_DTYPE
from graphslice.chem.descriptors import compute_descriptors
from graphslice.chem.molecule import MolArrays, read_smiles
from graphslice.chem.standardize import standardize_all
from graphslice.config import MOLECULE, GraphConfig
from graphslice.data.store import GraphStore, StoreInfo
from graphslice.errors import InputError
from graphslice.hardware import cores

if TYPE_CHECKING:
    from graphslice.data.workers import Workers


# Time limit in seconds for one SMILES.
_ROW_SECONDS = 60
# SMILES per task of a process; fewer with descriptors, which take longer to compute.
_TASK_ROWS, _DESCRIPTOR_TASK_ROWS = 512, 64

#: Processes from :func:`featurizer_pool`; None if this process does the work itself.
Pool: TypeAlias = Union["Workers", None]

# Molecules, for each None or the reason why it is invalid, the order of atoms or bonds, and descriptors by kind.
_Parsed: TypeAlias = tuple[MolArrays, list[str | None], np.ndarray, dict[str, np.ndarray]]
# Results of one task of a pool.
_Futures: TypeAlias = Future[list[tuple[_Parsed, str | None]]]


@contextmanager
def featurizer_pool(
    rows: int | None = None, workers: int | None = None, kinds: Sequence[str] = (), seconds: float = _ROW_SECONDS
) -> Iterator[Pool]:
    """Start a pool of processes for :func:`featurize_stream`; yield None if this process should do the work itself.

    If a SMILES crashes a process or takes longer than ``seconds``, only its row fails, with the reason. Without a pool
    it crashes this process; :func:`~graphslice.chem.parse.parse_molecule` rejects the SMILES that are known to do so.
    For few ``rows`` (if their number is known) no process is started, nor with one worker, nor in a daemon process.
    """
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, not {workers}")
    workers = cores() if workers is None else workers
    if workers < 2 or (rows is not None and rows < 4 * _task_rows(kinds)):
        yield None
        return
    # Imported here: predicting a few SMILES does not need them.
    from multiprocessing import current_process

    from graphslice.data.workers import Workers

    if current_process().daemon:  # such as a worker of a multiprocessing.Pool: it may not start processes
        yield None
        return
    # Otherwise every process would compile the kernels on first use, or read them from the cache.
    _parse_task(["CCO"], GraphConfig(), MOLECULE, kinds)
    pool = Workers(workers, seconds)
    try:
        yield pool
    finally:
        pool.close()


def featurize_stream(
    chunks: Iterable[Sequence[str]],
    config: GraphConfig,
    *,
    pool: Pool = None,
    prefetch: bool = False,
    kinds: Sequence[str] = (),
    columns: Iterable[Mapping[str, np.ndarray]] | None = None,
    level: str = MOLECULE,
) -> Iterator[tuple[GraphStore, list[str | None]]]:
    """Parse SMILES chunk by chunk into stores in memory; yield each, and for every row None or why it has no molecule.

    With ``prefetch`` the pool parses the next chunk while the caller uses the last one: faster if the caller works on a
    GPU, slower if both compete for the same cores. ``columns`` are for every chunk its descriptors that are columns of
    a table, by name ``float32 [R]``.
    """
    chunk_columns = itertools.repeat({}) if columns is None else columns
    parsed = _parse_chunks(chunks, config, level, pool, prefetch=prefetch, kinds=kinds)
    for (arrays, reasons, order, descriptors), values in zip(parsed, chunk_columns, strict=False):
        yield GraphStore.from_arrays(arrays, reasons, {**descriptors, **values}, order, level), reasons


def parse(
    smiles: Sequence[str],
    config: GraphConfig | StoreInfo,
    pool: Pool = None,
    progress: Callable[[int], None] | None = None,
    kinds: Sequence[str] = (),
    level: str = MOLECULE,
) -> _Parsed:
    """Parse SMILES and compute descriptors in the processes of a pool; arguments as :func:`featurize_stream`.

    Returns the molecules, reasons and order of :func:`~graphslice.chem.molecule.read_smiles`, and descriptors by kind.
    """
    (parsed,) = _parse_chunks([smiles], config, level, pool, progress, kinds=kinds)
    return parsed


def _parse_task(smiles: Sequence[str], config: GraphConfig | StoreInfo, level: str, kinds: Sequence[str]) -> _Parsed:
    max_atoms = config.max_atoms
    smiles, faults = standardize_all(smiles, config.standardize, max_atoms)
    arrays, reasons, order = read_smiles(smiles, level, atom_order=config.atom_order, max_atoms=max_atoms)
    reasons = [faults.get(row, reason) for row, reason in enumerate(reasons)] if faults else reasons
    if not kinds:
        return arrays, reasons, order, {}
    molecules = [text if reason is None else "" for text, reason in zip(smiles, reasons, strict=True)]
    return arrays, reasons, order, compute_descriptors(molecules, kinds, max_atoms)


def _parse_chunks(
    chunks: Iterable[Sequence[str]],
    config: GraphConfig | StoreInfo,
    level: str,
    pool: Pool,
    progress: Callable[[int], None] | None = None,
    prefetch: bool = False,
    kinds: Sequence[str] = (),
) -> Iterator[_Parsed]:
    work = partial(_parse_task, config=config, level=level, kinds=tuple(kinds))
    if pool is None:
        for chunk in chunks:
            yield _join((work(task) for task in _tasks(chunk, kinds)), kinds, progress)
        return
    pending: deque[list[_Futures]] = deque()
    try:
        for chunk in chunks:
            pending.append([pool.submit(work, task) for task in _tasks(chunk, kinds)])
            if len(pending) > prefetch:
                yield _join(_results(pending.popleft()), kinds, progress)
        while pending:
            yield _join(_results(pending.popleft()), kinds, progress)
    finally:
        for future in (future for futures in pending for future in futures):
            future.cancel()


def _results(futures: Iterable[_Futures]) -> Iterator[_Parsed]:
    for future in futures:
        for (arrays, reasons, order, descriptors), reason in future.result():
            yield arrays, reasons if reason is None else [reason], order, descriptors


def _task_rows(kinds: Sequence[str]) -> int:
    return _DESCRIPTOR_TASK_ROWS if kinds else _TASK_ROWS


def _tasks(smiles: Sequence[str], kinds: Sequence[str]) -> Iterator[Sequence[str]]:
    size = _task_rows(kinds)
    return (smiles[start : start + size] for start in range(0, len(smiles), size))


def _join(results: Iterable[_Parsed], kinds: Sequence[str], progress: Callable[[int], None] | None) -> _Parsed:
    molecules: list[MolArrays] = []
    reasons: list[str | None] = []
    orders = [np.empty((0, 2), ORDER_DTYPE)]
    descriptors: dict[str, list[np.ndarray]] = {kind: [compute_descriptors([], [kind])[kind]] for kind in kinds}
    for arrays, task_reasons, order, task_descriptors in results:
        molecules.append(arrays)
        reasons += task_reasons
        orders.append(order)
        for kind, values in task_descriptors.items():
            descriptors[kind].append(values)
        if progress:
            progress(len(task_reasons))
    joined = {kind: np.concatenate(parts) for kind, parts in descriptors.items()}
    return MolArrays.join(molecules), reasons, np.concatenate(orders), joined
