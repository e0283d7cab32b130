"""Labelled datasets of preprocessed files, with the targets and tasks that are requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from graphslice.chem.descriptors import feature_column_names
from graphslice.config import DataConfig, join_names
from graphslice.data.columns import quoted_list, require_column, target_names
from graphslice.data.dataset import LabelledDataset, reject_unlabelled, rename_tasks, usable_mask
from graphslice.data.infer_tasks import infer_tasks_from_values
from graphslice.data.labels import Labels
from graphslice.data.ogb_lsc import OGB_FOLDERS
from graphslice.data.parse_cells import class_indices, class_key, number_key, parse_number
from graphslice.data.splits import SPLIT_METHODS, decode_splits, present_splits
from graphslice.data.store import GraphStore
from graphslice.errors import InputError
from graphslice.tasks import REGRESSION, TASK_KINDS, Task, parse_per_target


def dataset_from_store(store: GraphStore, config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """Load the labelled molecules of a preprocessed dataset made by ``graphslice featurize`` or ``pretrain``.

    Args:
        store: the preprocessed dataset.
        config: data settings of the user.
        tasks: see :func:`~graphslice.data.dataset_loaders.load_dataset`.

    Raises:
        InputError: if it has no labels, lacks a requested target, or has no split column of the requested name.
    """
    known = list(store.info.targets)
    if not known:
        raise InputError(f"{store.name} has no labels: run graphslice featurize with --targets to train on it")
    names, auxiliary = _store_target_names(store, config)
    columns = feature_column_names(config.descriptors)
    numbers = store.split
    present = present_splits(numbers)
    if config.split not in (None, *SPLIT_METHODS) and not (config.split == "split" and present):
        advice = "leave out --split to use it" if present else "featurize with --split COLUMN"
        raise InputError(
            f"{store.name} cannot be split by {config.split!r}: a preprocessed dataset keeps only the split column "
            f"that it was made with ({advice}); or give {', '.join(SPLIT_METHODS)}"
        )
    targets = store.targets[:, [known.index(name) for name in names]]
    class_tasks = {task.name: task for task in store.info.tasks if task.classes}
    tasks = rename_tasks(names, tasks) or _store_tasks(class_tasks, targets, names, config, store.name)
    targets, unknown_classes = recode_labels(targets, [class_tasks.get(name, Task(name)) for name in names], tasks)
    is_pcqm4m = store.info.source in OGB_FOLDERS and config.split not in SPLIT_METHODS
    if is_pcqm4m and config.folds is not None:
        raise InputError(f"{store.name} has OGB's split: leave out folds, or give --split {SPLIT_METHODS[0]}")
    rejected, invalid_labels = _store_errors(store, names)
    invalid_labels = unknown_classes | invalid_labels
    if not is_pcqm4m:  # OGB does not publish the labels of its test sets
        rejected = reject_unlabelled(Labels.of_molecules(targets), rejected, invalid_labels)
    splits = None
    if config.split not in SPLIT_METHODS and present:
        splits = decode_splits(numbers, usable_mask(len(store), rejected))
    return LabelledDataset(
        store.info.source if is_pcqm4m else store.name,
        store.smiles,
        Labels.of_molecules(targets),
        tasks,
        rejected,
        {row: reason for row, reason in invalid_labels.items() if row not in rejected},
        splits,
        store=store,
        columns=store.descriptors(np.arange(len(store)), columns) if columns else None,
        auxiliary={level: _store_labels(store, level, names) for level, names in auxiliary.items()},
    )


def _store_target_names(store: GraphStore, config: DataConfig) -> tuple[list[str], dict[str, list[str]]]:
    """Return the requested molecule-level targets, and by level the requested auxiliary atom- and bond-level ones."""
    known, atom_bond_targets = list(store.info.targets), store.info.atom_bond_targets
    available = [*known, *(name for names in atom_bond_targets.values() for name in names)]
    requested = target_names(config.targets, available) or available
    for name in requested:
        require_column(name, available, store.name, "target")
    auxiliary = {level: [name for name in names if name in requested] for level, names in atom_bond_targets.items()}
    names = [name for name in requested if name in known]
    if not names:
        raise InputError(
            f"{requested[0]!r} is not a molecule-level target: give it together with one of {store.name}: "
            f"{quoted_list(known)}"
        )
    return names, {level: auxiliary_names for level, auxiliary_names in auxiliary.items() if auxiliary_names}


def _store_labels(store: GraphStore, level: str, names: Sequence[str]) -> Labels:
    labels, known = store.atom_bond_labels(level), store.info.atom_bond_targets[level]
    return replace(labels, values=labels.values[:, [known.index(name) for name in names]], names=tuple(names))


def _store_tasks(
    class_tasks: Mapping[str, Task], labels: np.ndarray, names: Sequence[str], config: DataConfig, name: str
) -> list[Task]:
    """Return the tasks of targets of a store: the stored classes, or the task inferred from the numbers."""
    kinds = parse_per_target(config.task, names, TASK_KINDS, "--task")
    numbers = [t for t, target in enumerate(names) if target not in class_tasks]
    config = replace(config, task=join_names([f"{names[t]}={kinds[names[t]]}" for t in numbers if names[t] in kinds]))
    inferred = infer_tasks_from_values(labels[:, numbers], [names[t] for t in numbers], config, name)
    tasks = {target: _as_kind(task, kinds.get(target, task.kind), name) for target, task in class_tasks.items()}
    tasks |= {task.name: task for task in inferred}
    return [tasks[target] for target in names]


def _as_kind(task: Task, kind: str, name: str) -> Task:
    """Return a classification task as it is, or as regression if its classes are numbers; else raise InputError."""
    if kind == task.kind:
        return task
    if kind == REGRESSION and all(np.isfinite(parse_number(word)) for word in task.classes):
        return Task(task.name)
    raise InputError(
        f"--task: the target {task.name!r} of {name} is {task.kind} with the classes {quoted_list(task.classes)}, "
        f"not {kind}: featurize a table in which it is {kind}"
    )


def _store_errors(store: GraphStore, targets: Sequence[str]) -> tuple[dict[int, str], dict[int, str]]:
    """Return the reasons, by row, for rows of a store without a molecule, and for invalid labels of some targets."""
    prefixes = tuple(f"target {target!r} " for target in targets)
    rejected = {row: reason for row, reason in store.errors.items() if store.sizes[row] == 0}
    of_targets = {row: reason for row, reason in store.errors.items() if reason.startswith(prefixes)}
    return rejected, {row: reason for row, reason in of_targets.items() if row not in rejected}


def recode_labels(
    labels: np.ndarray, stored: Sequence[Task], requested: Sequence[Task]
) -> tuple[np.ndarray, dict[int, str]]:
    """Convert labels from the stored tasks to the requested tasks.

    Args:
        labels: ``float64 [R, T]``, numbers, or class indices of the ``stored`` tasks; nan where unknown.
        stored: the T tasks of the store.
        requested: the T tasks of the model or run.

    Returns:
        ``float64 [R, T]``, numbers or class indices of the ``requested`` tasks, nan where there is no such class or
        number; and by row the reason, for rows with such a label.
    """
    recoded, rejected = labels.copy(), dict[int, str]()
    for t, (source, target) in enumerate(zip(stored, requested, strict=True)):
        if source.classes == target.classes:
            continue
        known = np.flatnonzero(~np.isnan(labels[:, t]))
        values, which = np.unique(labels[known, t], return_inverse=True)
        texts = [source.classes[int(value)] if source.classes else number_key(value) for value in values.tolist()]
        if target.classes:
            indices = class_indices(target.classes)
            new = [indices.get(class_key(text), np.nan) for text in texts]
            fault = f"none of its {len(target.classes)} classes"
        else:
            new, fault = [parse_number(text) for text in texts], "not a finite number"
        recoded[known, t] = np.array(new, np.float64)[which]
        for row, index in zip(known.tolist(), which.tolist(), strict=True):
            if np.isnan(new[index]):
                rejected.setdefault(row, f"target {target.name!r} is {fault}: {texts[index]!r}")
    return recoded, rejected
