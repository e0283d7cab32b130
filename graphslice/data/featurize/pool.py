"""SMILES to molecules on every core: the processes, and what each of them gets at a time."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial

import numpy as np

from graphslice.chem.descriptors import compute_descriptors
from graphslice.chem.molecule import MolArrays, read_smiles
from graphslice.config import GraphConfig
from graphslice.data.store import GraphStore, StoreInfo
from graphslice.errors import InputError
from graphslice.hardware import cores

# SMILES that a process gets at a time; fewer where their descriptors are asked for too, which take longer.
_TASK_ROWS, _DESCRIBED_ROWS = 512, 64

#: Processes of :func:`featurizer_pool`; None where this process does the work itself.
Pool = Executor | None

# Molecules, for each None or the reason why it is none, and descriptors by kind.
_Parsed = tuple[MolArrays, list[str | None], dict[str, np.ndarray]]


@contextmanager
def featurizer_pool(rows: int | None = None, workers: int | None = None, kinds: Sequence[str] = ()) -> Iterator[Pool]:
    """Processes for :func:`featurize`.

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
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Forked where that exists: the children touch neither torch nor a GPU.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(workers, context, initializer=_exit_with_parent, initargs=(os.getpid(),)) as pool:
        yield pool


def _exit_with_parent(parent: int) -> None:
    """Let this process end when its parent is gone, however that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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
    begun: deque[list[Future[_Parsed]]] = deque()
    try:
        for chunk in chunks:
            begun.append([pool.submit(work, task) for task in _tasks(chunk, kinds)])
            if len(begun) > prefetch:
                yield _join((future.result() for future in begun.popleft()), kinds, progress)
        while begun:
            yield _join((future.result() for future in begun.popleft()), kinds, progress)
    finally:
        for future in (future for futures in begun for future in futures):
            future.cancel()


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
