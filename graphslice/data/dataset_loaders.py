"""Loaders of labelled datasets: the demo set, tables, preprocessed datasets and OGB's PCQM4M-LSC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from graphslice.chem.descriptors import feature_column_names
from graphslice.config import MOLECULE, DataConfig, join_names
from graphslice.data.columns import (
    FeatureColumns,
    LabelColumns,
    check_feature_columns,
    find_columns,
    require_column,
)
from graphslice.data.dataset import LabelledDataset, LabelledRows, reject_unlabelled, rename_tasks, usable_mask
from graphslice.data.decimals import plain_numbers
from graphslice.data.excel import split_sheet
from graphslice.data.frames import NAME, as_table, reject_molecules
from graphslice.data.infer_tasks import infer_target, infer_tasks
from graphslice.data.labels import Labels
from graphslice.data.ogb_lsc import OGB_FOLDERS, OGB_TARGET, load_pcqm4m
from graphslice.data.parse_rows import parse_chunks
from graphslice.data.splits import SPLIT_METHODS, decode_splits
from graphslice.data.store import STORE_SUFFIX, GraphStore
from graphslice.data.store_dataset import dataset_from_store
from graphslice.data.tables import TABLE_SUFFIXES, malformed_rows, open_table, reject_other_atom_order, texts
from graphslice.errors import InputError, nearest
from graphslice.package_data import DEMO_CSV
from graphslice.tasks import Task, regression_tasks


def load_dataset(config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """Load the labelled dataset of a configuration; ``tasks`` of its targets are inferred if they are None."""
    if config.valid_file or config.test_file:
        return _dataset_from_files(config, tasks)
    if config.level != MOLECULE and (config.dataset in OGB_FOLDERS or config.dataset.lower().endswith(STORE_SUFFIX)):
        raise InputError(
            f"{config.dataset} has molecule-level labels: data.level {config.level} needs a table with lists of numbers"
        )
    if config.dataset in OGB_FOLDERS:
        return _dataset_from_ogb(config)
    path = dataset_path(config.dataset)
    if path.name.lower().endswith(STORE_SUFFIX):
        return dataset_from_store(GraphStore.open(path), config, tasks)
    return dataset_from_table(path, config, tasks)


def _dataset_from_files(config: DataConfig, tasks: Sequence[Task] | None) -> LabelledDataset:
    """Combine a training table with separate tables of the validation set, the test set, or both."""
    files = {"valid": config.valid_file, "test": config.test_file}
    split_files = {split: file for split, file in files.items() if file}
    for file in (config.dataset, *split_files.values()):
        if is_dataset_name(file) or file.lower().endswith(STORE_SUFFIX):
            raise InputError(f"{file} is not a table: valid_file and test_file need tables of labelled molecules")
    train_config = replace(config, valid_file=None, test_file=None)
    parts = [dataset_from_table(dataset_path(config.dataset), train_config, tasks)]
    splits = parts[0].splits or {"train": np.flatnonzero(usable_mask(len(parts[0]), parts[0].rejected))}
    targets = join_names(parts[0].target_names)
    for split, file in split_files.items():
        if split in splits:
            raise InputError(
                f"the split column of {config.dataset} already has {split} rows: leave out {split}_file, or give "
                "data.split random"
            )
        # A split column of this file is ignored, because the whole file is one split.
        data = replace(train_config, dataset=file, targets=targets, split="random")
        part = dataset_from_table(dataset_path(file), data, parts[0].tasks)
        first = sum(map(len, parts))
        splits = splits | {split: first + np.flatnonzero(usable_mask(len(part), part.rejected))}
        parts.append(part)
    notes = tuple(f"{part.name}: {note}" for part in parts for note in part.notes)
    return replace(LabelledDataset.join(parts), splits=splits, notes=notes)


def dataset_path(dataset: str) -> Path:
    """Return the path of a dataset other than OGB's."""
    path = DEMO_CSV if dataset == "demo" else Path(dataset)
    if dataset != "demo" and not path.exists() and path.suffix == "":
        names = ["demo", *OGB_FOLDERS]
        raise InputError(
            f"unknown dataset {dataset!r}{nearest(dataset, names)}: give {', '.join(names)}, the path of a CSV, TSV, "
            "Excel, Parquet or SDF file, of a folder of such files, or of a preprocessed dataset of graphslice "
            "featurize"
        )
    return path


def is_dataset_name(dataset: str) -> bool:
    """True if ``dataset`` is the name of a built-in dataset, even if a folder has the same name."""
    return dataset in ("demo", "pyg", *OGB_FOLDERS)


def absolute_dataset(dataset: str) -> str:
    """Return the absolute path of a dataset; names of built-in datasets stay unchanged."""
    path = Path(dataset)
    return dataset if is_dataset_name(dataset) or not split_sheet(path)[0].exists() else str(path.resolve())


def _dataset_from_ogb(config: DataConfig) -> LabelledDataset:
    """Load PCQM4M-LSC, version 1 or 2, with OGB's splits."""
    if config.split is not None or config.folds is not None:
        raise InputError(f"{config.dataset} always uses OGB's split: leave out split and folds")
    smiles, gaps, splits = load_pcqm4m(config.dataset, config.root)
    if config.targets not in (None, OGB_TARGET):
        raise InputError(f"{config.dataset} has the single target {OGB_TARGET}, not {config.targets!r}")
    for column in feature_column_names(config.descriptors):
        require_column(column, [], config.dataset)
    return LabelledDataset(
        config.dataset, smiles, Labels.of_molecules(gaps[:, None]), regression_tasks([OGB_TARGET]), splits=splits
    )


def dataset_from_table(path: Path, config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """Load the labelled molecules of a CSV, TSV, Excel, Parquet or SDF file, or of a folder of such files."""
    if path.is_file() and not path.name.lower().endswith(TABLE_SUFFIXES):
        raise InputError(
            f"{path}: GraphSlice reads labelled molecules from {', '.join(TABLE_SUFFIXES)} and {STORE_SUFFIX}"
        )
    name = config.dataset
    with open_table(path) as table:
        if config.level != MOLECULE:
            reject_other_atom_order(table, path)
        columns = find_columns(table.columns, config, name, SPLIT_METHODS)
        chunks = list(table.chunks)
    dataset = dataset_from_chunks(chunks, columns, config, name, tasks)
    return replace(dataset, notes=(*table.notes, *dataset.notes))


def dataset_from_chunks(
    chunks: Sequence[pa.Table], columns: LabelColumns, config: DataConfig, name: str, tasks: Sequence[Task] | None
) -> LabelledDataset:
    """Load the labelled molecules of all chunks, at least one, of a table; ``tasks`` as in :func:`load_dataset`."""
    malformed = [reason for chunk in chunks for reason in malformed_rows(chunk).values()]
    if len(malformed) == sum(map(len, chunks)):
        raise InputError(f"{name}: no row can be read; the first: {malformed[0]}")
    written, chunks = chunks, [plain_numbers(chunk, columns.decimal) for chunk in chunks]
    if not columns.targets:
        columns = replace(columns, targets=[infer_target(chunks, columns, config, name)])
    tasks = rename_tasks(columns.targets, tasks)
    tasks = tasks or infer_tasks(chunks, columns.targets, config, name, columns.smiles)
    columns, features = replace(columns, tasks=tuple(tasks)), FeatureColumns(columns.descriptors)
    rows = LabelledRows.join(list(parse_chunks(chunks, columns, name, features)))
    if rows.columns is not None:
        check_feature_columns(rows.columns, columns.descriptors, name)
    rejected = reject_unlabelled(rows.labels, rows.rejected, rows.invalid_labels)
    return LabelledDataset(
        name,
        rows.smiles,
        rows.labels,
        tasks,
        rejected,
        {row: reason for row, reason in rows.invalid_labels.items() if row not in rejected},
        decode_splits(rows.split, usable_mask(len(rows), rejected)) if columns.split is not None else None,
        columns=rows.columns,
        notes=tuple(features.notes()),
        identifiers={
            one: [text for chunk in written for text in texts(chunk.column(one))] for one in columns.identifiers
        },
    )


def dataset_from_frame(frame: Any, config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """Load the labelled molecules of a data frame, with the same result as for a file of the same cells.

    The ``table`` of the dataset has the used columns, and can be saved as a file that gives the same dataset.
    """
    if config.valid_file or config.test_file:
        raise InputError("valid_file and test_file need a file as dataset: give the data frame a column split instead")
    if config.level != MOLECULE:
        reject_molecules(frame)
    table = as_table(frame)
    if not len(table):
        raise InputError(f"{NAME} has no rows")
    columns = find_columns(table.column_names, config, NAME, SPLIT_METHODS)
    dataset = dataset_from_chunks([table], columns, config, NAME, tasks)
    used = [columns.smiles, *dataset.target_names, *filter(None, [columns.split, columns.weights])]
    used += [*columns.descriptors, *dataset.identifiers]
    return replace(dataset, table=table.select(list(dict.fromkeys(used))))
