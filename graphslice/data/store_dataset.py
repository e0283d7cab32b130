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
from graphslice.data.parse_cells import number_key
from graphslice.data.splits import SPLIT_METHODS, decode_splits, present_splits
from graphslice.data.store import GraphStore
from graphslice.errors import InputError
from graphslice.tasks import TASK_KINDS, Task, parse_per_target


def dataset_from_store(store: GraphStore, config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """Load the labelled molecules of a preprocessed dataset made by ``graphslice featurize`` or ``pretrain``."""
    known = list(store.info.targets)
    if not known:
        raise InputError(f"{store.name} has no labels: run graphslice featurize with --targets to train on it")
    names, auxiliary = _store_target_names(store, config)
    columns = feature_column_names(config.descriptors)
    numbers = store.split
    present = present_splits(numbers)
    if config.split not in (None, *SPLIT_METHODS) and not (config.split == "split" and present):
        advice = "leave out data.split to use it" if present else "featurize with data.split COLUMN"
        raise InputError(
            f"{store.name} cannot be split by {config.split!r}: a preprocessed dataset keeps only the split column "
            f"that it was made with ({advice}); or give {', '.join(SPLIT_METHODS)}"
        )
    targets = store.targets[:, [known.index(name) for name in names]]
    class_tasks = {task.name: task for task in store.info.tasks if task.classes}
    tasks = rename_tasks(names, tasks) or _store_tasks(class_tasks, targets, names, config, store.name)
    targets = _recoded(targets, [class_tasks.get(name, Task(name)) for name in names], tasks, store.name)
    is_pcqm4m = store.info.source in OGB_FOLDERS and config.split not in SPLIT_METHODS
    if is_pcqm4m and config.folds is not None:
        raise InputError(f"{store.name} has OGB's split: leave out folds, or give data.split {SPLIT_METHODS[0]}")
    rejected = {row: reason for row, reason in store.errors.items() if store.sizes[row] == 0}
    own = tuple(f"target {name!r} " for name in names)
    invalid_labels = {r: reason for r, reason in store.errors.items() if r not in rejected and reason.startswith(own)}
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
        require_column(name, available, store.name)
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
    kinds = parse_per_target(config.task, names, TASK_KINDS, "data.task")
    for target, task in class_tasks.items():
        if kinds.get(target, task.kind) != task.kind:
            raise InputError(f"data.task: the target {target!r} of {name} is {task.kind}, not {kinds[target]}")
    numbers = [t for t, target in enumerate(names) if target not in class_tasks]
    config = replace(config, task=join_names([f"{names[t]}={kinds[names[t]]}" for t in numbers if names[t] in kinds]))
    inferred = infer_tasks_from_values(labels[:, numbers], [names[t] for t in numbers], config, name)
    tasks = {**class_tasks, **{task.name: task for task in inferred}}
    return [tasks[target] for target in names]


def _recoded(labels: np.ndarray, stored: Sequence[Task], requested: Sequence[Task], name: str) -> np.ndarray:
    """Convert numbers and class indices of the stored tasks to class indices of the requested ones."""
    recoded = labels.copy()
    for t, (source, target) in enumerate(zip(stored, requested, strict=True)):
        if source.classes == target.classes:
            continue
        known = ~np.isnan(labels[:, t])
        values, which = np.unique(labels[known, t], return_inverse=True)
        words = [source.classes[int(value)] if source.classes else number_key(value) for value in values.tolist()]
        if unknown := [word for word in words if word not in target.classes]:
            classes = f"classes {quoted_list(target.classes)}" if target.classes else "numbers"
            raise InputError(f"the target {target.name!r} of {name} has {unknown[0]!r}, but the model has {classes}")
        recoded[known, t] = np.array([target.classes.index(word) for word in words], np.float64)[which]
    return recoded
