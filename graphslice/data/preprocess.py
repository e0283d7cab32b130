"""Preprocessed datasets: a store file is cached at once, or built in shards that survive an interruption by
:func:`featurize_dataset` (``graphslice featurize``), on this machine or on a Ray cluster."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from filelock import FileLock

from graphslice.chem.descriptors import descriptor_kinds, feature_column_names
from graphslice.chem.hashes import hash_molecules
from graphslice.chem.molecule import MolArrays
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.batches import Progress, no_progress
from graphslice.data.cells import plain_numbers
from graphslice.data.columns import TableColumns, find_columns
from graphslice.data.dataset import LabelledDataset, check_usable, rechunk
from graphslice.data.featurize import Pool, featurizer_pool, parse
from graphslice.data.loaders import dataset_path, load_dataset
from graphslice.data.ogb import OGB_FOLDERS
from graphslice.data.rows import labelled_rows, parse_chunk
from graphslice.data.store import BATCH_ROWS, STORE_SUFFIX, GraphStore, StoreInfo, graph_settings, record_batch
from graphslice.data.tables import Rows, Shard, list_shards, open_table
from graphslice.data.targets import infer_tasks
from graphslice.errors import InputError, check_new, check_suffix, file_errors
from graphslice.system.files import atomic_write
from graphslice.system.machine import default_cache


def build_store(
    path: Path,
    chunks: Iterable[LabelledDataset],
    info: StoreInfo,
    *,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> GraphStore:
    """Featurize molecules into shards of ``BATCH_ROWS`` rows, joined atomically; a repeated call reuses shards of the
    same rows. An empty fingerprint becomes a hash."""

    def write_shards(folder: Path) -> Iterator[Path]:
        for number, rows in enumerate(rechunk(chunks, BATCH_ROWS, LabelledDataset.join)):
            shard = folder / f"{number:06}.arrow"
            shard_info = replace(info, source="", fingerprint=rows.digest())  # the same rows under any name
            if _existing_store(shard, shard_info) is None:
                with atomic_write(shard) as temporary:
                    _write(temporary, shard_info.schema(), [to_record_batch(rows, shard_info, pool, progress)])
            else:
                progress(len(rows))
            yield shard

    with featurizer_pool(None, workers, descriptor_kinds(info.descriptors)) as pool:
        return _assemble(path, info, write_shards)


def build_store_from_tables(
    path: Path, tables: Iterable[pa.Table], info: StoreInfo, progress: Progress = no_progress
) -> GraphStore:
    """Do the same as :func:`build_store` with rows that :func:`to_record_batch` converted elsewhere, as on a cluster;
    an interrupted call starts over. ``tables`` of any size have the columns of ``info.schema()``."""

    def write_shards(folder: Path) -> Iterator[Path]:
        cast = (table.cast(info.schema()) for table in tables)
        for number, table in enumerate(rechunk(cast, BATCH_ROWS, pa.concat_tables)):
            # combine_chunks would not copy a table of one chunk, a view whose buffers hold other rows too. Cutting it
            # in two forces the copy, so that the same rows give the same bytes, regardless of the chunks.
            table = pa.concat_tables([table.slice(0, 1), table.slice(1)]).combine_chunks()
            _write(folder / f"{number:06}.arrow", info.schema(), table.to_batches())
            progress(len(table))
            yield folder / f"{number:06}.arrow"

    return _assemble(path, info, write_shards)


def to_record_batch(
    rows: LabelledDataset, info: StoreInfo, pool: Pool = None, progress: Progress = no_progress
) -> pa.RecordBatch:
    """Parse labelled rows into a record batch of a store, with the graph settings and descriptors of ``info``."""
    if rows.all_labels.bounds is not None:
        raise InputError(
            "labels that are bounds, such as >5, are not kept in a preprocessed dataset: train on the table itself"
        )
    kinds = descriptor_kinds(info.descriptors)
    arrays, reasons, order, computed = parse(rows.smiles, info, pool, progress, kinds, info.level)
    columns = feature_column_names(info.descriptors)
    if columns and rows.columns is not None:
        computed |= dict(zip(columns, rows.columns.T, strict=True))
    for row, reason in rows.faults.items():
        if rows.smiles[row] == "" or reasons[row] is None:  # an invalid SMILES takes precedence over an invalid label
            reasons[row] = reason
    descriptors = {name: computed[name] for name in info.descriptors}
    keys = hash_molecules(arrays)
    return record_batch(info.schema(), arrays, reasons, rows.smiles, rows.targets, rows.split, descriptors, keys, order)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time write a file, and convert errors of the system."""
    with file_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            yield


def _existing_store(path: Path, info: StoreInfo) -> GraphStore | None:
    with suppress(InputError):
        store = GraphStore.open(path)
        return store if store.info == info else None
    return None


def _assemble(path: Path, info: StoreInfo, write_shards: Callable[[Path], Iterable[Path]]) -> GraphStore:
    """Join the shards that ``write_shards(folder)`` writes into the file, which is replaced atomically."""
    folder = path.with_name(f".{path.name}.parts")
    with _locked(path):
        try:
            folder.mkdir(exist_ok=True)
            shards = list(write_shards(folder))
            if not info.fingerprint:
                info = replace(info, fingerprint=_digest(_batches(shards)))
            with atomic_write(path) as temporary:
                _write(temporary, info.schema(), _batches(shards))
                shutil.rmtree(folder, ignore_errors=True)
                store = GraphStore.open(temporary)
                if len(store):
                    unusable = {row: store.errors[row] for row in store.unusable_rows().tolist()}
                    check_usable(info.source, len(store), unusable, smiles=store.smiles)
        finally:
            with suppress(OSError):
                folder.rmdir()  # succeeds only if there are no shards to resume from
    return GraphStore.open(path)


def _batches(shards: list[Path]) -> Iterator[pa.RecordBatch]:
    """Iterate over the record batches of all shards, mapping one shard at a time."""
    for shard in shards:
        reader = pa.ipc.open_file(pa.memory_map(str(shard)))
        yield from map(reader.get_batch, range(reader.num_record_batches))


def _digest(batches: Iterable[pa.RecordBatch]) -> str:
    digest = hashlib.sha256()
    for batch in batches:
        for buffer in (buffer for column in batch.columns for buffer in column.buffers() if buffer is not None):
            digest.update(buffer)
    return digest.hexdigest()[:16]


def _write(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with pa.ipc.new_file(str(path), schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))


def cached_store(
    dataset: LabelledDataset,
    config: GraphConfig,
    cache: Path | None = None,
    progress: Progress = no_progress,
    descriptors: Sequence[str] = (),
) -> GraphStore:
    """Return the store of a dataset, one row for each of its rows, from the cache if possible. A dataset of a store is
    that store, if it has the ``descriptors``; one of graphs is not cached."""
    if dataset.store is not None:
        dataset.store.check_graphs(config)
        dataset.store.check_descriptors(feature_column_names(descriptors))
        if set(descriptors) <= set(dataset.store.info.descriptors):
            return dataset.store
    if dataset.graphs is not None:
        if descriptors or config.standardize != "none":
            raise InputError("data.features and graph.standardize need SMILES, and the dataset holds graphs")
        return GraphStore.from_arrays(MolArrays.from_graphs(dataset.graphs))
    source = Path(dataset.name).name  # independent of the directory of the file
    settings = graph_settings(config)
    info = StoreInfo(source, dataset.fingerprint(), descriptors=tuple(descriptors), level=dataset.level, **settings)
    key = hashlib.sha256(repr(info.to_metadata()).encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "_", source)[:40]
    path = (cache or default_cache()) / f"{name}-{key}.arrow"
    if (store := _existing_store(path, info)) is not None:
        return store
    kinds = descriptor_kinds(info.descriptors)
    with _locked(path):
        if _existing_store(path, info) is None:  # unless another process has just written it
            with featurizer_pool(len(dataset), None, kinds) as pool, atomic_write(path) as temporary:
                batches = (to_record_batch(rows, info, pool, progress) for rows in dataset.chunks())
                _write(temporary, info.schema(), batches)
    return GraphStore.open(path)


def featurize_dataset(
    data: DataConfig,
    graph: GraphConfig,
    out: str | Path,
    *,
    workers: int | None = None,
    engine: str = "local",
    overwrite: bool = False,
    progress: Progress = no_progress,
    note: Callable[[str], object] = lambda text: None,  # called with remarks on how a table was read
) -> GraphStore:
    """Preprocess a dataset, streaming tables, which are read twice, since the first pass infers the tasks. With
    ``engine="ray"`` every machine must be able to read the files; an interrupted Ray run starts over."""
    out = Path(out)
    check_suffix(out, [STORE_SUFFIX])
    check_new(out, overwrite)
    info = StoreInfo(data.dataset, descriptors=data.descriptors, **graph_settings(graph))
    if data.dataset in OGB_FOLDERS or data.dataset == "demo":
        dataset = load_dataset(data)
        info = replace(info, targets=tuple(dataset.target_names))
        return build_store(out, dataset.chunks(), info, workers=workers, progress=progress)
    path = dataset_path(data.dataset)
    with open_table(path) as table:
        columns = find_columns(table.columns, data, str(path))
        chunks = (_with_parsed_features(plain_numbers(rows, data.decimal), columns) for rows in table.chunks)
        tasks = infer_tasks(chunks, columns.targets, data, str(path), columns.smiles)
    for text in (*table.notes, *columns.notes()):
        note(text)
    columns = replace(columns, tasks=tuple(tasks))
    info = replace(info, targets=tuple(columns.targets), tasks=tuple(task for task in tasks if task.classes))
    if engine == "ray":
        from graphslice.system.ray import map_on_cluster

        shards = list_shards(path, BATCH_ROWS)
        tables = map_on_cluster(shards, _shard_featurizer, (columns, info), workers=workers)
        return build_store_from_tables(out, tables, info, progress)
    return build_store(out, labelled_rows(path, columns), info, workers=workers, progress=progress)


def _with_parsed_features(rows: Rows, columns: TableColumns) -> Rows:
    columns.parse_features(rows)  # for the notes
    return rows


def _shard_featurizer(shared: tuple[TableColumns, StoreInfo]) -> Callable[[Shard], pa.Table]:
    columns, info = shared

    def featurize_shard(shard: Shard) -> pa.Table:
        with open_table(shard) as table:
            chunks = (parse_chunk(plain_numbers(rows, columns.decimal), columns) for rows in table.chunks)
            batches = [to_record_batch(labelled, info) for labelled in chunks]
        return pa.Table.from_batches(batches).replace_schema_metadata(None)

    return featurize_shard
