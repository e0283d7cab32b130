"""Auxiliary targets of a table: columns that the network learns next to the targets (multitask learning).

They are not predicted. Their molecules may have no label of a target, and may come from a table of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.config import MOLECULE, DataConfig
from graphslice.data.columns import LabelColumns, find_columns
from graphslice.data.dataset import LabelledDataset, LabelledRows, reject_unlabelled
from graphslice.data.decimals import plain_numbers
from graphslice.data.infer_tasks import infer_tasks
from graphslice.data.labels import Labels
from graphslice.data.parse_rows import error_context, parse_chunks
from graphslice.data.tables import open_table
from graphslice.errors import InputError
from graphslice.tasks import MULTICLASS, Task

# Labels of a target and of an auxiliary column of at least this many molecules are compared.
_MIN_COMPARED = 5
# Columns that are correlated more than this are a copy of the target, in another unit or rounded.
_COPY = 0.9999


def read_auxiliary(
    chunks: Sequence[pa.Table], columns: LabelColumns, config: DataConfig, name: str, unused: np.ndarray | None = None
) -> dict[str, Labels]:
    """Read the auxiliary columns of a table.

    Args:
        chunks: all rows of the table.
        columns: roles of its columns; ``columns.auxiliary`` are those that it has.
        config: data settings of the user.
        name: name of the table, for messages.
        unused: ``bool [R]``, rows whose labels are not read.

    Returns:
        Labels ``float64 [R, A]`` of all auxiliary columns, nan where unknown, under the level ``molecule``; empty
        without auxiliary columns.

    Raises:
        InputError: if a column is in neither table, or holds neither numbers nor two classes.
    """
    names, present = config.auxiliary_columns, list(columns.auxiliary)
    if not names:
        return {}
    values = np.full((sum(map(len, chunks)), len(names)), np.nan)
    if present:
        tasks = infer_tasks(chunks, present, replace(config, task=None, transform=None), name)
        for task in tasks:
            if task.kind == MULTICLASS:
                raise InputError(
                    f"{name}: the auxiliary column {task.name!r} has {len(task.classes)} classes; it needs numbers, "
                    "or two classes"
                )
        roles = replace(columns, targets=present, tasks=tuple(tasks), split=None, weights=None, descriptors=())
        with error_context(name):
            rows = LabelledRows.join(list(parse_chunks(chunks, roles)))
        values[:, [names.index(column) for column in present]] = rows.labels.values
    if unused is not None:
        values[unused] = np.nan
    return {MOLECULE: replace(Labels.of_molecules(values), names=names)}


def append_auxiliary_file(dataset: LabelledDataset, config: DataConfig) -> LabelledDataset:
    """Append the rows of the table of auxiliary labels, and check the auxiliary columns.

    Args:
        dataset: the labelled molecules, with the auxiliary columns of their own table.
        config: data settings of the user.

    Raises:
        InputError: if the table cannot be read, an auxiliary column is in neither table, or is a copy of a target.
    """
    names = config.auxiliary_columns
    if not names:
        return dataset
    labels = dataset.auxiliary[MOLECULE]
    if config.auxiliary_file:
        file = config.auxiliary_file
        own = DataConfig(dataset=file, auxiliary=config.auxiliary, auxiliary_file=file)
        with open_table(Path(file)) as table:
            columns = find_columns(table.columns, own, file)
            chunks = [plain_numbers(chunk, config.decimal) for chunk in table.chunks]
        extra = read_auxiliary(chunks, columns, own, file)[MOLECULE]
        with error_context(file):
            rows = LabelledRows.join(list(parse_chunks(chunks, replace(columns, split=None))))
        dataset = _append(dataset, rows)
        labels = replace(Labels.join([labels, extra]), names=labels.names)
    for a, name in enumerate(names):
        if np.isnan(labels.values[:, a]).all():
            tables = " and ".join(filter(None, [dataset.name, config.auxiliary_file]))
            raise InputError(f"the auxiliary column {name!r} of {tables} has no value: leave it out")
        for t, task in enumerate(dataset.tasks):
            _reject_copy(labels.values[:, a], dataset.targets[:, t], name, task, dataset.name)
    rejected = reject_unlabelled(dataset.all_labels, dataset.rejected)
    return replace(dataset, rejected=rejected, auxiliary=dataset.auxiliary | {MOLECULE: labels})


def _append(dataset: LabelledDataset, rows: LabelledRows) -> LabelledDataset:
    """Append rows without labels of the targets."""
    first, unknown = len(dataset), np.full((len(rows), len(dataset.tasks)), np.nan)
    weights = None if dataset.all_labels.weights is None else np.ones(len(rows))
    labels = Labels.join([dataset.all_labels, replace(Labels.of_molecules(unknown), weights=weights)])
    columns = dataset.columns
    if columns is not None:
        columns = np.concatenate([columns, np.full((len(rows), columns.shape[1]), np.nan, np.float32)])
    rejected = dataset.rejected | {first + row: reason for row, reason in rows.rejected.items()}
    return replace(
        dataset,
        smiles=[*dataset.smiles, *rows.smiles],
        all_labels=labels,
        rejected=rejected,
        columns=columns,
        identifiers={name: [*texts, *[""] * len(rows)] for name, texts in dataset.identifiers.items()},
    )


def _reject_copy(values: np.ndarray, targets: np.ndarray, name: str, task: Task, table: str) -> None:
    """Raise :class:`InputError` if an auxiliary column is a linear function of a target."""
    both = ~np.isnan(values) & ~np.isnan(targets)
    a, b = values[both], targets[both]
    if len(a) < _MIN_COMPARED or np.ptp(a) == 0 or np.ptp(b) == 0:
        return
    if abs(np.corrcoef(a, b)[0, 1]) > _COPY:
        raise InputError(
            f"{table}: the auxiliary column {name!r} is a copy of the target {task.name!r} in {len(a):,} rows, perhaps "
            "in another unit: leave it out, since scores would be those of known labels"
        )
