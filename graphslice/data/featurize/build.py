"""A store file made of labelled rows: by one process at a time, in shards that outlast an interruption."""

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
from graphslice.data.checksum import write_checksum
from graphslice.data.featurize.pool import Pool, featurizer_pool, parse
from graphslice.data.labelled_rows import LabelledRows, rechunk_rows
from graphslice.data.store import BATCH_ROWS, GraphStore, StoreInfo, record_batch
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
    """Featurize labelled molecules into a file.

    The file is written in shards of :data:`~graphslice.data.store.BATCH_ROWS` rows beside it, and appears
    under its name when whole. After an interruption the same call goes on where that one was: a
    shard is used again if it was made of the same rows. Of several processes that want the same
    file, one makes it and the others wait.

    Args:
        path: of the file; another one there is replaced.
        chunks: the rows, in chunks of any sizes.
        info: what the file shall say of itself; an empty fingerprint becomes the hash of its contents.
        workers: processes that parse; every core by default.
        rows: how many there are, if known: few of them need no processes.
        progress: called with the number of rows done, from time to time.
        check: called with what was made before that takes the place of another file; may raise InputError.

    Raises:
        InputError: if the file cannot be written.
    """
    with _file_lock(path) as waited:
        # Another process may have made this very file just now. Where the fingerprint is known beforehand, the file
        # tells by it what it was made of; where not, only a file that this process has waited for can be that one.
        if (waited or info.fingerprint) and (made := _built_meanwhile(path, info)) is not None:
            return made
        with featurizer_pool(rows, workers, descriptor_kinds(info.descriptors)) as pool:
            return _assemble(path, info, _shards_from_rows(path, chunks, info, pool, progress), check)


def build_store_from_tables(
    path: Path, tables: Iterable[pa.Table], info: StoreInfo, progress: Progress = None, check: Check = None
) -> GraphStore:
    """:func:`build_store` of rows that :func:`to_record_batch` has made elsewhere; an interrupted call begins anew.

    ``tables``: in the columns of ``info.schema()``, of any sizes.
    """
    with _file_lock(path):
        return _assemble(path, info, _shards_from_tables(path, tables, info, progress), check)


def to_record_batch(
    rows: LabelledRows, info: StoreInfo, pool: Pool = None, progress: Progress = None
) -> pa.RecordBatch:
    """Parse some rows into rows of a store."""
    arrays, reasons, found = parse(rows.smiles, info, pool, progress, descriptor_kinds(info.descriptors))
    own = feature_column_names(info.descriptors)
    if own and rows.columns is not None:
        found |= dict(zip(own, rows.columns.T, strict=True))
    for row, reason in rows.rejected.items():
        if rows.smiles[row] == "" or reasons[row] is None:  # of a bad label and a bad SMILES, the SMILES
            reasons[row] = reason
    descriptors = {name: found[name] for name in info.descriptors}
    return record_batch(info.schema(), arrays, reasons, rows.targets, rows.split, descriptors)


# --- one process at a time ------------------------------------------------------------------------


@contextmanager
def _file_lock(path: Path) -> Iterator[bool]:
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


def _built_meanwhile(path: Path, info: StoreInfo) -> GraphStore | None:
    """The file, if it is there and was made of the same source in the same way."""
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
        of_these_rows = replace(info, fingerprint=rows.digest())
        if not _is_current_shard(shard, of_these_rows):
            with atomic_write(shard) as temporary:
                _write(temporary, of_these_rows.schema(), [to_record_batch(rows, of_these_rows, pool, progress)])
        elif progress:
            progress(len(rows))
        yield shard


def _shards_from_tables(path: Path, tables: Iterable[pa.Table], info: StoreInfo, progress: Progress) -> Iterator[Path]:
    schema = info.schema()
    for number, table in enumerate(_resize_tables(tables, schema, progress)):
        shard = _shard(path, number)
        # A table of one chunk would be left as it is: a view, whose buffers hold other rows too. Cut in two, it is
        # copied, so that the same rows make the same bytes however they come.
        table = pa.concat_tables([table.slice(0, 1), table.slice(1)]).combine_chunks()
        with atomic_write(shard) as temporary:
            _write(temporary, schema, table.to_batches())
        yield shard


def _resize_tables(tables: Iterable[pa.Table], schema: pa.Schema, progress: Progress) -> Iterator[pa.Table]:
    """The same rows in tables of exactly ``BATCH_ROWS`` rows, but for the last."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table.cast(schema))
        if progress:
            progress(len(table))
        while sum(map(len, waiting)) >= BATCH_ROWS:
            joined = pa.concat_tables(waiting)
            yield joined.slice(0, BATCH_ROWS)
            waiting = [joined.slice(BATCH_ROWS)]
    if sum(map(len, waiting)):
        yield pa.concat_tables(waiting)


def _is_current_shard(shard: Path, info: StoreInfo) -> bool:
    """Whether the shard of an interrupted call is there, made of the same rows in the same way."""
    if not shard.exists():
        return False
    try:
        found = GraphStore.open(shard).info
    except InputError:
        return False
    return found == replace(info, source=found.source)


def _shard(path: Path, number: int) -> Path:
    return _shard_folder(path) / f"{number:06}.arrow"


def _shard_folder(path: Path) -> Path:
    return path.with_name(f".{path.name}.parts")


# --- files ----------------------------------------------------------------------------------------


def _assemble(path: Path, info: StoreInfo, shards: Iterable[Path], check: Check = None) -> GraphStore:
    """Join shards to the file, in one go. The shards are made when they are iterated over."""
    folder = _shard_folder(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shards = list(shards)
        if not info.fingerprint:
            info = replace(info, fingerprint=_shards_digest(shards))
        with atomic_write(path) as whole:
            _write(whole, info.schema(), _batches(shards))
            try:
                if check is not None:
                    check(GraphStore.open(whole))
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
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
    write_checksum(path)
