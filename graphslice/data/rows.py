"""Conversion of the rows of a table to SMILES, labels, splits and features: where a cell becomes a label."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

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
)
from graphslice.data.columns import MAX_MAGNITUDE, InputColumns, LabelColumns
from graphslice.data.labels import Labels, pointers
from graphslice.data.splits import NO_SPLIT, SPLITS
from graphslice.data.tables import Rows, open_table, texts
from graphslice.errors import InputError, pluralize
from graphslice.tasks import REGRESSION, UNBOUNDED, Task, parse_bound

# Names of the splits in a split column.
_SPLIT_WORDS = {"train": ("train", "training"), "valid": ("valid", "val", "validation", "dev"), "test": ("test",)}
_SPLIT_NUMBERS = {word: SPLITS.index(name) for name, words in _SPLIT_WORDS.items() for word in words}


def labelled_rows(path: Path, columns: LabelColumns) -> Iterator[LabelledRows]:
    """Read the labelled rows of a table, chunk by chunk."""
    with open_table(path) as table:
        yield from parse_chunks((plain_numbers(rows, columns.decimal) for rows in table.chunks), columns, str(path))


def parse_chunks(
    chunks: Iterable[Rows], columns: LabelColumns, name: str, inputs: InputColumns | None = None
) -> Iterator[LabelledRows]:
    """Apply :func:`parse_chunk` to all chunks of the table ``name``, which is added to the message of an error."""
    first_row = 0
    try:
        for rows in chunks:
            yield parse_chunk(rows, columns, first_row, inputs)
            first_row += len(rows)
    except InputError as error:
        raise error if name in str(error) else InputError(f"{name}: {error}") from None


def parse_chunk(
    rows: Rows, columns: LabelColumns, first_row: int = 0, inputs: InputColumns | None = None
) -> LabelledRows:
    """Parse the cells of a chunk from row ``first_row``; a malformed row is rejected. A label is invalid unless empty,
    a finite number, a bound (``>5``) or a class; of atoms and bonds a list of numbers."""
    labels, invalid_labels = _parse_labels(rows, columns)
    rejected: dict[int, str] = {}
    if columns.weights is not None:
        weights, unweighted = _parse_weights(rows, columns.weights)
        known = labels.known()
        rejected = {row: reason for row, reason in unweighted.items() if known[row] or reason == ZERO_WEIGHT}
        labels = replace(labels, weights=weights)
    rejected |= rows.faults
    split = np.full(len(rows), NO_SPLIT, np.int8)
    if columns.split is not None:
        # The split of a row without a label is not used: it may be empty, or any word.
        needed = labels.known() if columns.targets else np.ones(len(rows), bool)
        needed[list(rejected)] = False
        split = parse_splits(texts(rows.table.column(columns.split)), columns.split, needed, first_row)
    inputs = inputs or InputColumns(columns.smiles, columns.descriptors)
    values = inputs.parse_features(rows) if columns.descriptors else None
    return LabelledRows(rows.smiles(columns.smiles), labels, split, rejected, values, invalid_labels)


def _parse_weights(rows: Rows, column: str) -> tuple[np.ndarray, dict[int, str]]:
    """Return weights, ``float64 [R]``, 0 where there is none; and the reason by row for rows without a weight."""
    weights, _ = parse_number_column(rows, column)
    valid = (weights >= 0) & (weights <= MAX_MAGNITUDE)
    reasons = dict.fromkeys(np.flatnonzero(weights == 0).tolist(), ZERO_WEIGHT)
    reasons |= dict.fromkeys(np.flatnonzero(~valid).tolist(), f"no weight from 0 to 1e18 in the column {column!r}")
    return np.where(valid, weights, 0.0), reasons


def _parse_labels(rows: Rows, columns: LabelColumns) -> tuple[Labels, dict[int, str]]:
    """Return the labels, nan where there is none; and the reason by row for rows with an invalid label."""
    tasks = columns.tasks or tuple(map(Task, columns.targets))
    if columns.level != MOLECULE:
        labels, rejected = parse_lists(rows, columns.targets)
        return _encode_classes(replace(labels, level=columns.level), tasks, rejected)
    values = np.empty((len(rows), len(columns.targets)), dtype=np.float64)
    bounds = np.full((*values.shape, 2), UNBOUNDED)
    rejected = {}
    for t, (target, task) in enumerate(zip(columns.targets, tasks, strict=True)):
        if task.kind == REGRESSION:
            values[:, t], bounds[:, t], reasons = _parse_values(rows, target)
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
    keys = [class_key(cell) for cell in texts(rows.table.column(target))]
    values = np.array([indices.get(key, np.nan) for key in keys])  # also of "-", which may be a class or empty
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


_Rows = TypeVar("_Rows", "LabelledRows", pa.Table)


#: Reason for rejecting a row that is valid but has no label.
UNLABELLED = "no target value"


#: Reason for rejecting a row that the user gave no weight.
ZERO_WEIGHT = "weight 0"


@dataclass
class LabelledRows:
    """Consecutive rows of labelled molecules."""

    smiles: list[str]
    labels: Labels
    split: np.ndarray  # int8 [R], index in SPLITS, NO_SPLIT for none
    rejected: dict[int, str]  # reason by row that is malformed or has no weight
    columns: np.ndarray | None = None  # float32 [R, K], descriptor columns, nan where unknown
    invalid_labels: dict[int, str] = field(default_factory=dict)  # reason by row; the label is unknown

    def __len__(self) -> int:
        return len(self.smiles)

    @property
    def targets(self) -> np.ndarray:
        """Labels of each row, ``float64 [R, T]``: the mean over its atoms or bonds for such labels."""
        return self.labels.means()

    def __getitem__(self, rows: slice) -> LabelledRows:
        begin, end, _ = rows.indices(len(self))
        rejected, invalid_labels = (
            {row - begin: reason for row, reason in reasons.items() if begin <= row < end}
            for reasons in (self.rejected, self.invalid_labels)
        )
        columns = None if self.columns is None else self.columns[begin:end]
        labels = self.labels.rows(begin, end)
        return LabelledRows(self.smiles[begin:end], labels, self.split[begin:end], rejected, columns, invalid_labels)

    @classmethod
    def join(cls, chunks: Sequence[LabelledRows]) -> LabelledRows:
        columns = [chunk.columns for chunk in chunks if chunk.columns is not None]
        return cls(
            [text for chunk in chunks for text in chunk.smiles],
            Labels.join([chunk.labels for chunk in chunks]),
            np.concatenate([chunk.split for chunk in chunks]),
            join_reasons(chunks, [chunk.rejected for chunk in chunks]),
            np.concatenate(columns) if columns else None,
            join_reasons(chunks, [chunk.invalid_labels for chunk in chunks]),
        )

    def digest(self) -> str:
        """Return a hash of all fields, 32 hexadecimal digits of SHA-256."""
        digest = hashlib.sha256(np.ascontiguousarray(self.labels.values).tobytes() + self.split.tobytes())
        for values in (self.labels.bounds, self.labels.weights):
            if values is not None:
                digest.update(values.tobytes())
        digest.update("\n".join(self.smiles).encode(errors="surrogatepass"))
        reasons = self.invalid_labels | self.rejected
        digest.update(repr(sorted(reasons.items())).encode(errors="surrogatepass"))
        if self.columns is not None:
            digest.update(np.ascontiguousarray(self.columns).tobytes())
        return digest.hexdigest()[:32]


def rechunk(chunks: Iterable[_Rows], size: int, join: Callable[[list[_Rows]], _Rows]) -> Iterator[_Rows]:
    """Regroup rows into chunks of exactly ``size`` rows, except for the last; ``join`` concatenates chunks."""
    waiting: list[_Rows] = []
    for chunk in chunks:
        waiting.append(chunk)
        while sum(map(len, waiting)) >= size:
            joined = join(waiting)
            yield joined[:size]
            waiting = [joined[size:]]
    if any(map(len, waiting)):
        yield join(waiting)


def join_reasons(parts: Sequence[Sized], reasons: Sequence[Mapping[int, str]]) -> dict[int, str]:
    """Join the reasons of parts of a table, by row within each, to reasons by row of the table."""
    firsts = pointers([len(part) for part in parts]).tolist()
    return {first + row: reason for first, part in zip(firsts, reasons, strict=False) for row, reason in part.items()}
