"""Auxiliary targets of a table: columns that the network learns next to the targets (multitask learning).

They are not predicted. Their molecules may have no label of a target, and may come from a table of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from graphslice.censored import is_bounded
from graphslice.config import MOLECULE, DataConfig
from graphslice.data.columns import LabelColumns, find_columns, find_smiles_column
from graphslice.data.dataset import LabelledDataset, LabelledRows, reject_unlabelled
from graphslice.data.decimals import plain_numbers
from graphslice.data.infer_tasks import infer_tasks
from graphslice.data.labels import Labels
from graphslice.data.parse_rows import parse_chunks
from graphslice.data.tables import open_table
from graphslice.errors import InputError
from graphslice.tasks import MULTICLASS, Task

# Labels of a target and of an auxiliary column of at least this many molecules are compared.
_MIN_COMPARED = 5
# Columns that are correlated more than this are a copy of the target, in another unit or rounded.
_COPY = 0.9999


def add_auxiliary(
    dataset: LabelledDataset, chunks: Sequence[pa.Table], columns: LabelColumns, config: DataConfig, unused: np.ndarray
) -> LabelledDataset:
    """Add the auxiliary labels of a table, and the rows of the table of further molecules.

    Args:
        dataset: the labelled molecules of the table.
        chunks: its rows.
        columns: roles of its columns; ``columns.auxiliary`` are those of the auxiliary columns that it has.
        config: data settings of the user.
        unused: ``bool [R]``, rows of the table whose auxiliary labels are not read.

    Raises:
        InputError: if the other table cannot be read, or an auxiliary column is in neither table, holds neither numbers
            nor two classes, or is a copy of a target.
    """
    names = config.auxiliary_columns
    if not names:
        return dataset
    tables = [_Table(dataset.name, list(chunks), columns)]
    if config.auxiliary_file:
        tables.append(_read_file(config, config.auxiliary_file))
    known_as = " and ".join(table.name for table in tables)
    tasks = [_infer_task(name, tables, config, known_as) for name in names]
    parts, notes = zip(*(_parse(table, tasks) for table in tables), strict=True)
    if (weights := dataset.all_labels.weights) is not None:
        unused = unused | (weights == 0)
    parts[0].labels.values[unused] = np.nan
    labels = replace(Labels.join([part.labels for part in parts]), names=names)
    for table, part in zip(tables[1:], parts[1:], strict=True):
        dataset = _append(dataset, table.name, part)
    for a, name in enumerate(names):
        for t, task in enumerate(dataset.tasks):
            _reject_copy(labels.values[:, a], dataset.targets[:, t], name, task, dataset.name)
    rejected = reject_unlabelled(dataset.all_labels, dataset.rejected)
    auxiliary = dataset.auxiliary | {MOLECULE: labels}
    return replace(dataset, rejected=rejected, auxiliary=auxiliary, notes=(*dataset.notes, *chain(*notes)))


class _Table(NamedTuple):
    """A table with auxiliary columns: its name, its rows and the roles of its columns."""

    name: str
    chunks: list[pa.Table]
    columns: LabelColumns


def _parse(table: _Table, tasks: Sequence[Task]) -> tuple[LabelledRows, list[str]]:
    """Parse the rows of a table, with labels of all A auxiliary targets, ``float64 [R, A]``, nan where unknown.

    Returns:
        The rows; and notes about the cells that are not learned: bounds, and those that are neither empty nor numbers
        or classes.
    """
    present = [a for a, task in enumerate(tasks) if task.name in table.columns.auxiliary]
    used = [tasks[a] for a in present]
    roles = LabelColumns(table.columns.smiles, [task.name for task in used], None, tasks=tuple(used))
    rows = LabelledRows.join(list(parse_chunks(table.chunks, roles, table.name)))
    bounds = 0 if rows.labels.bounds is None else int(is_bounded(rows.labels.bounds).sum())
    notes = [f"{table.name}: {bounds:,} bounds in auxiliary columns are not learned"] if bounds else []
    if wrong := rows.invalid_labels:
        row, reason = min(wrong.items())
        notes.append(f"{table.name}: auxiliary labels of {len(wrong):,} rows are not learned; row {row + 1}: {reason}")
    values = np.full((len(rows), len(tasks)), np.nan)
    values[:, present] = rows.labels.values
    return replace(rows, labels=Labels.of_molecules(values)), notes


def _read_file(config: DataConfig, file: str) -> _Table:
    with open_table(Path(file)) as table:
        smiles = find_smiles_column(table.columns, None, file, config.smiles_column)
        own = DataConfig(dataset=file, smiles_column=smiles, auxiliary=config.auxiliary, auxiliary_file=file)
        columns = find_columns(table.columns, own, file)
        return _Table(file, [plain_numbers(chunk, config.decimal) for chunk in table.chunks], columns)


def _infer_task(name: str, tables: Sequence[_Table], config: DataConfig, known_as: str) -> Task:
    """Infer the task of an auxiliary column from the cells of all tables that have it."""
    chunks = [chunk for table in tables if name in table.columns.auxiliary for chunk in table.chunks]
    if not chunks:
        raise InputError(f"--auxiliary names {name!r}, which is a column of neither table: {known_as}")
    (task,) = infer_tasks(chunks, [name], replace(config, task=None, transform=None), known_as)
    if task.kind == MULTICLASS:
        raise InputError(
            f"{known_as}: the auxiliary column {name!r} has {len(task.classes)} classes, not numbers or two classes"
        )
    return task


def _append(dataset: LabelledDataset, name: str, rows: LabelledRows) -> LabelledDataset:
    """Append the molecules of a table without labels of the targets; of weighted rows they have the mean weight."""
    weights = dataset.all_labels.weights
    weights = None if weights is None else np.full(len(rows), weights.sum() / max(1, np.count_nonzero(weights)))
    labels = replace(Labels.of_molecules(np.full((len(rows), len(dataset.tasks)), np.nan)), weights=weights)
    columns = dataset.columns
    if columns is not None:
        columns = np.full((len(rows), columns.shape[1]), np.nan, np.float32)
    further = LabelledDataset(name, rows.smiles, labels, dataset.tasks, rows.rejected, columns=columns)
    return LabelledDataset.join([dataset, further])


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
