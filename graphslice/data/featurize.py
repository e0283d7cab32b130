"""Parallel hashes, scaffolds, fingerprints and parsing of the molecules of a store. SMILES are read in a pool of
processes (:mod:`graphslice.chem.workers`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing import current_process
from typing import TypeAlias, TypeVar

import numpy as np

from graphslice.chem.descriptors import compute_descriptors
from graphslice.chem.fingerprints import FINGERPRINT_BITS, morgan_fingerprints
from graphslice.chem.graph_descriptors import graph_inputs
from graphslice.chem.hashes import MoleculeHashes, hash_molecules, hash_scaffolds
from graphslice.chem.molecule import ORDER_DTYPE, MolArrays, read_smiles
from graphslice.chem.parse import standardize_all
from graphslice.chem.workers import Workers, tasks
from graphslice.config import MOLECULE, GraphConfig
from graphslice.data.batches import Progress, no_progress
from graphslice.data.cells import plain_numbers
from graphslice.data.columns import TableColumns
from graphslice.data.store import GraphStore, StoreInfo
from graphslice.data.tables import Rows
from graphslice.errors import check_number
from graphslice.system.machine import cores

# SMILES per task of a process; fewer with descriptors, which take longer to compute.
_TASK_ROWS, _DESCRIPTOR_TASK_ROWS = 512, 64

#: Processes from :func:`featurizer_pool`; None starts one if a SMILES needs it.
Pool: TypeAlias = Workers | None

#: Molecules, for each None or the reason why it is invalid, the order of atoms or bonds, and descriptors by kind.
Parsed: TypeAlias = tuple[MolArrays, list[str | None], np.ndarray, dict[str, np.ndarray]]
_Label = TypeVar("_Label")
# Results of one task of a pool.
_Futures: TypeAlias = Future[list[tuple[Parsed, str | None]]]


@contextmanager
def featurizer_pool(
    rows: int | None = None, workers: int | None = None, kinds: Sequence[str] = ()
) -> Iterator[Workers]:
    """Start a pool for :func:`featurize_rows`. For few ``rows``, with one worker or in a daemon process, which may not
    start processes, this process reads all but intricate SMILES."""
    check_number("--workers", workers, 1)
    workers = cores() if workers is None else workers
    if workers < 2 or (rows is not None and rows < 4 * _task_rows(kinds)) or current_process().daemon:
        workers = 0
    else:  # otherwise every process would compile the kernels on first use, or read them from the cache
        _parse_task(["CCO"], GraphConfig(), MOLECULE, kinds)
    with closing(Workers(workers)) as pool:
        yield pool


def featurize_rows(
    chunks: Iterable[Rows],
    columns: TableColumns,
    config: GraphConfig,
    *,
    pool: Pool = None,
    progress: Progress = no_progress,
    prefetch: bool = False,
    kinds: Sequence[str] = (),
    level: str = MOLECULE,
) -> Iterator[tuple[Rows, GraphStore]]:
    """Read the molecules of a table into stores in memory, chunk by chunk; the faults of the rows become complete.
    ``prefetch`` parses the next chunk meanwhile: faster if the caller works on a GPU, slower if on the same cores."""
    texts = ((rows, rows.smiles(columns.smiles)) for rows in chunks)
    for rows, parsed in _parse_chunks(texts, config, level, pool, progress, prefetch, kinds):
        yield with_store(rows, columns, parsed, level)


def with_store(rows: Rows, columns: TableColumns, parsed: Parsed, level: str) -> tuple[Rows, GraphStore]:
    """Add the reasons of invalid molecules to the faults of rows, and store the molecules with their features."""
    arrays, reasons, order, descriptors = parsed
    values = columns.parse_features(plain_numbers(rows, columns.decimal, columns.features))
    features = dict(zip(columns.feature_names or columns.features, values.T, strict=True))
    invalid = {row: reason for row, reason in enumerate(reasons) if reason is not None}
    rows = replace(rows, faults=invalid | rows.faults)
    return rows, GraphStore.from_arrays(arrays, rows.errors, descriptors | features, order, level)


def parse(
    smiles: Sequence[str],
    config: GraphConfig | StoreInfo,
    pool: Pool = None,
    progress: Progress = no_progress,
    kinds: Sequence[str] = (),
    level: str = MOLECULE,
) -> Parsed:
    """Parse SMILES: the result of :func:`read_smiles`, and descriptors by kind."""
    ((_, parsed),) = _parse_chunks([(None, smiles)], config, level, pool, progress, kinds=kinds)
    return parsed


def _parse_task(smiles: Sequence[str], config: GraphConfig | StoreInfo, level: str, kinds: Sequence[str]) -> Parsed:
    max_atoms = config.max_atoms
    smiles, faults = standardize_all(smiles, config.standardize, max_atoms)
    arrays, reasons, order = read_smiles(smiles, level, atom_order=config.atom_order, max_atoms=max_atoms)
    reasons = [faults.get(row, reason) for row, reason in enumerate(reasons)] if faults else reasons
    if not kinds:
        return arrays, reasons, order, {}
    molecules = [text if reason is None else "" for text, reason in zip(smiles, reasons, strict=True)]
    return arrays, reasons, order, compute_descriptors(molecules, kinds, max_atoms)


def _parse_chunks(
    chunks: Iterable[tuple[_Label, Sequence[str]]],  # SMILES, with anything that belongs to them
    config: GraphConfig | StoreInfo,
    level: str,
    pool: Pool,
    progress: Progress = no_progress,
    prefetch: bool = False,
    kinds: Sequence[str] = (),
) -> Iterator[tuple[_Label, Parsed]]:
    work = partial(_parse_task, config=config, level=level, kinds=tuple(kinds))
    pending: deque[tuple[_Label, list[_Futures]]] = deque()
    with featurizer_pool(0) if pool is None else nullcontext(pool) as workers:
        try:
            for label, smiles in chunks:
                pending.append((label, [workers.submit(work, task) for task in tasks(smiles, _task_rows(kinds))]))
                if len(pending) > prefetch:
                    label, futures = pending.popleft()
                    yield label, _join(futures, kinds, progress)
            for label, futures in pending:
                yield label, _join(futures, kinds, progress)
        finally:
            for future in (future for _, futures in pending for future in futures):
                future.cancel()


def _task_rows(kinds: Sequence[str]) -> int:
    return _DESCRIPTOR_TASK_ROWS if kinds else _TASK_ROWS


def _join(futures: Iterable[_Futures], kinds: Sequence[str], progress: Progress) -> Parsed:
    molecules: list[MolArrays] = []
    reasons: list[str | None] = []
    orders = [np.empty((0, 2), ORDER_DTYPE)]
    descriptors: dict[str, list[np.ndarray]] = {kind: [compute_descriptors([], [kind])[kind]] for kind in kinds}
    for (arrays, task_reasons, order, task_descriptors), lost in (part for f in futures for part in f.result()):
        molecules.append(arrays)
        reasons += task_reasons if lost is None else [lost]
        orders.append(order)
        for kind, values in task_descriptors.items():
            descriptors[kind].append(values)
        progress(len(arrays))
    joined = {kind: np.concatenate(parts) for kind, parts in descriptors.items()}
    return MolArrays.join(molecules), reasons, np.concatenate(orders), joined


# Number of molecules that are copied from a store at a time.
_CHUNK_ROWS = 4_096


def molecule_keys(store: GraphStore, rows: np.ndarray) -> MoleculeHashes:
    """Return identity and family hashes of rows ``int64 [R]``, each with an atom, computed if not stored."""
    if (keys := store.keys) is not None:
        return MoleculeHashes(keys.identity[rows], keys.family[rows])
    hashes = _map_chunks(store, rows, lambda arrays: np.stack(hash_molecules(arrays), axis=1))
    return MoleculeHashes(*np.ascontiguousarray(hashes.T))


def molecule_ids(store: GraphStore, rows: np.ndarray) -> np.ndarray:
    """Number the molecules of some rows of a store: ``int64 [R]``, equal for rows of the same molecule."""
    return np.unique(molecule_keys(store, rows).identity, return_inverse=True)[1]


def scaffold_keys(store: GraphStore, rows: np.ndarray) -> np.ndarray:
    """Compute the scaffold hashes of some molecules of a store, ``uint64 [R]``; see :func:`molecule_keys`."""
    return _map_chunks(store, rows, hash_scaffolds)


def fingerprint_rows(store: GraphStore, rows: np.ndarray, bits: int = FINGERPRINT_BITS) -> np.ndarray:
    """Compute the Morgan fingerprints of some molecules of a store, ``bool [R, bits]``; see :func:`molecule_keys`."""
    return _map_chunks(store, rows, lambda arrays: morgan_fingerprints(arrays, bits))


def graph_input_rows(store: GraphStore, rows: np.ndarray) -> np.ndarray:
    """Compute the inputs of base models for molecules of a store, ``float32 [R, F]``; see :func:`molecule_keys`."""
    return _map_chunks(store, rows, graph_inputs)


def molecule_arrays(store: GraphStore, rows: np.ndarray) -> MolArrays:
    """Concatenate the arrays of some molecules of a store; ``rows``: ``int64 [R]``, each with at least one atom."""
    atom_ptr, bond_ptr, padded, _, bonds, bond_type_ids = store.gather(rows)
    valid = np.arange(padded.shape[1]) < np.diff(atom_ptr)[:, None]
    return MolArrays(atom_ptr, bond_ptr, padded[valid], bonds, bond_type_ids)


def _map_chunks(store: GraphStore, rows: np.ndarray, function: Callable[[MolArrays], np.ndarray]) -> np.ndarray:
    """Concatenate a function of chunks of molecules, in one thread per core; compiled functions run in parallel."""
    if len(rows) <= _CHUNK_ROWS:
        return function(molecule_arrays(store, rows))
    chunks = [rows[begin : begin + _CHUNK_ROWS] for begin in range(0, len(rows), _CHUNK_ROWS)]
    with ThreadPoolExecutor(cores()) as pool:
        return np.concatenate(list(pool.map(lambda chunk: function(molecule_arrays(store, chunk)), chunks)))
