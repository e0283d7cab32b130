"""A whole data set into a store: what ``graphslice featurize`` does, on this machine or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.chem.descriptors import feature_column_names
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.columns import check_feature_columns
from graphslice.data.dataset_loaders import dataset_path, load_dataset
from graphslice.data.featurize.build import build_store, build_store_from_tables, to_record_batch
from graphslice.data.featurize.cache import safe_file_name
from graphslice.data.infer_tasks import infer_tasks
from graphslice.data.labels import LabelColumns, find_columns, labelled_rows, parse_chunk
from graphslice.data.ogb_lsc import OGB_FOLDERS
from graphslice.data.splits import SPLIT_METHODS
from graphslice.data.store import STORE_SUFFIX, GraphStore, StoreInfo
from graphslice.data.tables import open_table, read_chunks, table_files
from graphslice.errors import InputError


@dataclass
class FeaturizeReport:
    """How it went: the store, rows without a molecule or label, the first reason."""

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
    """Featurize a data set into a file that training, evaluation and prediction read in place of it.

    Tables and folders of tables are streamed, twice where they have labels, whose kinds are found first: memory does
    not grow with them.

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
    info = StoreInfo(
        safe_file_name(data.dataset), "", (), graph.atom_order, graph.max_atoms, descriptors=data.descriptors
    )
    if data.dataset in OGB_FOLDERS or data.dataset == "demo":
        if data.split is not None:
            raise InputError(f"{data.dataset} has its own split; give --split {data.split} when you train on the store")
        source = load_dataset(data)
        info = replace(info, targets=tuple(source.target_names))
        store = build_store(out, source.chunks(), info, workers=workers, progress=progress, check=_check_usable)
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
    """The columns of a table that a store keeps.

    Raises:
        InputError: if the table is a store itself, cannot be read, or has no such column.
    """
    if path.is_file() and path.name.endswith(STORE_SUFFIX):
        raise InputError(f"{path} is featurized already")
    if data.split in SPLIT_METHODS:
        raise InputError(f"a store keeps the split of a column; give --split {data.split} when you train on it")
    with open_table(path) as table:
        columns = find_columns(table.columns, data, str(path))
        return replace(columns, tasks=tuple(infer_tasks(table.chunks, columns.targets, data, str(path))))


def _table_featurizer(shared: tuple[LabelColumns, StoreInfo], gpu: bool) -> Callable[[pa.Table], pa.Table]:
    """What a process of a cluster does with each chunk of a table."""
    columns, info = shared

    def featurize_chunk(chunk: pa.Table) -> pa.Table:
        return pa.Table.from_batches([to_record_batch(parse_chunk(chunk, columns), info)]).replace_schema_metadata(None)

    return featurize_chunk


def _check_usable(store: GraphStore) -> None:
    """Raise :class:`InputError` if a store has no row that can be used, or a column of descriptors no number."""
    if len(store.errors) == len(store):
        first = next(iter(store.errors.values()), None)
        raise InputError(f"none of the {len(store):,} rows can be used; the first: {first}")
    own = feature_column_names(store.info.descriptors)
    check_feature_columns(store.descriptors(np.arange(len(store)), own), own, store.info.source)
