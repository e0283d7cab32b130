"""Building of a store file from labelled rows: by one process at a time, in shards that survive an interruption."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from filelock import FileLock, Timeout

from graphslice.atomic_write import atomic_write
from graphslice.chem.descriptors import descriptor_kinds, feature_column_names
from graphslice.chem.molecule_hash import hash_molecules
from graphslice.data.dataset import LabelledRows, rechunk_rows
from graphslice.data.featurize.pool import Pool, featurizer_pool, parse
from graphslice.data.store import BATCH_ROWS, GraphStore, StoreInfo, StoreRows
from graphslice.errors import InputError

Progress = Callable[[int], None] | None
Check = Callable[[GraphStore], None] | None


def build_store(
    path: Path,
    chunks: Iterable[LabelledRows],
    info: StoreInfo,
    *,
    workers: int | None = None,
    rows: int | None = None,
    progress: Progress = None,
    check: Check = None,
) -> GraphStore:
    """Featurize labelled molecules into a store file.

    Shards of :data:`~graphslice.data.store.BATCH_ROWS` rows are written to a directory next to the file and joined at
    the end; the file is replaced atomically. After an interruption the same call resumes: a shard is reused if it was
    made from the same rows. If several processes request the same file, one writes it and the others wait.

    Args:
        path: the file; an existing file is replaced.
        chunks: the rows, in chunks of any size.
        info: metadata of the file; an empty fingerprint is replaced by a hash of the contents.
        workers: number of parser processes; by default one per core.
        rows: number of rows, if known; few rows are parsed in this process.
        progress: called with the number of newly finished rows.
        check: called with the new store before the file is replaced; may raise InputError.

    Returns:
        The store, opened.

    Raises:
        InputError: if the file cannot be written, or ``check`` rejects it.
    """
    with _file_lock(path) as waited:
        # Another process may just have written this file. A fingerprint that is known in advance identifies its
        # source; otherwise only a file whose writer this process waited for can be the same.
        if (waited or info.fingerprint) and (store := _built_meanwhile(path, info)) is not None:
            return store
        with featurizer_pool(rows, workers, descriptor_kinds(info.descriptors)) as pool:
            return _assemble(path, info, _shards_from_rows(path, chunks, info, pool, progress), check)


def build_store_from_tables(
    path: Path, tables: Iterable[pa.Table], info: StoreInfo, progress: Progress = None, check: Check = None
) -> GraphStore:
    """Build a store file from rows that :func:`to_record_batch` converted elsewhere, such as on a cluster.

    An interrupted call starts over.

    Args:
        path: the file; an existing file is replaced.
        tables: tables of any size, with the columns of ``info.schema()``.
        info: metadata of the file; an empty fingerprint is replaced by a hash of the contents.
        progress: called with the number of newly finished rows.
        check: called with the new store before the file is replaced; may raise InputError.

    Returns:
        The store, opened.

    Raises:
        InputError: if the file cannot be written, or ``check`` rejects it.
    """
    with _file_lock(path):
        return _assemble(path, info, _shards_from_tables(path, tables, info, progress), check)


def to_record_batch(
    rows: LabelledRows, info: StoreInfo, pool: Pool = None, progress: Progress = None
) -> pa.RecordBatch:
    """Parse labelled rows into a record batch of a store.

    Args:
        rows: SMILES, labels and splits.
        info: metadata of the store, with the graph settings and the descriptors.
        pool: processes from :func:`featurizer_pool`; None to parse in this process.
        progress: called with the number of newly finished rows.
    """
    kinds = descriptor_kinds(info.descriptors)
    arrays, reasons, order, computed = parse(rows.smiles, info, pool, progress, kinds, info.level)
    columns = feature_column_names(info.descriptors)
    if columns and rows.columns is not None:
        computed |= dict(zip(columns, rows.columns.T, strict=True))
    for row, reason in rows.rejected.items():
        if rows.smiles[row] == "" or reasons[row] is None:  # an invalid SMILES takes precedence over an invalid label
            reasons[row] = reason
    descriptors = {name: computed[name] for name in info.descriptors}
    keys = hash_molecules(arrays)
    stored = StoreRows(arrays, reasons, rows.smiles, rows.targets, rows.split, descriptors, keys, order)
    return stored.record_batch(info.schema())


# --- one process at a time ------------------------------------------------------------------------


@contextmanager
def _file_lock(path: Path) -> Iterator[bool]:
    """Lock a file for writing; yields True if another process held the lock and this one waited."""
    waited = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"))
        try:
            lock.acquire(timeout=0.1)
        except Timeout:
            waited = True
            print(f"waiting for another process that is writing {path}", file=sys.stderr)
            lock.acquire()
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    try:
        yield waited
    finally:
        lock.release()


def _built_meanwhile(path: Path, info: StoreInfo) -> GraphStore | None:
    """Open the file if it exists and was made from the same source with the same settings."""
    with suppress(InputError):
        store = GraphStore.open(path)
        if store.info == (info if info.fingerprint else replace(info, fingerprint=store.info.fingerprint)):
            return store
    return None


# --- shards ---------------------------------------------------------------------------------------


def _shards_from_rows(
    path: Path, chunks: Iterable[LabelledRows], info: StoreInfo, pool: Pool, progress: Progress
) -> Iterator[Path]:
    for number, rows in enumerate(rechunk_rows(chunks, BATCH_ROWS)):
        shard = _shard(path, number)
        shard_info = replace(info, fingerprint=rows.digest())
        if not _is_current_shard(shard, shard_info):
            with atomic_write(shard) as temporary:
                _write(temporary, shard_info.schema(), [to_record_batch(rows, shard_info, pool, progress)])
        elif progress:
            progress(len(rows))
        yield shard


def _shards_from_tables(path: Path, tables: Iterable[pa.Table], info: StoreInfo, progress: Progress) -> Iterator[Path]:
    schema = info.schema()
    for number, table in enumerate(_resize_tables(tables, schema, progress)):
        shard = _shard(path, number)
        # combine_chunks would not copy a table of one chunk, a view whose buffers hold other rows too. Cutting it in
        # two forces the copy, so that the same rows give the same bytes, regardless of the chunks.
        table = pa.concat_tables([table.slice(0, 1), table.slice(1)]).combine_chunks()
        with atomic_write(shard) as temporary:
            _write(temporary, schema, table.to_batches())
        yield shard


def _resize_tables(tables: Iterable[pa.Table], schema: pa.Schema, progress: Progress) -> Iterator[pa.Table]:
    """Regroup rows into tables of exactly ``BATCH_ROWS`` rows, except the last."""
    pending: list[pa.Table] = []
    for table in tables:
        pending.append(table.cast(schema))
        if progress:
            progress(len(table))
        while sum(map(len, pending)) >= BATCH_ROWS:
            joined = pa.concat_tables(pending)
            yield joined.slice(0, BATCH_ROWS)
            pending = [joined.slice(BATCH_ROWS)]
    if sum(map(len, pending)):
        yield pa.concat_tables(pending)


def _is_current_shard(shard: Path, info: StoreInfo) -> bool:
    """True if an interrupted call left this shard, made from the same rows with the same settings."""
    if not shard.exists():
        return False
    try:
        shard_info = GraphStore.open(shard).info
    except InputError:
        return False
    return shard_info == replace(info, source=shard_info.source)


def _shard(path: Path, number: int) -> Path:
    return _shard_folder(path) / f"{number:06}.arrow"


def _shard_folder(path: Path) -> Path:
    return path.with_name(f".{path.name}.parts")


# --- files ----------------------------------------------------------------------------------------


def _assemble(path: Path, info: StoreInfo, shards: Iterable[Path], check: Check = None) -> GraphStore:
    """Join the shards into the file, which is replaced atomically. Iterating over ``shards`` creates them."""
    folder = _shard_folder(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shards = list(shards)
        if not info.fingerprint:
            info = replace(info, fingerprint=_shards_digest(shards))
        with atomic_write(path) as temporary:
            _write(temporary, info.schema(), _batches(shards))
            try:
                if check is not None:
                    check(GraphStore.open(temporary))
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            folder.rmdir()  # succeeds only if there are no shards to resume from
    return GraphStore.open(path)


def _batches(shards: list[Path]) -> Iterator[pa.RecordBatch]:
    """Iterate over the record batches of all shards, mapping one shard at a time."""
    for shard in shards:
        yield from GraphStore.open(shard).batches


def _shards_digest(shards: list[Path]) -> str:
    digest = hashlib.sha256()
    for batch in _batches(shards):
        for buffer in (buffer for column in batch.columns for buffer in column.buffers() if buffer is not None):
            digest.update(buffer)
    return digest.hexdigest()[:16]


def _write(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with pa.ipc.new_file(str(path), schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
