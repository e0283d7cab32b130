"""Conversion of the rows of a table to SMILES, labels, splits and features: where a cell becomes a label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from graphslice.config import ATOM, MOLECULE
from graphslice.data.cells import (
    COMMA_ADVICE,
    cell_text,
    class_indices,
    class_key,
    column_cells,
    has_comma,
    number_key,
    parse_number_column,
    parse_number_list,
    plain_numbers,
    words_of,
)
from graphslice.data.columns import MAX_MAGNITUDE, TableColumns
from graphslice.data.dataset import ZERO_WEIGHT, LabelledDataset
from graphslice.data.labels import Labels, pointers
from graphslice.data.splits import NO_SPLIT, SPLITS
from graphslice.data.tables import Rows, open_table, texts
from graphslice.errors import InputError, pluralize
from graphslice.tasks import REGRESSION, UNBOUNDED, Task, is_bounded, parse_bound

# Names of the splits in a split column.
_SPLIT_WORDS = {"train": ("train", "training"), "valid": ("valid", "val", "validation", "dev"), "test": ("test",)}
_SPLIT_NUMBERS = {word: SPLITS.index(name) for name, words in _SPLIT_WORDS.items() for word in words}


def labelled_rows(path: Path, columns: TableColumns) -> Iterator[LabelledDataset]:
    """Read the labelled rows of a table, chunk by chunk."""
    with open_table(path) as table:
        yield from parse_chunks((plain_numbers(rows, columns.decimal) for rows in table.chunks), columns, str(path))


def parse_chunks(chunks: Iterable[Rows], columns: TableColumns, name: str) -> Iterator[LabelledDataset]:
    """Apply :func:`parse_chunk` to all chunks of the table ``name``, which is added to the message of an error."""
    first_row = 0
    try:
        for rows in chunks:
            yield parse_chunk(rows, columns, first_row)
            first_row += len(rows)
    except InputError as error:
        raise error if name in str(error) else InputError(f"{name}: {error}") from None


def parse_chunk(rows: Rows, columns: TableColumns, first_row: int = 0) -> LabelledDataset:
    """Parse the cells of a chunk from row ``first_row``. A label is invalid unless empty, a finite number, a bound
    (``>5``) or a class; of atoms and bonds a list of numbers."""
    labels, faults = parse_labels(rows, columns)
    known = labels.known()
    if columns.weights is not None:
        weights, unweighted = _parse_weights(rows, columns.weights)
        faults |= {row: reason for row, reason in unweighted.items() if known[row] or reason == ZERO_WEIGHT}
        labels = replace(labels, weights=weights)
    faults |= rows.faults
    split = None
    if columns.split is not None:
        # The split of a row without a label is not used: it may be empty, or any word.
        needed = labels.used() if columns.targets else np.ones(len(rows), bool)
        needed[list(rows.faults)] = False
        split = parse_splits(texts(rows.table.column(columns.split)), columns.split, needed, first_row)
    smiles, features = rows.smiles(columns.smiles), columns.parse_features(rows) if columns.features else None
    return LabelledDataset("", smiles, labels, list(columns.tasks), faults, split, columns=features)


def _parse_weights(rows: Rows, column: str) -> tuple[np.ndarray, dict[int, str]]:
    """Return weights, ``float64 [R]``, 0 where there is none; and the reason by row for rows without a weight."""
    weights, _ = parse_number_column(rows, column)
    valid = (weights >= 0) & (weights <= MAX_MAGNITUDE)
    reasons = dict.fromkeys(np.flatnonzero(weights == 0).tolist(), ZERO_WEIGHT)
    reasons |= dict.fromkeys(np.flatnonzero(~valid).tolist(), f"no weight from 0 to 1e18 in the column {column!r}")
    return np.where(valid, weights, 0.0), reasons


def parse_labels(rows: Rows, columns: TableColumns) -> tuple[Labels, dict[int, str]]:
    """Return the labels, nan where there is none; and the reason by row for rows with an invalid label."""
    tasks = columns.tasks or tuple(map(Task, columns.targets))
    if columns.level != MOLECULE:
        labels, rejected = parse_lists(rows, columns.targets)
        return _encode_classes(replace(labels, level=columns.level), tasks, rejected)
    values = np.empty((len(rows), len(columns.targets)), dtype=np.float64)
    bounds: np.ndarray | None = None
    rejected = {}
    for t, (target, task) in enumerate(zip(columns.targets, tasks, strict=True)):
        if task.kind == REGRESSION:
            values[:, t], own, reasons = _parse_values(rows, target)
            if is_bounded(own).any():
                bounds = np.full((*values.shape, 2), UNBOUNDED) if bounds is None else bounds
                bounds[:, t] = own
        else:
            values[:, t], reasons = _parse_classes(rows, target, task)
        rejected = {row: f"target {target!r} {reason}" for row, reason in reasons.items()} | rejected
    return Labels.of_molecules(values, bounds), rejected


def _parse_values(rows: Rows, target: str) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Return numbers, ``float64 [R]``, nan where there is none; bounds ``[R, 2]``; and the reason by invalid row."""
    numbers, empty = parse_number_column(rows, target)
    bounds = np.full((len(numbers), 2), UNBOUNDED)
    wrong = ~empty & ~np.isfinite(numbers)
    huge = np.abs(numbers) > MAX_MAGNITUDE
    reasons = {}
    for row in np.flatnonzero(wrong | huge).tolist():
        cell = cell_text(rows.table.column(target), row)
        if wrong[row] and (bound := parse_bound(cell)) is not None:
            bounds[row] = bound
            if np.abs(bound).min() > MAX_MAGNITUDE:  # also of one that float64 does not hold
                reasons[row] = f"is too large: {cell!r}"
            continue
        problem = "is too large" if huge[row] and not wrong[row] else "is not a finite number"
        reasons[row] = f"{problem}: {cell!r}{f' ({COMMA_ADVICE})' if has_comma(cell) else ''}"
    bounds[list(reasons)] = UNBOUNDED
    return np.where(wrong | huge, np.nan, numbers), bounds, reasons


def _parse_classes(rows: Rows, target: str, task: Task) -> tuple[np.ndarray, dict[int, str]]:
    """Return class indices, ``float64 [R]``, nan where there is none; and the reason by row for invalid cells."""
    indices = class_indices(task.classes)
    _, empty = parse_number_column(rows, target)
    words, word_of = words_of(rows.table.column(target))
    values = np.array([indices.get(class_key(word), np.nan) for word in words])[word_of]  # "-" may be a class or empty
    values[list(rows.faults)] = np.nan
    reasons = {}
    for row in np.flatnonzero(~empty & np.isnan(values)).tolist():
        reasons[row] = f"is none of its {len(task.classes)} classes: {cell_text(rows.table.column(target), row)!r}"
    return values, reasons


def parse_lists(rows: Rows, targets: Sequence[str]) -> tuple[Labels, dict[int, str]]:
    """Parse columns of lists of numbers; also return the reason, by row, for lists that are invalid."""
    parts: list[np.ndarray] = [np.empty((0, len(targets)))]
    rejected: dict[int, str] = {}
    columns = [column_cells(rows, target) for target in targets]
    for row, cells in enumerate(zip(*columns, strict=True)):
        try:
            parts.append(parts[0] if row in rows.faults else _parse_label_row(cells, targets))
        except ValueError as reason:
            rejected[row] = str(reason)
            parts.append(parts[0])
    return Labels(ATOM, np.concatenate(parts), pointers([len(part) for part in parts[1:]])), rejected


def _parse_label_row(cells: Sequence[object], targets: Sequence[str]) -> np.ndarray:
    """Parse T cells to ``float64 [n, T]``; raise ValueError, with the reason, for invalid lists."""
    lists: list[np.ndarray | None] = []
    for cell, target in zip(cells, targets, strict=True):
        try:
            numbers = parse_number_list(cell)
        except ValueError as reason:
            raise ValueError(f"target {target!r} {reason}") from None
        if numbers is not None and (np.abs(numbers) > MAX_MAGNITUDE).any():
            raise ValueError(f"target {target!r} has a number that is too large: {np.nanmax(np.abs(numbers)):g}")
        lists.append(numbers)
    lengths = {len(numbers): target for numbers, target in zip(lists, targets, strict=True) if numbers is not None}
    if len(lengths) > 1:
        examples = " and ".join(f"{target!r} has {pluralize(n, 'number')}" for n, target in list(lengths.items())[:2])
        raise ValueError(f"targets differ in length: {examples}")
    length = next(iter(lengths), 0)
    columns = [np.full(length, np.nan) if numbers is None else numbers for numbers in lists]
    return np.stack(columns, axis=1)


def _encode_classes(labels: Labels, tasks: Sequence[Task], rejected: dict[int, str]) -> tuple[Labels, dict[int, str]]:
    """Replace the numbers of classification targets in lists by class indices; a number that is no class is invalid."""
    values, rejected = labels.values.copy(), dict(rejected)
    for t, task in enumerate(tasks):
        if not task.classes:
            continue
        known = np.flatnonzero(~np.isnan(labels.values[:, t]))
        indices = class_indices(task.classes)
        encoded = np.array([indices.get(number_key(value), np.nan) for value in labels.values[known, t].tolist()])
        values[known, t] = encoded
        for position in known[np.isnan(encoded)].tolist():
            row = int(np.searchsorted(labels.ptr, position, side="right")) - 1
            reason = f"has a number that is none of its classes: {labels.values[position, t]:g}"
            rejected.setdefault(row, f"target {task.name!r} {reason}")
    return replace(labels, values=values), rejected


def parse_splits(words: Sequence[str], column: str, needed: np.ndarray | None = None, first_row: int = 0) -> np.ndarray:
    """Parse train, valid, test or a synonym to ``int8 [R]``, the index in :data:`~graphslice.data.splits.SPLITS`.
    ``NO_SPLIT``: none is named, an InputError in a row that is ``needed``, ``bool [R]`` (None: all)."""
    numbers = np.full(len(words), NO_SPLIT, np.int8)
    for row, word in enumerate(words):
        number = _SPLIT_NUMBERS.get(word.strip().lower())
        if number is not None:
            numbers[row] = number
        elif needed is None or needed[row]:
            raise InputError(
                f"row {first_row + row + 1}: {column!r} is {word!r}; it must be train, valid or test: delete rows that "
                "belong to none, or rename the column if it names no split"
            )
    return numbers
