"""Labels from CSV and Parquet tables: roles of the columns, and conversion of cells to labels.

Featurization reads a table chunk by chunk (:func:`labelled_rows`). Training reads all chunks at once,
and can then infer the target column (:func:`infer_target`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.config import DataConfig, join_names, split_columns
from graphslice.data.columns import (
    MAX_MAGNITUDE,
    check_unique,
    find_feature_columns,
    parse_feature_columns,
    quoted_list,
)
from graphslice.data.infer_tasks import scan_columns
from graphslice.data.labelled_rows import LabelledRows
from graphslice.data.parse_cells import (
    cell_text,
    class_indices,
    class_key,
    decimal_point_hint,
    holds_lists,
    parse_number_column,
)
from graphslice.data.splits import NO_SPLIT, SPLITS
from graphslice.data.tables import decode_text, file_columns, malformed_rows, open_table, texts
from graphslice.errors import InputError, nearest
from graphslice.tasks import REGRESSION, Task

#: Names by which the SMILES column is found if none is configured, in order of preference.
SMILES_COLUMNS = ("smiles", "canonical_smiles", "smi", "mol", "structure")

# Names of the splits in a split column.
_SPLIT_WORDS = {
    "train": ("train", "training"),
    "valid": ("valid", "val", "validation", "dev"),
    "test": ("test",),
}
_SPLIT_NUMBERS = {word: SPLITS.index(name) for name, words in _SPLIT_WORDS.items() for word in words}


# --- roles of the columns -------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelColumns:
    """Roles of the columns of a table.

    Attributes:
        smiles: column of the SMILES.
        targets: columns of the targets.
        split: column of the split, or None.
        descriptors: columns of descriptors.
        tasks: task of each target; if empty, all targets are regression.
    """

    smiles: str
    targets: list[str]
    split: str | None
    descriptors: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()


def find_columns(
    columns: Sequence[str], config: DataConfig, name: str, split_methods: Sequence[str] = ()
) -> LabelColumns:
    """Find the columns of a table that are used.

    The SMILES are in ``config.smiles_column``, else in the first column with a usual name. The targets are those of
    ``config.targets``, none if that is None. The split is in the column ``config.split``, else in the column ``split``
    in any capitalisation, if there is one.

    Args:
        columns: names of all columns of the table.
        config: data settings of the user.
        name: name of the table, for messages.
        split_methods: split methods that ``config.split`` may name instead of a column.

    Raises:
        InputError: if a column is missing, or its name is not unique.
    """
    smiles = find_smiles_column(columns, config.smiles_column, name)
    targets = target_names(config.targets, columns)
    split = _find_split_column([c for c in columns if c not in targets], config.split, name, split_methods)
    for target in targets:
        if target not in columns:
            raise InputError(
                f"{name} has no column {target!r}{nearest(target, columns)}; it has {quoted_list(columns)}"
            )
    features = find_feature_columns(columns, config.descriptors, targets, name)
    check_unique(columns, [smiles, *targets, *([split] if split else []), *features], name)
    return LabelColumns(smiles, targets, split, tuple(features))


def find_smiles_column(
    columns: Sequence[str], requested: str | None, name: str, training_column: str | None = None
) -> str:
    """Find the SMILES column.

    It is the requested column, else that of the training set if the table has it, else the first with a usual name.

    Args:
        columns: names of all columns of the table.
        requested: column configured by the user, or None.
        name: name of the table, for messages.
        training_column: SMILES column of the training set of a model, or None.

    Raises:
        InputError: if there is none.
    """
    requested = training_column if requested is None and training_column in columns else requested
    if requested is not None:
        if requested not in columns:
            raise InputError(
                f"{name} has no column {requested!r}{nearest(requested, columns)}; it has {quoted_list(columns)}"
            )
        return requested
    by_name = {str(column).strip().lower(): column for column in reversed(columns)}
    for usual in SMILES_COLUMNS:
        if usual in by_name:
            return by_name[usual]
    raise InputError(
        f"{name}: which column holds the SMILES? The first line must name the columns: call one smiles, or give its "
        f"name with --smiles-column; the columns are {quoted_list(columns)}"
    )


def _find_split_column(columns: Sequence[str], requested: str | None, name: str, methods: Sequence[str]) -> str | None:
    if requested is None:
        candidates = [column for column in columns if column.strip().lower() == "split"]
        return "split" if "split" in columns else candidates[0] if len(candidates) == 1 else None
    if requested in methods:
        return None
    if requested in columns:
        return requested
    if not methods:
        raise InputError(
            f"{name} has no column {requested!r}{nearest(requested, columns)}; it has {quoted_list(columns)}"
        )
    raise InputError(
        f"unknown split {requested!r}{nearest(requested, [*methods, *columns])}: give {', '.join(methods)}, "
        f"or a column of {name}, which has {quoted_list(columns)}"
    )


def infer_target(
    chunks: Sequence[pa.Table], columns: LabelColumns, name: str, *, lists: bool = False
) -> tuple[str, list[str]]:
    """Infer the target column if the user names none: the only numeric column, or the only column without a role.

    A column of distinct integers may hold catalogue numbers, so it is not chosen if another column holds classes.

    Args:
        chunks: all rows of the table.
        columns: the columns that have another role.
        name: name of the table, for messages.
        lists: look for lists of numbers (atom- or bond-level targets) instead of numbers.

    Returns:
        The target column; the columns of classes that the user may want to predict too.

    Raises:
        InputError: if there is not exactly one candidate.
    """
    used = (columns.smiles, columns.split, *columns.descriptors)
    others = [column for column in file_columns(chunks[0]).column_names if column not in used]
    if others.count("") > 1:  # spreadsheets write additional commas at the ends of lines
        others = [column for column in others if column]
    check_unique(others, others, name)

    if lists:
        numeric = [column for column in others if any(holds_lists(chunk, column) for chunk in chunks)]
        if len(numeric) == 1:
            return numeric[0], []
    else:
        contents = dict(zip(others, scan_columns(chunks, others), strict=True))
        numeric = [column for column in others if contents[column].numbers > contents[column].words]
        classes = [column for column in others if column not in numeric and contents[column].looks_like_classes]
        if len(numeric) == 1 and not (classes and contents[numeric[0]].looks_like_ids):
            return numeric[0], classes
        if len(others) == 1:
            return others[0], []  # a column of words: classes, or infer_tasks reports what is wrong with it
    if not others:
        raise InputError(f"{name} has no column that could be predicted, only {quoted_list(filter(None, used))}")
    raise InputError(
        f"{name}: which columns are the targets? Name them with --targets, or as targets in Python; the columns are "
        f"{quoted_list(others)}"
    )


def target_names(text: str | Sequence[str] | None, columns: Sequence[str]) -> list[str]:
    """Parse the target names of ``--targets``.

    Args:
        text: one column, or several separated by commas, quoted if a name contains a comma; or a list of names.
        columns: names of all columns of the table.

    Raises:
        InputError: if a target is named twice.
    """
    if not text:
        return []
    if not isinstance(text, str):
        text = join_names([str(name) for name in text])
    names = [text] if text in columns else [name for name in split_columns(text) if name]
    names = [name if name in columns else name.strip() for name in names]
    if len(set(names)) != len(names):
        raise InputError(f"--targets names a column twice: {', '.join(names)}")
    return names


# --- parsing of the cells -------------------------------------------------------------------------


def labelled_rows(path: Path, columns: LabelColumns) -> Iterator[LabelledRows]:
    """Read the labelled rows of a table, chunk by chunk.

    Args:
        path: the table.
        columns: roles of its columns.

    Raises:
        InputError: if the table cannot be read, or a cell of the split column names no split.
    """
    with open_table(path) as table, error_context(str(path)):
        yield from parse_chunks(table.chunks, columns)


@contextmanager
def error_context(name: str) -> Iterator[None]:
    """Add the name of the table to the message of any :class:`InputError` that lacks it."""
    try:
        yield
    except InputError as error:
        raise error if name in str(error) else InputError(f"{name}: {error}") from None


def parse_chunks(chunks: Iterable[pa.Table], columns: LabelColumns) -> Iterator[LabelledRows]:
    """Apply :func:`parse_chunk` to consecutive chunks of a table, from its first row."""
    first_row = 0
    for chunk in chunks:
        yield parse_chunk(chunk, columns, first_row)
        first_row += len(chunk)


def parse_chunk(chunk: pa.Table, columns: LabelColumns, first_row: int = 0) -> LabelledRows:
    """Parse the cells of a chunk of a table (CSV or Parquet) to SMILES, labels, splits and features.

    A row is rejected if a label is neither empty nor valid (a finite number, or one of the classes). A malformed row is
    rejected too, and has neither SMILES nor labels.

    Args:
        chunk: rows of the table.
        columns: roles of its columns.
        first_row: row of the table with which the chunk begins, for messages.

    Raises:
        InputError: if a cell of the split column names no split, in a row that has a label.
    """
    smiles = texts(chunk.column(columns.smiles), decode_text)
    targets, rejected = _parse_targets(chunk, columns)
    for row, reason in malformed_rows(chunk).items():
        smiles[row], rejected[row] = "", reason
    split = np.full(len(chunk), NO_SPLIT, np.int8)
    if columns.split is not None:
        # The split of a row without a label is not used: it may be empty, or any word.
        needed = ~np.isnan(targets).all(axis=1) if columns.targets else np.ones(len(chunk), bool)
        needed[list(rejected)] = False
        split = parse_splits(texts(chunk.column(columns.split), decode_text), columns.split, needed, first_row)
    features = parse_feature_columns(chunk, columns.descriptors) if columns.descriptors else None
    return LabelledRows(smiles, targets, split, rejected, features)


def _parse_targets(chunk: pa.Table, columns: LabelColumns) -> tuple[np.ndarray, dict[int, str]]:
    """Return labels, ``float64 [R, T]``, nan where there is none; and the reason by row with an invalid cell."""
    values = np.empty((len(chunk), len(columns.targets)), dtype=np.float64)
    rejected: dict[int, str] = {}
    tasks = columns.tasks or tuple(map(Task, columns.targets))
    for t, (target, task) in enumerate(zip(columns.targets, tasks, strict=True)):
        parse = _parse_values if task.kind == REGRESSION else _parse_classes
        values[:, t], reasons = parse(chunk, target, task)
        rejected = {row: f"target {target!r} {reason}" for row, reason in reasons.items()} | rejected
    return values, rejected


def _parse_values(chunk: pa.Table, target: str, task: Task) -> tuple[np.ndarray, dict[int, str]]:
    """Return numbers, ``float64 [R]``, nan where there is none; and the reason by row for invalid cells."""
    numbers, empty = parse_number_column(chunk, target)
    wrong = ~empty & ~np.isfinite(numbers)
    huge = np.abs(numbers) > MAX_MAGNITUDE
    reasons = {}
    for row in np.flatnonzero(wrong | huge).tolist():
        cell = cell_text(chunk.column(target), row)
        problem = "is too large" if huge[row] and not wrong[row] else "is not a finite number"
        reasons[row] = f"{problem}: {cell!r}{decimal_point_hint(cell)}"
    return np.where(wrong | huge, np.nan, numbers), reasons


def _parse_classes(chunk: pa.Table, target: str, task: Task) -> tuple[np.ndarray, dict[int, str]]:
    """Return class indices, ``float64 [R]``, nan where there is none; and the reason by row for invalid cells."""
    indices = class_indices(task.classes)
    _, empty = parse_number_column(chunk, target)
    keys = [class_key(cell) for cell in texts(chunk.column(target), decode_text)]
    values = np.array([indices.get(key, np.nan) for key in keys])
    values[empty] = np.nan
    reasons = {}
    for row in np.flatnonzero(~empty & np.isnan(values)).tolist():
        reasons[row] = f"is none of its {len(task.classes)} classes: {cell_text(chunk.column(target), row)!r}"
    return values, reasons


def parse_splits(words: Sequence[str], column: str, needed: np.ndarray | None = None, first_row: int = 0) -> np.ndarray:
    """Parse a split column: train, valid, test, or a common synonym.

    Args:
        words: R cells.
        column: name of the column, for messages.
        needed: ``bool [R]``, true for rows that must have a split; all rows when not given.
        first_row: row of the table with which the cells begin, for messages.

    Returns:
        ``int8 [R]``, indices into :data:`~graphslice.data.splits.SPLITS`; ``NO_SPLIT`` where no split is named.

    Raises:
        InputError: if a cell names no split, in a row that must have one.
    """
    numbers = np.full(len(words), NO_SPLIT, np.int8)
    for row, word in enumerate(words):
        number = _SPLIT_NUMBERS.get(word.strip().lower())
        if number is not None:
            numbers[row] = number
        elif needed is None or needed[row]:
            raise InputError(f"row {first_row + row + 1}: {column!r} is {word!r}; it must be train, valid or test")
    return numbers
