"""Labelled molecules from wherever they are: the demo set, a table, a store, OGB's PCQM4M-LSC, PyG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.config import MOLECULE, DataConfig, joined_names
from graphslice.data.cells import parse_number
from graphslice.data.columns import check_own_columns, find_own_columns, listed, notes_on_own_columns
from graphslice.data.find_tasks import check_transforms, find_tasks, tasks_of_numbers
from graphslice.data.labels import (
    LabelColumns,
    about,
    find_columns,
    find_target,
    parse_chunks,
    target_names,
)
from graphslice.data.ogb_lsc import FOLDERS, TARGET, load_pcqm4m
from graphslice.data.rows import Rows
from graphslice.data.site_tables import as_learned, read_sites, refuse_lists, site_tasks
from graphslice.data.sites import SiteLabels, pointers
from graphslice.data.source import Source, reject_unlabelled, tasks_for, usable
from graphslice.data.splits import SPLIT_METHODS, Splits, name_splits, names_in
from graphslice.data.store import STORE_SUFFIX, GraphStore
from graphslice.data.stored_labels import as_asked
from graphslice.data.tables import CSV_SUFFIXES, PARQUET_SUFFIXES, TSV_SUFFIXES, malformed_rows, open_table
from graphslice.errors import InputError, nearest
from graphslice.resources import DEMO_CSV
from graphslice.tasks import KINDS, REGRESSION, Task, by_target, regressions

#: How the names of tables of labelled molecules end.
TABLE_SUFFIXES = CSV_SUFFIXES + TSV_SUFFIXES + PARQUET_SUFFIXES


def load_source(config: DataConfig, tasks: Sequence[Task] | None = None) -> Source:
    """The labelled molecules that a configuration names.

    Args:
        config: which.
        tasks: what is asked of its targets, in their order; found from their values when not given.

    Raises:
        InputError: if they cannot be had, saying what is missing and what to do.
    """
    if config.valid_file or config.test_file:
        return _source_of_files(config, tasks)
    if config.level != MOLECULE and (config.dataset in FOLDERS or config.dataset.lower().endswith(STORE_SUFFIX)):
        raise InputError(f"{config.dataset} has labels of molecules: --level {config.level} takes a table with lists")
    if config.dataset in FOLDERS:
        return ogb_source(config)
    path = dataset_path(config.dataset)
    if path.name.lower().endswith(STORE_SUFFIX):
        return store_source(GraphStore.open(path), config, tasks)
    return table_source(path, config, tasks)


def _source_of_files(config: DataConfig, tasks: Sequence[Task] | None) -> Source:
    """One source of a table of molecules for training, and of one for validation, for the test, or for each.

    Raises:
        InputError: if they are no tables, or the first names a split that another file is.
    """
    files = {"valid": config.valid_file, "test": config.test_file}
    given = {split: file for split, file in files.items() if file}
    for file in (config.dataset, *given.values()):
        if is_name(file) or file.lower().endswith(STORE_SUFFIX):
            raise InputError(f"{file} is no table: valid_file and test_file go with tables of labelled molecules")
    whole = replace(config, valid_file=None, test_file=None)
    parts = [table_source(dataset_path(config.dataset), whole, tasks)]
    splits = parts[0].splits or {"train": np.flatnonzero(usable(len(parts[0]), parts[0].rejected))}
    targets = joined_names(parts[0].target_names)
    for split, file in given.items():
        if split in splits:
            raise InputError(f"{config.dataset} names rows {split} itself: leave out {split}_file, or --split random")
        # A column of the file that says a split is of no interest: the file is the split.
        data = replace(whole, dataset=file, targets=targets, split="random")
        other = table_source(dataset_path(file), data, parts[0].tasks)
        check_transforms(other.targets, other.tasks, file)
        first = sum(map(len, parts))
        splits = splits | {split: first + np.flatnonzero(usable(len(other), other.rejected))}
        parts.append(other)
    return _joined(parts, splits)


def _joined(parts: list[Source], splits: Splits) -> Source:
    """The rows of tables with the same targets, one table after the other, under the name of the first."""
    firsts = pointers([len(part) for part in parts]).tolist()[:-1]
    faults = [(first, part.rejected) for first, part in zip(firsts, parts, strict=True)]
    rejected = {first + row: why for first, each in faults for row, why in each.items()}
    smiles = [text for part in parts for text in part.smiles]
    targets = np.concatenate([part.targets for part in parts])
    own = None if parts[0].columns is None else np.concatenate([part.columns for part in parts])
    sites = [part.sites for part in parts if part.sites is not None]
    joined = SiteLabels.join(sites) if sites else None
    notes = tuple(f"{part.name}: {note}" for part in parts for note in part.notes)
    return Source(
        parts[0].name, smiles, targets, parts[0].tasks, rejected, splits, columns=own, sites=joined, notes=notes
    )


def dataset_path(dataset: str) -> Path:
    """The file or folder of a data set that is none of OGB's.

    Raises:
        InputError: if it is neither a name nor a path.
    """
    path = DEMO_CSV if dataset == "demo" else Path(dataset)
    if dataset != "demo" and not path.exists() and path.suffix == "":
        names = ["demo", *FOLDERS]
        raise InputError(
            f"unknown dataset {dataset!r}{nearest(dataset, names)}: give {', '.join(names)}, the path of a CSV, TSV "
            "or Parquet file, of a folder of such files, or of a store of graphslice featurize"
        )
    return path


def is_name(dataset: str) -> bool:
    """Whether a data set is named, and no path, also where a folder is called so."""
    return dataset in ("demo", "pyg", *FOLDERS)


def from_any_folder(dataset: str) -> str:
    """A data set by a path that holds from any folder; a name stays one."""
    return dataset if is_name(dataset) or not Path(dataset).exists() else str(Path(dataset).resolve())


def ogb_source(config: DataConfig) -> Source:
    """PCQM4M-LSC, version 1 or 2, with OGB's splits.

    Raises:
        InputError: if the folder is damaged, or absent and cannot be downloaded.
    """
    if config.split is not None or config.folds is not None:
        raise InputError(f"{config.dataset} has OGB's split and no other: leave out split and folds")
    smiles, gaps, splits = load_pcqm4m(config.dataset, config.root)
    if config.targets not in (None, TARGET):
        raise InputError(f"{config.dataset} has the one target {TARGET}, not {config.targets!r}")
    find_own_columns([], config.descriptors, [TARGET], config.dataset)  # it has none
    return Source(config.dataset, smiles, gaps[:, None], regressions([TARGET]), splits=splits)


def table_source(path: Path, config: DataConfig, tasks: Sequence[Task] | None = None) -> Source:
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
    return source_of_chunks(chunks, columns, config, name, tasks)


def source_of_chunks(
    chunks: Sequence[pa.Table], columns: LabelColumns, config: DataConfig, name: str, tasks: Sequence[Task] | None
) -> Source:
    """The labelled molecules of all chunks of a table.

    Args:
        chunks: at least one.
        columns: which of its columns hold what.
        config: what the user said of them.
        name: of the table.
        tasks: as of :func:`load_source`.

    Raises:
        InputError: if it has no row to read, or a target that cannot be learned.
    """
    malformed = [reason for chunk in chunks for reason in malformed_rows(chunk).values()]
    if len(malformed) == sum(map(len, chunks)):
        raise InputError(f"{name}: no row is as the header says; the first: {malformed[0]}")
    left: list[str] = []
    if not columns.targets:
        target, left = find_target(chunks, columns, name, lists=config.level != MOLECULE)
        columns = replace(columns, targets=[target])
    tasks = tasks_for(columns.targets, tasks)
    if config.level != MOLECULE:  # all that speaks of rows is made of the means of their lists
        read, rejected, chunks = read_sites(chunks, columns.targets, config.level)
        tasks = tasks or site_tasks(read, columns.targets, config, name)
        sites, strange = as_learned(read, tasks)
        source = _source_of_rows(chunks, columns, tasks, name)
        return replace(source, rejected=source.rejected | strange | rejected, sites=sites)
    refuse_lists(chunks, columns.smiles, columns.targets, name)
    tasks = tasks or find_tasks(chunks, columns.targets, config, name)
    source = _source_of_rows(chunks, replace(columns, tasks=tuple(tasks)), tasks, name)
    if not left:
        return source
    note = f"only {columns.targets[0]!r} is predicted: for classes too name --targets; there are {listed(left)}"
    return replace(source, notes=(note, *source.notes))


def _source_of_rows(chunks: Sequence[pa.Table], columns: LabelColumns, tasks: Sequence[Task], name: str) -> Source:
    notes: list[str] = []
    with about(name):
        rows = Rows.join(list(parse_chunks(chunks, columns)))
    if rows.columns is not None:
        check_own_columns(rows.columns, columns.descriptors, name)
        notes = notes_on_own_columns(chunks, columns.descriptors)
    rejected = reject_unlabelled(rows.targets, rows.rejected)
    splits = None
    if columns.split is not None:
        splits = name_splits(rows.split, usable(len(rows), rejected), names_in(rows.split))
    return Source(
        name, rows.smiles, rows.targets, list(tasks), rejected, splits, columns=rows.columns, notes=tuple(notes)
    )


def store_source(store: GraphStore, config: DataConfig, tasks: Sequence[Task] | None = None) -> Source:
    """The labelled molecules of a store that ``graphslice featurize`` made, or ``graphslice pretrain``.

    Raises:
        InputError: if it has no labels, not those asked for, or no split column of that name.
    """
    known = list(store.info.targets)
    if not known:
        raise InputError(f"{store.name} has no labels: featurize with --targets to train on it")
    names, auxiliary = _names_in_store(store, config)
    store.check_descriptors(config.descriptors)
    numbers = store.split
    present = names_in(numbers)
    if config.split not in (None, *SPLIT_METHODS) and not (config.split == "split" and present):
        raise InputError(
            f"{store.name} cannot be split by {config.split!r}: a store keeps only the split that it was made with "
            f"(featurize with --split COLUMN); or give {', '.join(SPLIT_METHODS)}"
        )
    targets = store.targets[:, [known.index(name) for name in names]]
    of_words = {task.name: task for task in store.info.tasks if task.classes}
    tasks = tasks_for(names, tasks) or _tasks_of_store(of_words, targets, names, config, store.name)
    targets, others = as_asked(targets, [of_words.get(name, Task(name)) for name in names], tasks)
    is_pcqm4m = store.info.source in FOLDERS
    rejected = others | _errors_of(store, names)
    if not is_pcqm4m:  # OGB keeps the labels of its tests to itself
        rejected = reject_unlabelled(targets, rejected)
    splits = None
    if config.split not in SPLIT_METHODS and present:
        splits = name_splits(numbers, usable(len(store), rejected), present)
    return Source(
        store.info.source if is_pcqm4m else store.name,
        [],
        targets,
        tasks,
        rejected,
        splits,
        store=store,
        auxiliary={level: _labels_in_store(store, level, names) for level, names in auxiliary.items()},
    )


def _names_in_store(store: GraphStore, config: DataConfig) -> tuple[list[str], dict[str, list[str]]]:
    """The targets of a store that are asked for: of molecules, and by level of atoms and bonds, which are auxiliary."""
    known, of_sites = list(store.info.targets), store.info.site_targets
    every = [*known, *(name for names in of_sites.values() for name in names)]
    asked = target_names(config.targets, every) or every
    for name in asked:
        if name not in every:
            raise InputError(f"{store.name} has no target {name!r}{nearest(name, every)}; it has {listed(every)}")
    auxiliary = {level: [name for name in names if name in asked] for level, names in of_sites.items()}
    names = [name for name in asked if name in known]
    if not names:
        raise InputError(f"{asked[0]!r} is no target of molecules, and goes with one of {store.name}: {listed(known)}")
    return names, {level: some for level, some in auxiliary.items() if some}


def _labels_in_store(store: GraphStore, level: str, names: Sequence[str]) -> SiteLabels:
    labels, known = store.site_labels(level), store.info.site_targets[level]
    return replace(labels, values=labels.values[:, [known.index(name) for name in names]], names=tuple(names))


def _tasks_of_store(
    of_words: Mapping[str, Task], labels: np.ndarray, names: Sequence[str], config: DataConfig, name: str
) -> list[Task]:
    """What is asked of some targets of a store: what its words were, else what the numbers look like."""
    kinds = by_target(config.task, names, KINDS, "--task")
    numbers = [t for t, target in enumerate(names) if target not in of_words]
    config = replace(config, task=joined_names([f"{names[t]}={kinds[names[t]]}" for t in numbers if names[t] in kinds]))
    asked = tasks_of_numbers(labels[:, numbers], [names[t] for t in numbers], config, name)
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
        f"--task: the target {task.name!r} of {name} is {task.kind}, of the classes {listed(task.classes)}, and not "
        f"{kind}: make the store of a table where it is"
    )


def _errors_of(store: GraphStore, targets: Sequence[str]) -> dict[int, str]:
    """Why rows of a store cannot be used: all reasons but those that speak of a target that is not asked for."""
    about_targets = tuple(f"target {target!r} " for target in targets)
    return {row: why for row, why in store.errors.items() if store.sizes[row] == 0 or why.startswith(about_targets)}
