"""From tables to labelled rows: which columns hold what, and which label a cell is.

Featurizing reads a table chunk by chunk (:func:`labelled_rows`); training takes all chunks at once,
and may then find the column to predict by itself (:func:`infer_target`).
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

#: Names of SMILES columns that need not be given, in the order they are looked for.
SMILES_COLUMNS = ("smiles", "canonical_smiles", "smi", "mol", "structure")

# Words of a split column.
_SPLIT_WORDS = {
    "train": ("train", "training"),
    "valid": ("valid", "val", "validation", "dev"),
    "test": ("test",),
}
_SPLIT_NUMBERS = {word: SPLITS.index(name) for name, words in _SPLIT_WORDS.items() for word in words}


# --- which columns --------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelColumns:
    """Which columns of a table hold the SMILES, the targets, the split (None: none does), and descriptors.

    ``tasks`` says what is asked of each target; numbers of all of them while it is empty.
    """

    smiles: str
    targets: list[str]
    split: str | None
    descriptors: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()


def find_columns(
    columns: Sequence[str], config: DataConfig, name: str, split_methods: Sequence[str] = ()
) -> LabelColumns:
    """Which columns of a table are used.

    The SMILES are in ``config.smiles_column``, else in the first column with a usual name; the targets
    are those that ``config.targets`` names, none where that is None; the split is in the column
    ``config.split``, else in ``split`` where there is such a column, or ``Split``.

    Args:
        columns: all that the table has.
        config: what the user said of them.
        name: of the table, for messages.
        split_methods: ways to split that ``config.split`` may name in place of a column.

    Raises:
        InputError: if there is no such column, or two of that name.
    """
    smiles = find_smiles_column(columns, config.smiles_column, name)
    targets = target_names(config.targets, columns)
    split = _find_split_column([c for c in columns if c not in targets], config.split, name, split_methods)
    for target in targets:
        if target not in columns:
            raise InputError(
                f"{name} has no column {target!r}{nearest(target, columns)}; it has {quoted_list(columns)}"
            )
    own = find_feature_columns(columns, config.descriptors, targets, name)
    check_unique(columns, [smiles, *targets, *([split] if split else []), *own], name)
    return LabelColumns(smiles, targets, split, tuple(own))


def find_smiles_column(columns: Sequence[str], given: str | None, name: str, learned: str | None = None) -> str:
    """The column of the SMILES: the given one, that which a model learned if there is one of that name, or the first
    with a usual name.

    Raises:
        InputError: if there is none.
    """
    given = learned if given is None and learned in columns else given
    if given is not None:
        if given not in columns:
            raise InputError(f"{name} has no column {given!r}{nearest(given, columns)}; it has {quoted_list(columns)}")
        return given
    by_name = {str(column).strip().lower(): column for column in reversed(columns)}
    for usual in SMILES_COLUMNS:
        if usual in by_name:
            return by_name[usual]
    raise InputError(
        f"{name}: which column holds the SMILES? The first line names the columns: call one smiles, or give its name "
        f"with --smiles-column; there are {quoted_list(columns)}"
    )


def _find_split_column(columns: Sequence[str], given: str | None, name: str, methods: Sequence[str]) -> str | None:
    if given is None:
        named = [column for column in columns if column.strip().lower() == "split"]
        return "split" if "split" in columns else named[0] if len(named) == 1 else None
    if given in methods:
        return None
    if given in columns:
        return given
    if not methods:
        raise InputError(f"{name} has no column {given!r}{nearest(given, columns)}; it has {quoted_list(columns)}")
    raise InputError(
        f"unknown split {given!r}{nearest(given, [*methods, *columns])}: give {', '.join(methods)}, "
        f"or a column of {name}, which has {quoted_list(columns)}"
    )


def infer_target(
    chunks: Sequence[pa.Table], columns: LabelColumns, name: str, *, lists: bool = False
) -> tuple[str, list[str]]:
    """What is predicted where the user names no target: the one column that holds numbers, or the only other one.

    Not a column of different whole numbers, as of a catalogue, where another one has classes.

    Args:
        chunks: all of the table.
        columns: the columns that hold something else.
        name: of the table, for messages.
        lists: whether lists of numbers are predicted, and not numbers.

    Returns:
        The column, and those of classes that could have been meant too.

    Raises:
        InputError: if there is not exactly one.
    """
    used = (columns.smiles, columns.split, *columns.descriptors)
    others = [column for column in file_columns(chunks[0]).column_names if column not in used]
    if others.count("") > 1:  # commas at the ends of lines, as spreadsheets write them
        others = [column for column in others if column]
    check_unique(others, others, name)

    if lists:
        numeric = [column for column in others if any(holds_lists(chunk, column) for chunk in chunks)]
        if len(numeric) == 1:
            return numeric[0], []
    else:
        found = dict(zip(others, scan_columns(chunks, others), strict=True))
        numeric = [column for column in others if found[column].numbers > found[column].words]
        classes = [column for column in others if column not in numeric and found[column].looks_like_classes]
        if len(numeric) == 1 and not (classes and found[numeric[0]].looks_like_ids):
            return numeric[0], classes
        if len(others) == 1:
            return others[0], []  # words: classes, or infer_tasks says what is wrong with it
    if not others:
        raise InputError(f"{name} has no column that could be predicted, but {quoted_list(filter(None, used))} alone")
    raise InputError(
        f"{name}: which columns shall be predicted? Give them with --targets, or as targets in Python; there are "
        f"{quoted_list(others)}"
    )


def target_names(text: str | Sequence[str] | None, columns: Sequence[str]) -> list[str]:
    """The targets that ``--targets`` names: one column, or several after commas, in quotes where a name has one.

    In Python a list of names does too.

    Raises:
        InputError: if one is named twice.
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


# --- what the cells say ---------------------------------------------------------------------------


def labelled_rows(path: Path, columns: LabelColumns) -> Iterator[LabelledRows]:
    """The rows of a table, chunk by chunk.

    Raises:
        InputError: if the table cannot be read to its end, or a word of the split column names no split.
    """
    with open_table(path) as table, error_context(str(path)):
        yield from parse_chunks(table.chunks, columns)


@contextmanager
def error_context(name: str) -> Iterator[None]:
    """Let an :class:`InputError` about a row say of which table."""
    try:
        yield
    except InputError as error:
        raise error if name in str(error) else InputError(f"{name}: {error}") from None


def parse_chunks(chunks: Iterable[pa.Table], columns: LabelColumns) -> Iterator[LabelledRows]:
    """:func:`parse_chunk` for consecutive chunks of a table, from its first row."""
    first_row = 0
    for chunk in chunks:
        yield parse_chunk(chunk, columns, first_row)
        first_row += len(chunk)


def parse_chunk(chunk: pa.Table, columns: LabelColumns, first_row: int = 0) -> LabelledRows:
    """Some rows of a table. A row with a label that is no number, or none of the classes, is rejected; a gap is no
    reason for that.

    A malformed row has no SMILES and no label, and is rejected too.

    ``first_row`` is the row of the table that the chunk begins with, for messages.

    Raises:
        InputError: if a word of the split column names no split, in a row that has a label.
    """
    smiles = texts(chunk.column(columns.smiles), decode_text)
    targets, rejected = _parse_targets(chunk, columns)
    for row, reason in malformed_rows(chunk).items():
        smiles[row], rejected[row] = "", reason
    split = np.full(len(chunk), NO_SPLIT, np.int8)
    if columns.split is not None:
        # The split of a row without a label does not matter: it may be empty, or any word.
        needed = ~np.isnan(targets).all(axis=1) if columns.targets else np.ones(len(chunk), bool)
        needed[list(rejected)] = False
        split = parse_splits(texts(chunk.column(columns.split), decode_text), columns.split, needed, first_row)
    own = parse_feature_columns(chunk, columns.descriptors) if columns.descriptors else None
    return LabelledRows(smiles, targets, split, rejected, own)


def _parse_targets(chunk: pa.Table, columns: LabelColumns) -> tuple[np.ndarray, dict[int, str]]:
    """``float64 [R, T]``, nan where there is no label; and a reason for each row in which a cell is of no use."""
    values = np.empty((len(chunk), len(columns.targets)), dtype=np.float64)
    rejected: dict[int, str] = {}
    tasks = columns.tasks or tuple(map(Task, columns.targets))
    for t, (target, task) in enumerate(zip(columns.targets, tasks, strict=True)):
        parse = _parse_values if task.kind == REGRESSION else _parse_classes
        values[:, t], reasons = parse(chunk, target, task)
        rejected = {row: f"target {target!r} {why}" for row, why in reasons.items()} | rejected
    return values, rejected


def _parse_values(chunk: pa.Table, target: str, task: Task) -> tuple[np.ndarray, dict[int, str]]:
    """``float64 [R]``, nan where there is none to learn; and why another cell has none."""
    numbers, empty = parse_number_column(chunk, target)
    wrong = ~empty & ~np.isfinite(numbers)
    huge = np.abs(numbers) > MAX_MAGNITUDE
    reasons = {}
    for row in np.flatnonzero(wrong | huge).tolist():
        cell = cell_text(chunk.column(target), row)
        why = "is too large" if huge[row] and not wrong[row] else "is not a finite number"
        reasons[row] = f"{why}: {cell!r}{decimal_point_hint(cell)}"
    return np.where(wrong | huge, np.nan, numbers), reasons


def _parse_classes(chunk: pa.Table, target: str, task: Task) -> tuple[np.ndarray, dict[int, str]]:
    """``float64 [R]``, the place of each cell's class, nan where there is none; and why a cell with something in it has
    none."""
    places = class_indices(task.classes)
    _, empty = parse_number_column(chunk, target)
    keys = [class_key(cell) for cell in texts(chunk.column(target), decode_text)]
    values = np.array([places.get(key, np.nan) for key in keys])
    values[empty] = np.nan
    reasons = {}
    for row in np.flatnonzero(~empty & np.isnan(values)).tolist():
        reasons[row] = f"is none of its {len(task.classes)} classes: {cell_text(chunk.column(target), row)!r}"
    return values, reasons


def parse_splits(words: Sequence[str], column: str, needed: np.ndarray | None = None, first_row: int = 0) -> np.ndarray:
    """The split that each cell of a column names: train, valid or test, or a usual other word for one of them.

    Args:
        words: R cells.
        column: its name, for messages.
        needed: ``bool [R]``, which rows must have a split; all of them when not given.
        first_row: the row of the table that the cells begin with, for messages.

    Returns:
        ``int8 [R]``, numbers of :data:`~graphslice.data.splits.SPLITS`; ``NO_SPLIT`` where no split is named.

    Raises:
        InputError: for a word that names no split, in a row that must have one.
    """
    numbers = np.full(len(words), NO_SPLIT, np.int8)
    for row, word in enumerate(words):
        number = _SPLIT_NUMBERS.get(word.strip().lower())
        if number is not None:
            numbers[row] = number
        elif needed is None or needed[row]:
            raise InputError(f"row {first_row + row + 1}: {column!r} is {word!r}; it must be train, valid or test")
    return numbers
