"""SMILES to molecules on every core: the processes, and what each of them gets at a time."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, Union

import numpy as np

from graphslice.chem.descriptors import compute_descriptors
from graphslice.chem.molecule import MolArrays, read_smiles
from graphslice.config import GraphConfig
from graphslice.data.store import GraphStore, StoreInfo
from graphslice.errors import InputError
from graphslice.hardware import cores

if TYPE_CHECKING:
    from graphslice.data.featurize.workers import Workers

# SMILES that a process gets at a time; fewer where their descriptors are asked for too, which take longer.
_TASK_ROWS, _DESCRIBED_ROWS = 512, 64

#: Processes of :func:`featurizer_pool`; None where this process does the work itself.
Pool: TypeAlias = Union["Workers", None]

# Molecules, for each None or the reason why it is none, and descriptors by kind.
_Parsed: TypeAlias = tuple[MolArrays, list[str | None], dict[str, np.ndarray]]
# Of rows in the processes of a pool.
_Futures: TypeAlias = Future[list[tuple[_Parsed, str | None]]]


@contextmanager
def featurizer_pool(rows: int | None = None, workers: int | None = None, kinds: Sequence[str] = ()) -> Iterator[Pool]:
    """Processes for :func:`featurize`.

    A SMILES that crashes one of them, or takes longer than a minute, costs its row alone, which gets the reason.
    Without them it crashes this process; :func:`~graphslice.chem.parse.parse_molecule` refuses those known to do so.

    Args:
        rows: how many there will be, if known: few of them are not worth the start of a process.
        workers: how many processes; one a core by default.
        kinds: of descriptors that they shall compute.

    Raises:
        InputError: for less than one worker.
    """
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, not {workers}")
    workers = cores() if workers is None else workers
    if workers < 2 or (rows is not None and rows < 4 * _task_rows(kinds)):
        yield None
        return
    # Imported here: a few SMILES are predicted without them.
    from multiprocessing import current_process

    from graphslice.data.featurize.workers import Workers

    if current_process().daemon:  # such as one of a multiprocessing.Pool: it may start none
        yield None
        return
    pool = Workers(workers)
    try:
        yield pool
    finally:
        pool.close()


def featurize(
    smiles: Sequence[str],
    config: GraphConfig,
    *,
    pool: Pool = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[GraphStore, list[str | None]]:
    """Parse SMILES into memory.

    Args:
        smiles: any texts.
        config: atom order and largest molecule.
        pool: of :func:`featurizer_pool`; in this process without one.
        progress: called with the number of rows done, from time to time.

    Returns:
        A store with a row for each, and for every row None or the reason why it has no molecule.
    """
    arrays, reasons, _ = parse(smiles, config, pool, progress)
    return GraphStore.from_arrays(arrays, reasons), reasons


def featurize_stream(
    chunks: Iterable[Sequence[str]],
    config: GraphConfig,
    *,
    pool: Pool = None,
    prefetch: bool = False,
    kinds: Sequence[str] = (),
    columns: Iterable[Mapping[str, np.ndarray]] | None = None,
) -> Iterator[tuple[GraphStore, list[str | None]]]:
    """:func:`featurize` chunk by chunk.

    With ``prefetch`` the processes of the pool parse the next chunk while the caller uses the last: good
    where that is a GPU's work, bad where both want the same cores.

    Args:
        kinds: of :data:`~graphslice.chem.descriptors.DESCRIPTORS`, which the stores shall have too.
        columns: for every chunk its descriptors that are columns of a table, by name ``float32 [R]``.
    """
    given = itertools.repeat({}) if columns is None else columns
    parsed = _parse_chunks(chunks, config, pool, prefetch=prefetch, kinds=kinds)
    for (arrays, reasons, descriptors), more in zip(parsed, given, strict=False):
        yield GraphStore.from_arrays(arrays, reasons, {**descriptors, **more}), reasons


def parse(
    smiles: Sequence[str],
    config: GraphConfig | StoreInfo,
    pool: Pool = None,
    progress: Callable[[int], None] | None = None,
    kinds: Sequence[str] = (),
) -> _Parsed:
    """:func:`~graphslice.chem.molecule.read_smiles` in the processes of a pool; arguments as :func:`featurize`.

    Returns:
        Its molecules and reasons, and by each of ``kinds`` the descriptors of
        :func:`~graphslice.chem.descriptors.compute_descriptors`.
    """
    (parsed,) = _parse_chunks([smiles], config, pool, progress, kinds=kinds)
    return parsed


def _read(smiles: Sequence[str], atom_order: str, max_atoms: int, kinds: Sequence[str]) -> _Parsed:
    arrays, reasons = read_smiles(smiles, atom_order=atom_order, max_atoms=max_atoms)
    if not kinds:
        return arrays, reasons, {}
    molecules = [text if reason is None else "" for text, reason in zip(smiles, reasons, strict=True)]
    return arrays, reasons, compute_descriptors(molecules, kinds, max_atoms)


def _parse_chunks(
    chunks: Iterable[Sequence[str]],
    config: GraphConfig | StoreInfo,
    pool: Pool,
    progress: Callable[[int], None] | None = None,
    prefetch: bool = False,
    kinds: Sequence[str] = (),
) -> Iterator[_Parsed]:
    work = partial(_read, atom_order=config.atom_order, max_atoms=config.max_atoms, kinds=tuple(kinds))
    if pool is None:
        for chunk in chunks:
            yield _join((work(task) for task in _tasks(chunk, kinds)), kinds, progress)
        return
    begun: deque[list[_Futures]] = deque()
    try:
        for chunk in chunks:
            begun.append([pool.submit(work, task) for task in _tasks(chunk, kinds)])
            if len(begun) > prefetch:
                yield _join(_results(begun.popleft()), kinds, progress)
        while begun:
            yield _join(_results(begun.popleft()), kinds, progress)
    finally:
        for future in (future for futures in begun for future in futures):
            future.cancel()


def _results(futures: Iterable[_Futures]) -> Iterator[_Parsed]:
    for future in futures:
        for (arrays, reasons, descriptors), reason in future.result():
            yield arrays, reasons if reason is None else [reason], descriptors


def _task_rows(kinds: Sequence[str]) -> int:
    return _DESCRIBED_ROWS if kinds else _TASK_ROWS


def _tasks(smiles: Sequence[str], kinds: Sequence[str]) -> Iterator[Sequence[str]]:
    size = _task_rows(kinds)
    return (smiles[begin : begin + size] for begin in range(0, len(smiles), size))


def _join(results: Iterable[_Parsed], kinds: Sequence[str], progress: Callable[[int], None] | None) -> _Parsed:
    molecules: list[MolArrays] = []
    reasons: list[str | None] = []
    descriptors: dict[str, list[np.ndarray]] = {kind: [compute_descriptors([], [kind])[kind]] for kind in kinds}
    for arrays, some_reasons, some_descriptors in results:
        molecules.append(arrays)
        reasons += some_reasons
        for kind, values in some_descriptors.items():
            descriptors[kind].append(values)
        if progress:
            progress(len(some_reasons))
    return MolArrays.join(molecules), reasons, {kind: np.concatenate(parts) for kind, parts in descriptors.items()}
