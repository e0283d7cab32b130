"""Labelled molecules from wherever they are: the demo set, a table, a store, OGB's PCQM4M-LSC, PyG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.config import MOLECULE, DataConfig, join_names
from graphslice.data.atom_bond_columns import encode_classes, infer_atom_bond_tasks, read_atom_bond_labels, reject_lists
from graphslice.data.atom_bond_labels import AtomBondLabels, pointers
from graphslice.data.columns import check_feature_columns, feature_column_notes, find_feature_columns, quoted_list
from graphslice.data.infer_tasks import check_transforms, infer_tasks, infer_tasks_from_values
from graphslice.data.labelled_dataset import LabelledDataset, reject_unlabelled, rename_tasks, usable_mask
from graphslice.data.labelled_rows import LabelledRows
from graphslice.data.labels import (
    LabelColumns,
    error_context,
    find_columns,
    infer_target,
    parse_chunks,
    target_names,
)
from graphslice.data.ogb_lsc import OGB_FOLDERS, OGB_TARGET, load_pcqm4m
from graphslice.data.parse_cells import parse_number
from graphslice.data.splits import SPLIT_METHODS, Splits, decode_splits, present_splits
from graphslice.data.store import STORE_SUFFIX, GraphStore
from graphslice.data.stored_labels import recode_labels
from graphslice.data.tables import CSV_SUFFIXES, PARQUET_SUFFIXES, TSV_SUFFIXES, malformed_rows, open_table
from graphslice.errors import InputError, nearest
from graphslice.package_data import DEMO_CSV
from graphslice.tasks import REGRESSION, TASK_KINDS, Task, parse_per_target, regression_tasks

#: How the names of tables of labelled molecules end.
TABLE_SUFFIXES = CSV_SUFFIXES + TSV_SUFFIXES + PARQUET_SUFFIXES


def load_dataset(config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """The labelled molecules that a configuration names.

    Args:
        config: which.
        tasks: what is asked of its targets, in their order; found from their values when not given.

    Raises:
        InputError: if they cannot be had, saying what is missing and what to do.
    """
    if config.valid_file or config.test_file:
        return _dataset_from_files(config, tasks)
    if config.level != MOLECULE and (config.dataset in OGB_FOLDERS or config.dataset.lower().endswith(STORE_SUFFIX)):
        raise InputError(f"{config.dataset} has labels of molecules: --level {config.level} takes a table with lists")
    if config.dataset in OGB_FOLDERS:
        return dataset_from_ogb(config)
    path = dataset_path(config.dataset)
    if path.name.lower().endswith(STORE_SUFFIX):
        return dataset_from_store(GraphStore.open(path), config, tasks)
    return dataset_from_table(path, config, tasks)


def _dataset_from_files(config: DataConfig, tasks: Sequence[Task] | None) -> LabelledDataset:
    """One source of a table of molecules for training, and of one for validation, for the test, or for each.

    Raises:
        InputError: if they are no tables, or the first names a split that another file is.
    """
    files = {"valid": config.valid_file, "test": config.test_file}
    given = {split: file for split, file in files.items() if file}
    for file in (config.dataset, *given.values()):
        if is_dataset_name(file) or file.lower().endswith(STORE_SUFFIX):
            raise InputError(f"{file} is no table: valid_file and test_file go with tables of labelled molecules")
    whole = replace(config, valid_file=None, test_file=None)
    parts = [dataset_from_table(dataset_path(config.dataset), whole, tasks)]
    splits = parts[0].splits or {"train": np.flatnonzero(usable_mask(len(parts[0]), parts[0].rejected))}
    targets = join_names(parts[0].target_names)
    for split, file in given.items():
        if split in splits:
            raise InputError(f"{config.dataset} names rows {split} itself: leave out {split}_file, or --split random")
        # A column of the file that says a split is of no interest: the file is the split.
        data = replace(whole, dataset=file, targets=targets, split="random")
        other = dataset_from_table(dataset_path(file), data, parts[0].tasks)
        check_transforms(other.targets, other.tasks, file)
        first = sum(map(len, parts))
        splits = splits | {split: first + np.flatnonzero(usable_mask(len(other), other.rejected))}
        parts.append(other)
    return _concatenate(parts, splits)


def _concatenate(parts: list[LabelledDataset], splits: Splits) -> LabelledDataset:
    """The rows of tables with the same targets, one table after the other, under the name of the first."""
    firsts = pointers([len(part) for part in parts]).tolist()[:-1]
    faults = [(first, part.rejected) for first, part in zip(firsts, parts, strict=True)]
    rejected = {first + row: why for first, each in faults for row, why in each.items()}
    smiles = [text for part in parts for text in part.smiles]
    targets = np.concatenate([part.targets for part in parts])
    own = None if parts[0].columns is None else np.concatenate([part.columns for part in parts])
    atom_bond_labels = [part.atom_bond_labels for part in parts if part.atom_bond_labels is not None]
    joined = AtomBondLabels.join(atom_bond_labels) if atom_bond_labels else None
    notes = tuple(f"{part.name}: {note}" for part in parts for note in part.notes)
    return LabelledDataset(
        parts[0].name,
        smiles,
        targets,
        parts[0].tasks,
        rejected,
        splits,
        columns=own,
        atom_bond_labels=joined,
        notes=notes,
    )


def dataset_path(dataset: str) -> Path:
    """The file or folder of a data set that is none of OGB's.

    Raises:
        InputError: if it is neither a name nor a path.
    """
    path = DEMO_CSV if dataset == "demo" else Path(dataset)
    if dataset != "demo" and not path.exists() and path.suffix == "":
        names = ["demo", *OGB_FOLDERS]
        raise InputError(
            f"unknown dataset {dataset!r}{nearest(dataset, names)}: give {', '.join(names)}, the path of a CSV, TSV "
            "or Parquet file, of a folder of such files, or of a store of graphslice featurize"
        )
    return path


def is_dataset_name(dataset: str) -> bool:
    """Whether a data set is named, and no path, also where a folder is called so."""
    return dataset in ("demo", "pyg", *OGB_FOLDERS)


def absolute_dataset(dataset: str) -> str:
    """A data set by a path that holds from any folder; a name stays one."""
    return dataset if is_dataset_name(dataset) or not Path(dataset).exists() else str(Path(dataset).resolve())


def dataset_from_ogb(config: DataConfig) -> LabelledDataset:
    """PCQM4M-LSC, version 1 or 2, with OGB's splits.

    Raises:
        InputError: if the folder is damaged, or absent and cannot be downloaded.
    """
    if config.split is not None or config.folds is not None:
        raise InputError(f"{config.dataset} has OGB's split and no other: leave out split and folds")
    smiles, gaps, splits = load_pcqm4m(config.dataset, config.root)
    if config.targets not in (None, OGB_TARGET):
        raise InputError(f"{config.dataset} has the one target {OGB_TARGET}, not {config.targets!r}")
    find_feature_columns([], config.descriptors, [OGB_TARGET], config.dataset)  # it has none
    return LabelledDataset(config.dataset, smiles, gaps[:, None], regression_tasks([OGB_TARGET]), splits=splits)


def dataset_from_table(path: Path, config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """The labelled molecules of a CSV, TSV or Parquet file, or of a folder of such files.

    Raises:
        InputError: if it cannot be read, lacks a column, or has a target that cannot be learned.
    """
    if path.is_file() and not path.name.lower().endswith(TABLE_SUFFIXES):
        raise InputError(
            f"{path}: GraphSlice reads labelled molecules from {', '.join(TABLE_SUFFIXES)} and {STORE_SUFFIX}"
        )
    name = config.dataset
    with open_table(path) as table:
        columns = find_columns(table.columns, config, name, SPLIT_METHODS)
        chunks = list(table.chunks)
    return dataset_from_chunks(chunks, columns, config, name, tasks)


def dataset_from_chunks(
    chunks: Sequence[pa.Table], columns: LabelColumns, config: DataConfig, name: str, tasks: Sequence[Task] | None
) -> LabelledDataset:
    """The labelled molecules of all chunks of a table.

    Args:
        chunks: at least one.
        columns: which of its columns hold what.
        config: what the user said of them.
        name: of the table.
        tasks: as of :func:`load_dataset`.

    Raises:
        InputError: if it has no row to read, or a target that cannot be learned.
    """
    malformed = [reason for chunk in chunks for reason in malformed_rows(chunk).values()]
    if len(malformed) == sum(map(len, chunks)):
        raise InputError(f"{name}: no row is as the header says; the first: {malformed[0]}")
    left: list[str] = []
    if not columns.targets:
        target, left = infer_target(chunks, columns, name, lists=config.level != MOLECULE)
        columns = replace(columns, targets=[target])
    tasks = rename_tasks(columns.targets, tasks)
    if config.level != MOLECULE:  # all that speaks of rows is made of the means of their lists
        read, rejected, chunks = read_atom_bond_labels(chunks, columns.targets, config.level)
        tasks = tasks or infer_atom_bond_tasks(read, columns.targets, config, name)
        atom_bond_labels, strange = encode_classes(read, tasks)
        source = _dataset_from_rows(chunks, columns, tasks, name)
        return replace(source, rejected=source.rejected | strange | rejected, atom_bond_labels=atom_bond_labels)
    reject_lists(chunks, columns.smiles, columns.targets, name)
    tasks = tasks or infer_tasks(chunks, columns.targets, config, name)
    source = _dataset_from_rows(chunks, replace(columns, tasks=tuple(tasks)), tasks, name)
    if not left:
        return source
    note = f"only {columns.targets[0]!r} is predicted: for classes too name --targets; there are {quoted_list(left)}"
    return replace(source, notes=(note, *source.notes))


def _dataset_from_rows(
    chunks: Sequence[pa.Table], columns: LabelColumns, tasks: Sequence[Task], name: str
) -> LabelledDataset:
    notes: list[str] = []
    with error_context(name):
        rows = LabelledRows.join(list(parse_chunks(chunks, columns)))
    if rows.columns is not None:
        check_feature_columns(rows.columns, columns.descriptors, name)
        notes = feature_column_notes(chunks, columns.descriptors)
    rejected = reject_unlabelled(rows.targets, rows.rejected)
    splits = None
    if columns.split is not None:
        splits = decode_splits(rows.split, usable_mask(len(rows), rejected), present_splits(rows.split))
    return LabelledDataset(
        name, rows.smiles, rows.targets, list(tasks), rejected, splits, columns=rows.columns, notes=tuple(notes)
    )


def dataset_from_store(store: GraphStore, config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """The labelled molecules of a store that ``graphslice featurize`` made, or ``graphslice pretrain``.

    Raises:
        InputError: if it has no labels, not those asked for, or no split column of that name.
    """
    known = list(store.info.targets)
    if not known:
        raise InputError(f"{store.name} has no labels: featurize with --targets to train on it")
    names, auxiliary = _store_target_names(store, config)
    store.check_descriptors(config.descriptors)
    numbers = store.split
    present = present_splits(numbers)
    if config.split not in (None, *SPLIT_METHODS) and not (config.split == "split" and present):
        raise InputError(
            f"{store.name} cannot be split by {config.split!r}: a store keeps only the split that it was made with "
            f"(featurize with --split COLUMN); or give {', '.join(SPLIT_METHODS)}"
        )
    targets = store.targets[:, [known.index(name) for name in names]]
    of_words = {task.name: task for task in store.info.tasks if task.classes}
    tasks = rename_tasks(names, tasks) or _store_tasks(of_words, targets, names, config, store.name)
    targets, others = recode_labels(targets, [of_words.get(name, Task(name)) for name in names], tasks)
    is_pcqm4m = store.info.source in OGB_FOLDERS
    rejected = others | _store_errors(store, names)
    if not is_pcqm4m:  # OGB keeps the labels of its tests to itself
        rejected = reject_unlabelled(targets, rejected)
    splits = None
    if config.split not in SPLIT_METHODS and present:
        splits = decode_splits(numbers, usable_mask(len(store), rejected), present)
    return LabelledDataset(
        store.info.source if is_pcqm4m else store.name,
        [],
        targets,
        tasks,
        rejected,
        splits,
        store=store,
        auxiliary={level: _store_labels(store, level, names) for level, names in auxiliary.items()},
    )


def _store_target_names(store: GraphStore, config: DataConfig) -> tuple[list[str], dict[str, list[str]]]:
    """The targets of a store that are asked for: of molecules, and by level of atoms and bonds, which are auxiliary."""
    known, of_sites = list(store.info.targets), store.info.atom_bond_targets
    every = [*known, *(name for names in of_sites.values() for name in names)]
    asked = target_names(config.targets, every) or every
    for name in asked:
        if name not in every:
            raise InputError(f"{store.name} has no target {name!r}{nearest(name, every)}; it has {quoted_list(every)}")
    auxiliary = {level: [name for name in names if name in asked] for level, names in of_sites.items()}
    names = [name for name in asked if name in known]
    if not names:
        raise InputError(
            f"{asked[0]!r} is no target of molecules, and goes with one of {store.name}: {quoted_list(known)}"
        )
    return names, {level: some for level, some in auxiliary.items() if some}


def _store_labels(store: GraphStore, level: str, names: Sequence[str]) -> AtomBondLabels:
    labels, known = store.atom_bond_labels(level), store.info.atom_bond_targets[level]
    return replace(labels, values=labels.values[:, [known.index(name) for name in names]], names=tuple(names))


def _store_tasks(
    of_words: Mapping[str, Task], labels: np.ndarray, names: Sequence[str], config: DataConfig, name: str
) -> list[Task]:
    """What is asked of some targets of a store: what its words were, else what the numbers look like."""
    kinds = parse_per_target(config.task, names, TASK_KINDS, "--task")
    numbers = [t for t, target in enumerate(names) if target not in of_words]
    config = replace(config, task=join_names([f"{names[t]}={kinds[names[t]]}" for t in numbers if names[t] in kinds]))
    asked = infer_tasks_from_values(labels[:, numbers], [names[t] for t in numbers], config, name)
    found = {target: _as_kind(task, kinds.get(target, task.kind), name) for target, task in of_words.items()}
    found |= {task.name: task for task in asked}
    return [found[target] for target in names]


def _as_kind(task: Task, kind: str, name: str) -> Task:
    """A task of classes as it is, or of the numbers that its classes are; raises InputError for another kind."""
    if kind == task.kind:
        return task
    if kind == REGRESSION and all(np.isfinite(parse_number(word)) for word in task.classes):
        return Task(task.name)
    raise InputError(
        f"--task: the target {task.name!r} of {name} is {task.kind}, of the classes {quoted_list(task.classes)}, and "
        f"not {kind}: make the store of a table where it is"
    )


def _store_errors(store: GraphStore, targets: Sequence[str]) -> dict[int, str]:
    """Why rows of a store cannot be used: all reasons but those that speak of a target that is not asked for."""
    about_targets = tuple(f"target {target!r} " for target in targets)
    return {row: why for row, why in store.errors.items() if store.sizes[row] == 0 or why.startswith(about_targets)}
