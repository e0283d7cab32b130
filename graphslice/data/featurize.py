"""SMILES to GraphStore on every core: in memory, or into a file that survives an interruption."""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from filelock import FileLock, Timeout

from graphslice.chem.molecule import MolArrays, read_smiles
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.ogb_lsc import FOLDERS
from graphslice.data.rows import Rows, rows_of
from graphslice.data.sources import (
    STORE_SUFFIX,
    Source,
    dataset_path,
    label_columns,
    labelled,
    labelled_rows,
    load_source,
)
from graphslice.data.store import ROWS, GraphStore, StoreInfo, record_batch, seal
from graphslice.data.tables import read_chunks, shards
from graphslice.errors import InputError

# SMILES that a process gets at a time.
_CHUNK = 512

Pool = ProcessPoolExecutor | None


@contextmanager
def featurizers(rows: int | None = None, workers: int | None = None) -> Iterator[Pool]:
    """Processes for :func:`featurize`: every core by default, none where few rows would not pay for them."""
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, not {workers}")
    workers = _cores() if workers is None else workers
    if workers < 2 or (rows is not None and rows < 4 * _CHUNK):
        yield None
        return
    # Forked where that exists: the children touch neither torch nor a GPU.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(workers, context, initializer=_end_with, initargs=(os.getpid(),)) as pool:
        yield pool


def _end_with(parent: int) -> None:
    """Let this process end when its parent is gone, however that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _cores() -> int:
    """The cores that this process may use, which a container or a scheduler may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
        pool: of :func:`featurizers`; in this process without one.
        progress: called with the number of rows done, from time to time.

    Returns:
        A store with a row for each, and for every row None or the reason why it has no molecule.
    """
    ((arrays, reasons),) = _parse_pieces([smiles], config, pool, progress)
    return GraphStore.from_arrays(arrays, reasons), reasons


def featurize_stream(
    pieces: Iterable[Sequence[str]],
    config: GraphConfig,
    *,
    pool: Pool = None,
    ahead: bool = False,
) -> Iterator[tuple[GraphStore, list[str | None]]]:
    """:func:`featurize` piece by piece.

    With ``ahead`` the processes of the pool parse the next piece while the caller uses the last: good
    where that is a GPU's work, bad where both want the same cores.
    """
    for arrays, reasons in _parse_pieces(pieces, config, pool, ahead=ahead):
        yield GraphStore.from_arrays(arrays, reasons), reasons


def _parse_pieces(
    pieces: Iterable[Sequence[str]],
    config: GraphConfig | StoreInfo,
    pool: Pool,
    progress: Callable[[int], None] | None = None,
    ahead: bool = False,
) -> Iterator[tuple[MolArrays, list[str | None]]]:
    work = partial(read_smiles, atom_order=config.atom_order, max_atoms=config.max_atoms)
    if pool is None:
        for piece in pieces:
            yield _gathered((work(chunk) for chunk in _chunks(piece)), progress)
        return
    begun: deque[list[Future]] = deque()
    try:
        for piece in pieces:
            begun.append([pool.submit(work, chunk) for chunk in _chunks(piece)])
            if len(begun) > ahead:
                yield _gathered((future.result() for future in begun.popleft()), progress)
        while begun:
            yield _gathered((future.result() for future in begun.popleft()), progress)
    finally:
        for future in (future for futures in begun for future in futures):
            future.cancel()


def _chunks(smiles: Sequence[str]) -> Iterator[Sequence[str]]:
    return (smiles[begin : begin + _CHUNK] for begin in range(0, len(smiles), _CHUNK))


def _gathered(
    results: Iterable[tuple[MolArrays, list[str | None]]], progress: Callable[[int], None] | None
) -> tuple[MolArrays, list[str | None]]:
    parts, reasons = [], []
    for arrays, chunk_reasons in results:
        parts.append(arrays)
        reasons += chunk_reasons
        if progress:
            progress(len(chunk_reasons))
    return MolArrays.join(parts), reasons


# --- files ----------------------------------------------------------------------------------------


def build_store(
    path: Path,
    pieces: Iterable[Rows],
    info: StoreInfo,
    *,
    workers: int | None = None,
    rows: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> GraphStore:
    """Featurize labelled molecules into a file.

    The file is written in shards of :data:`~graphslice.data.store.ROWS` rows beside it, and appears
    under its name when whole. After an interruption the same call goes on where that one was: a
    shard is used again if it was made of the same rows. Of several processes that want the same
    file, one makes it and the others wait.

    Args:
        path: of the file; another one there is replaced.
        pieces: the rows, of any sizes.
        info: what the file shall say of itself; an empty fingerprint becomes the hash of its contents.
        workers: processes that parse; every core by default.
        rows: how many there are, if known: few of them need no processes.
        progress: called with the number of rows done, from time to time.

    Raises:
        InputError: if the file cannot be written.
    """
    with _only_one(path) as waited:
        # Who knows the fingerprint knows the file again; who has waited takes what was waited for.
        if (waited or info.fingerprint) and (made := _made_meanwhile(path, info)) is not None:
            return made
        with featurizers(rows, workers) as pool:
            return _assemble(path, info, _shards(path, pieces, info, pool, progress))


def _made_meanwhile(path: Path, info: StoreInfo) -> GraphStore | None:
    """The file that another process has made of the same source in the same way."""
    with suppress(InputError):
        store = GraphStore.open(path)
        if store.info == (info if info.fingerprint else replace(info, fingerprint=store.info.fingerprint)):
            return store
    return None


def _shards(
    path: Path, pieces: Iterable[Rows], info: StoreInfo, pool: Pool, progress: Callable[[int], None] | None
) -> Iterator[Path]:
    for number, piece in enumerate(rows_of(pieces)):
        shard = _parts(path) / f"{number:06}.arrow"
        about = replace(info, fingerprint=piece.digest())
        if not _is_made(shard, about):
            _write(shard, about.schema(), [to_batch(piece, about, pool, progress)])
        elif progress:
            progress(len(piece))
        yield shard


def _parts(path: Path) -> Path:
    return path.with_name(f".{path.name}.parts")


def _assemble(path: Path, info: StoreInfo, shards: Iterable[Path]) -> GraphStore:
    """Join shards to the file, in one go."""
    folder = _parts(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shards = list(shards)
        if not info.fingerprint:
            info = replace(info, fingerprint=_hash_of(shards))
        whole = folder / "whole.arrow"
        _write(whole, info.schema(), _batches(shards))
        whole.replace(path)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            folder.rmdir()  # where nothing was begun
    return GraphStore.open(path)


def _batches(shards: list[Path]) -> Iterator[pa.RecordBatch]:
    """One shard mapped at a time."""
    for shard in shards:
        yield from GraphStore.open(shard).batches


def _hash_of(shards: list[Path]) -> str:
    digest = hashlib.sha256()
    for batch in _batches(shards):
        for buffer in (buffer for column in batch.columns for buffer in column.buffers() if buffer is not None):
            digest.update(buffer)
    return digest.hexdigest()[:16]


def to_batch(
    rows: Rows, info: StoreInfo, pool: Pool = None, progress: Callable[[int], None] | None = None
) -> pa.RecordBatch:
    """Parse some rows into rows of a store."""
    ((arrays, reasons),) = _parse_pieces([rows.smiles], info, pool, progress)
    for row, reason in rows.rejected.items():
        reasons[row] = reasons[row] or reason
    return record_batch(info.schema(), arrays, reasons, rows.targets, rows.split)


def _is_made(shard: Path, info: StoreInfo) -> bool:
    """Whether the shard of an interrupted call is there, made of the same rows in the same way."""
    if not shard.exists():
        return False
    try:
        found = GraphStore.open(shard).info
    except InputError:
        return False
    return found == replace(info, source=found.source)


def _write(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    temporary = path.with_name(f"{path.name}.writing")
    with pa.ipc.new_file(str(temporary), schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    seal(temporary)
    temporary.replace(path)


@contextmanager
def _only_one(path: Path) -> Iterator[bool]:
    """Hold the right to write a file; yields whether another process had it and was waited for."""
    waited = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"))
        try:
            lock.acquire(timeout=0.1)
        except Timeout:
            waited = True
            print(f"waiting for another process that writes {path}", file=sys.stderr)
            lock.acquire()
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    try:
        yield waited
    finally:
        lock.release()


@dataclass
class FeaturizeReport:
    """How it went: the store, rows without a molecule or label, the first reason."""

    store: GraphStore
    failed: int
    first_reason: str | None


def featurize_dataset(
    data: DataConfig,
    graph: GraphConfig,
    out: str | Path,
    *,
    workers: int | None = None,
    engine: str = "local",
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> FeaturizeReport:
    """Featurize a data set into a file that training, evaluation and prediction read in place of it.

    Tables and folders of tables are streamed: memory does not grow with them.

    Args:
        data: which; of a table, those columns become labels that ``data.targets`` names.
        graph: how molecules become graphs.
        out: the file, whose name must end in ``.arrow``.
        workers: processes that parse; every core by default.
        engine: ``"local"``, or ``"ray"`` for tables whose files every machine of a Ray cluster can read;
            an interruption of Ray itself begins anew.
        overwrite: replace a file of that name.
        progress: called with the number of rows done, from time to time.

    Raises:
        InputError: if the data cannot be used or the file not be written.
    """
    out = Path(out)
    if not out.name.endswith(STORE_SUFFIX):
        raise InputError(f"cannot write {out}: the name of a store must end in {STORE_SUFFIX}")
    if out.exists() and not overwrite:
        raise InputError(f"{out} exists already: choose another --out, or give --overwrite")
    info = StoreInfo(data.dataset, "", (), graph.atom_order, graph.max_atoms)
    if data.dataset in FOLDERS or data.dataset == "demo":
        if data.split is not None:
            raise InputError(f"{data.dataset} has its own split; give --split {data.split} when you train on the store")
        source = load_source(data)
        info = replace(info, targets=tuple(source.target_names))
        store = build_store(out, source.pieces(), info, workers=workers, progress=progress)
    else:
        path = dataset_path(data.dataset)
        if path.is_file() and path.name.endswith(STORE_SUFFIX):
            raise InputError(f"{path} is featurized already")
        columns = label_columns(path, data)
        info = replace(info, targets=tuple(columns[1]))
        if engine == "ray":
            from graphslice.engines.ray import map_table

            with _only_one(out):
                pieces = map_table(shards(path), read_chunks, _featurizing, (columns, info), workers=workers)
                store = _assemble(out, info, _gathered_shards(out, info, pieces, progress))
        else:
            store = build_store(out, labelled_rows(path, columns), info, workers=workers, progress=progress)
    errors = store.errors
    if not (store.sizes > 0).any():
        out.unlink()
        raise InputError(f"none of the {len(store):,} rows can be used; the first: {next(iter(errors.values()))}")
    return FeaturizeReport(store, len(errors), next(iter(errors.values()), None))


def _featurizing(
    shared: tuple[tuple[str, list[str], str | None], StoreInfo], gpu: bool
) -> Callable[[pa.Table], pa.Table]:
    """What a process of a cluster does with each piece of a table."""
    columns, info = shared

    def rows_of_store(piece: pa.Table) -> pa.Table:
        return pa.Table.from_batches([to_batch(labelled(piece, *columns), info)]).replace_schema_metadata(None)

    return rows_of_store


def _gathered_shards(
    path: Path, info: StoreInfo, pieces: Iterable[pa.Table], progress: Callable[[int], None] | None
) -> Iterator[Path]:
    """Shards of pieces of any sizes that are rows of a store already."""
    schema, held, number = info.schema(), [], 0
    for piece in itertools.chain(pieces, [None]):
        if piece is not None:
            held.append(piece.cast(schema))
            if progress:
                progress(len(piece))
        while sum(map(len, held)) >= (ROWS if piece is not None else 1):
            table = pa.concat_tables(held)
            shard = _parts(path) / f"{number:06}.arrow"
            _write(shard, schema, table.slice(0, ROWS).combine_chunks().to_batches())
            yield shard
            held, number = [table.slice(ROWS)], number + 1


# --- the cache ------------------------------------------------------------------------------------


def default_cache() -> Path:
    """Where featurized molecules are kept: ``$GRAPHSLICE_CACHE``, else the user's cache folder."""
    if given := os.environ.get("GRAPHSLICE_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "graphslice"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.gettempdir()) / f"graphslice-cache-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def store_of(
    source: Source, config: GraphConfig, cache: Path | None = None, progress: Callable[[int], None] | None = None
) -> GraphStore:
    """The molecules of a source, row by row: from the cache, where they are put when first asked for.

    Args:
        source: of SMILES, of graphs, or a store itself.
        config: how molecules become graphs.
        cache: folder; :func:`default_cache` when not given.
        progress: called with the number of rows done, from time to time.

    Raises:
        InputError: if the cache cannot be written, or the source is a store of other graphs.
    """
    if source.store is not None:
        check_graphs(source.store, config)
        return source.store
    if source.graphs is not None:
        return GraphStore.from_graphs(source.graphs)
    info = StoreInfo(source.name, source.fingerprint(), tuple(source.target_names), config.atom_order, config.max_atoms)
    key = hashlib.sha256(repr((info.fingerprint, info.to_metadata())).encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "_", Path(source.name).name)[:40]
    path = (cache or default_cache()) / f"{name}-{key}.arrow"
    found = _cached(path, info)
    return build_store(path, source.pieces(), info, rows=len(source), progress=progress) if found is None else found


def _cached(path: Path, info: StoreInfo) -> GraphStore | None:
    if not path.exists():
        return None
    try:
        store = GraphStore.open(path)
    except InputError as error:
        print(f"{str(error).split(':')[0]}: making it again", file=sys.stderr)
        return None
    return store if store.info == info else None


def check_graphs(store: GraphStore, config: GraphConfig) -> None:
    """Raise :class:`InputError` if a store's molecules were made otherwise than a model wants them."""
    info = store.info
    if (info.atom_order, info.max_atoms) != (config.atom_order, config.max_atoms):
        raise InputError(
            f"{store.name} has atoms in {info.atom_order} order and molecules of at most {info.max_atoms} atoms; "
            f"the model wants {config.atom_order} and {config.max_atoms}: featurize with "
            f"--graph.atom_order {config.atom_order} --graph.max_atoms {config.max_atoms}"
        )
