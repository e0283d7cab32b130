"""Preprocessing of a dataset into a store (``graphslice featurize``), on this machine or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.chem.descriptors import feature_column_names
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.columns import LabelColumns, check_feature_columns, find_columns
from graphslice.data.dataset_loaders import dataset_path, load_dataset
from graphslice.data.featurize.build import build_store, build_store_from_tables, to_record_batch
from graphslice.data.featurize.cache import safe_file_name
from graphslice.data.infer_tasks import infer_tasks
from graphslice.data.ogb_lsc import OGB_FOLDERS
from graphslice.data.parse_rows import labelled_rows, parse_chunk
from graphslice.data.splits import SPLIT_METHODS
from graphslice.data.store import STORE_SUFFIX, GraphStore, StoreInfo
from graphslice.data.tables import open_table, read_chunks, table_files
from graphslice.errors import InputError


@dataclass
class FeaturizeReport:
    """Result of :func:`featurize_dataset`.

    Attributes:
        store: the store.
        failed: number of rows without a valid molecule or label.
        first_error: error message of the first of them, or None.
    """

    store: GraphStore
    failed: int
    first_error: str | None


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
    """Preprocess a dataset into a file that training, evaluation and prediction read in its place.

    Tables and folders of tables are streamed, so memory does not grow with their size. Those with labels are read
    twice: the first pass infers the tasks.

    Args:
        data: the dataset; ``data.targets`` names the columns of a table that become labels.
        graph: settings of the graphs.
        out: the file, whose name must end in ``.arrow``.
        workers: number of parser processes; by default one per core.
        engine: ``"local"``, or ``"ray"`` for tables whose files every machine of a Ray cluster can read. An interrupted
            Ray run starts over.
        overwrite: replace an existing file.
        progress: called with the number of newly finished rows.

    Raises:
        InputError: if the dataset cannot be used or the file cannot be written.
    """
    out = Path(out)
    if not out.name.endswith(STORE_SUFFIX):
        raise InputError(f"cannot write {out}: the file name of a preprocessed dataset must end in {STORE_SUFFIX}")
    if out.exists() and not overwrite:
        raise InputError(f"{out} exists already: choose another --out, or use --overwrite")
    info = StoreInfo(
        safe_file_name(data.dataset), "", (), graph.atom_order, graph.max_atoms, descriptors=data.descriptors
    )
    if data.dataset in OGB_FOLDERS or data.dataset == "demo":
        if data.split is not None:
            raise InputError(
                f"{data.dataset} has its own split: use --split {data.split} when training on the preprocessed dataset"
            )
        dataset = load_dataset(data)
        info = replace(info, targets=tuple(dataset.target_names))
        store = build_store(out, dataset.chunks(), info, workers=workers, progress=progress, check=_check_usable)
    else:
        path = dataset_path(data.dataset)
        columns = table_columns(path, data)
        info = replace(
            info, targets=tuple(columns.targets), tasks=tuple(task for task in columns.tasks if task.classes)
        )
        if engine == "ray":
            from graphslice.engines.ray import map_table

            tables = map_table(table_files(path), read_chunks, _table_featurizer, (columns, info), workers=workers)
            store = build_store_from_tables(out, tables, info, progress, _check_usable)
        else:
            rows = labelled_rows(path, columns)
            store = build_store(out, rows, info, workers=workers, progress=progress, check=_check_usable)
    return FeaturizeReport(store, len(store.errors), next(iter(store.errors.values()), None))


def table_columns(path: Path, data: DataConfig) -> LabelColumns:
    """Find the columns of a table that become part of a store, and infer its tasks.

    Args:
        path: a table or a folder of tables.
        data: the dataset.

    Raises:
        InputError: if the table is already a store, cannot be read, or lacks a column.
    """
    if path.is_file() and path.name.endswith(STORE_SUFFIX):
        raise InputError(f"{path} is already a preprocessed dataset")
    if data.split in SPLIT_METHODS:
        raise InputError(
            f"a preprocessed dataset can only keep the split of a column: use --split {data.split} when training on it"
        )
    with open_table(path) as table:
        columns = find_columns(table.columns, data, str(path))
        return replace(columns, tasks=tuple(infer_tasks(table.chunks, columns.targets, data, str(path))))


def _table_featurizer(shared: tuple[LabelColumns, StoreInfo], gpu: bool) -> Callable[[pa.Table], pa.Table]:
    """Return the function with which a process of a Ray cluster converts chunks of a table."""
    columns, info = shared

    def featurize_chunk(chunk: pa.Table) -> pa.Table:
        return pa.Table.from_batches([to_record_batch(parse_chunk(chunk, columns), info)]).replace_schema_metadata(None)

    return featurize_chunk


def _check_usable(store: GraphStore) -> None:
    """Raise :class:`InputError` if a store has no usable row, or a column of descriptors has no number."""
    if len(store.errors) == len(store):
        first = next(iter(store.errors.values()), None)
        raise InputError(f"none of the {len(store):,} rows can be used; the first: {first}")
    columns = feature_column_names(store.info.descriptors)
    check_feature_columns(store.descriptors(np.arange(len(store)), columns), columns, store.info.source)
