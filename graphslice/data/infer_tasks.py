"""What is asked of each target column, found from its values: a number, yes or no, or one of several classes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from graphslice.config import DataConfig
from graphslice.data.parse_cells import (
    cell_text,
    class_key,
    decimal_point_hint,
    has_thousands_separators,
    list_or_none,
    number_key,
    parse_number_column,
)
from graphslice.data.tables import decode_text, texts
from graphslice.errors import InputError
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION, TASK_KINDS, TRANSFORMS, Task, parse_per_target

# More different words than these are no classes.
_MOST_CLASSES = 100
# So many numbers may be classes however few rows have each.
_FEW_CLASSES = 10
# So many commas for each number are mistakes of some rows.
_FEW_COMMAS = 0.1
# Many words that begin so, as "12 %", ">5" and "3-4" do, are numbers with something beside them.
_BEGINS_AS_NUMBER = re.compile(r"[<>=~$]*\s*[+-]?\.?[0-9]")
# Words of which the other one is the negative class.
_POSITIVE = {"yes", "y", "true", "t", "active", "positive", "pos", "+", "toxic", "hit", "pass", "high", "binder", "1"}
_NEGATIVE = {"no", "n", "false", "f", "inactive", "negative", "neg", "-", "nontoxic", "non-toxic", "fail", "low", "0"}


@dataclass
class ColumnContents:
    """What the cells of a target column hold, counted chunk by chunk.

    Attributes:
        numbers: how many are finite numbers.
        words: how many are something else; gaps and infinities are neither, nor are numbers with commas.
        commas: how many are these.
        values: the different numbers, up to one more than there can be classes.
        names: the writings of every class by what they have in common, as long as there are few.
        first_word, first_comma: the first such cell, with its row from 1.
        first_thousands: the first whose commas surely part thousands.
        first_none: the first cell that says none, in a column of words.
        least: the smallest number, with its row from 1.
    """

    numbers: int = 0
    words: int = 0
    commas: int = 0
    values: set[float] = field(default_factory=set)
    names: dict[str, Counter[str]] = field(default_factory=dict)
    first_word: tuple[int, str] | None = None
    first_comma: tuple[int, str] | None = None
    first_thousands: tuple[int, str] | None = None
    first_none_word: tuple[int, str] | None = None
    least: tuple[float, int] = (np.inf, 0)

    def add(self, chunk: pa.Table, column: str, first_row: int) -> None:
        """Count the cells of a chunk that begins with row ``first_row``, from 0."""
        numbers, empty = parse_number_column(chunk, column)
        finite = np.isfinite(numbers)
        self.numbers += int(finite.sum())
        if finite.any():
            row = int(np.where(finite, numbers, np.inf).argmin())
            self.least = min(self.least, (float(numbers[row]), first_row + row + 1))
        if len(self.values) <= _MOST_CLASSES:
            different = np.unique(numbers[finite])[: _MOST_CLASSES + 1].tolist()
            self.values |= set(different)
        for row in np.flatnonzero(~empty & ~finite).tolist():
            cell = cell_text(chunk.column(column), row)
            if decimal_point_hint(cell):
                self.commas += 1
                self.first_comma = self.first_comma or (first_row + row + 1, cell)
                if self.first_thousands is None and has_thousands_separators(cell):
                    self.first_thousands = (first_row + row + 1, cell)
                continue
            self.first_word = self.first_word or (first_row + row + 1, cell)
            if np.isinf(numbers[row]):
                continue
            self.words += 1
            if len(self.names) <= _MOST_CLASSES:
                self.names.setdefault(class_key(cell), Counter())[cell.strip()] += 1
        if self.numbers <= self.words and self.first_none_word is None and empty.any():
            cells = enumerate(texts(chunk.column(column), decode_text), first_row + 1)
            self.first_none_word = next(((row, cell) for row, cell in cells if class_key(cell) == "none"), None)

    @property
    def looks_like_classes(self) -> bool:
        """Whether it holds few different words, some of them several times."""
        return 1 < len(self.names) < self.words and _infer_word_kind(self) != REGRESSION

    @property
    def looks_like_ids(self) -> bool:
        """Whether it holds whole numbers, each of them once as far as was counted."""
        counted = min(self.numbers, _MOST_CLASSES + 1)
        return len(self.values) >= counted > 0 and all(value.is_integer() for value in self.values)


def scan_columns(chunks: Iterable[pa.Table], columns: Sequence[str]) -> list[ColumnContents]:
    """What some columns of a table hold, chunk by chunk from its first row."""
    found = [ColumnContents() for _ in columns]
    first_row = 0
    for chunk in chunks:
        for contents, column in zip(found, columns, strict=True):
            contents.add(chunk, column, first_row)
        first_row += len(chunk)
    return found


def infer_tasks(chunks: Iterable[pa.Table], targets: Sequence[str], config: DataConfig, name: str) -> list[Task]:
    """What is asked of each target: what ``config.task`` says, else what its values look like.

    Two different words, or 0 and 1, are yes or no; more words are classes, unless they are as many as rows; all else
    are numbers, whole ones too.

    Args:
        chunks: all of the table.
        targets: names of its columns.
        config: what the user said.
        name: of the table, for messages.

    Raises:
        InputError: if a column cannot be learned: empty, of one value, neither numbers nor classes, not what
            ``config.task`` says, or with a number that has no logarithm.
    """
    asked = parse_per_target(config.task, targets, TASK_KINDS, "--task")
    transforms = parse_per_target(config.transform, targets, TRANSFORMS, "--transform")
    contents = scan_columns(chunks, targets)
    tasks = []
    for target, found in zip(targets, contents, strict=True):
        task = _infer_task(target, found, asked.get(target), f"{name}: the target {target!r}")
        tasks.append(_transformed(task, found, transforms, name, config.transform in TRANSFORMS))
    if config.transform in TRANSFORMS[1:] and not any(task.kind == REGRESSION for task in tasks):
        raise InputError(f"--transform {config.transform}: {name} has no target that is a number")
    return tasks


def infer_tasks_from_values(labels: np.ndarray, targets: Sequence[str], config: DataConfig, name: str) -> list[Task]:
    """:func:`infer_tasks` of labels that are numbers already, ``float64 [R, T]``, nan where unknown."""
    return infer_tasks([pa.table(list(labels.T), names=list(targets))], targets, config, name)


def _infer_task(target: str, found: ColumnContents, asked: str | None, what: str) -> Task:
    """The task of a column, as asked for or as it looks; ``what`` names it in messages."""
    if not found.numbers + found.words + found.commas and found.first_word is None:
        raise InputError(f"{what} is empty in every row")
    if found.first_word is not None and list_or_none(found.first_word[1]) is not None:
        raise InputError(
            f"{what} holds lists (row {found.first_word[0]}): graphslice train learns numbers of atoms with --level "
            "atom, and of bonds with --level bond"
        )
    numeric = found.numbers >= found.words  # a few words among numbers are mistakes, which rejected.csv tells
    # Thousands separators stand in the large numbers alone: without these rows a model would learn the small ones.
    few = found.numbers * (_FEW_COMMAS if found.first_thousands else 1)
    if found.commas > max(few, found.words) and asked in (None, REGRESSION):
        kind = "thousands separators" if found.first_thousands else "decimal commas"
        row, cell = found.first_thousands or found.first_comma or (0, "")
        raise InputError(f"{what} has {kind}: {cell!r} in row {row}{decimal_point_hint(cell)}")
    if asked is None:
        asked = BINARY if found.values == {0.0, 1.0} and numeric else REGRESSION
        if not numeric:
            asked = _infer_word_kind(found)
            if asked == REGRESSION and not found.numbers:
                row, cell = found.first_word or (0, "")
                raise InputError(
                    f"{what} is not numeric (row {row} is {cell!r}), and has too many different words to be classes: "
                    f"write numbers without units and signs, or give --task {target}={MULTICLASS}"
                )
    if asked == REGRESSION or not found.numbers + found.words:
        return _regression_task(target, found, what)
    return _classification_task(target, found, asked, numeric, what)


def _infer_word_kind(found: ColumnContents) -> str:
    """What a column of words is: classes if these are few, each of several rows."""
    if len(found.names) <= 2:
        return BINARY
    few = len(found.names) <= min(_MOST_CLASSES, found.words // 3)
    numbers = len(found.names) > _FEW_CLASSES and all(map(_BEGINS_AS_NUMBER.match, found.names))
    return MULTICLASS if few and not numbers else REGRESSION


def _regression_task(target: str, found: ColumnContents, what: str) -> Task:
    if not found.numbers:
        row, cell = found.first_word or found.first_comma or (0, "")
        raise InputError(f"{what} is not numeric (row {row} is {cell!r})")
    return Task(target)


def _classification_task(target: str, found: ColumnContents, asked: str, numeric: bool, what: str) -> Task:
    """A target of classes: those of its numbers, or those of its words (numbers among them are words too)."""
    if found.first_none_word is not None and not numeric:
        row, cell = found.first_none_word
        raise InputError(
            f"{what} says {cell!r} in row {row}, among words: leave such cells empty where nothing is known, or write "
            "another word where it is a class"
        )
    names = {key: writings.most_common(1)[0][0] for key, writings in found.names.items()}
    numbers = list(dict.fromkeys(map(number_key, sorted(found.values))))
    keys = numbers if numeric else [*sorted(names), *(key for key in numbers if key not in names)]
    if len(keys) > _MOST_CLASSES:
        raise InputError(f"{what} has more than {_MOST_CLASSES} different values: too many to be classes")
    if len(keys) == 1:
        only = names.get(keys[0], keys[0])
        raise InputError(f"{what} is {only!r} in every row that has it: there is nothing to learn, leave it out")
    if numeric and len(keys) > max(_FEW_CLASSES, found.numbers / 2):
        raise InputError(
            f"{what} has {len(keys)} different numbers in {found.numbers} rows: too many to be classes; leave out "
            f"--task, or give --task {target}={REGRESSION}"
        )
    if asked == BINARY and len(keys) > 2 and not numeric and found.first_word and len(numbers) > 2:
        row, cell = found.first_word
        raise InputError(
            f"{what} has {len(numbers)} different numbers, and words such as {cell!r} in row {row}: leave such cells "
            f"empty where nothing is known, or give --task {target}={MULTICLASS}"
        )
    if asked == BINARY and len(keys) > 2:
        raise InputError(
            f"{what} has {len(keys)} different values and not two: give --task {target}={MULTICLASS}, or {REGRESSION}"
        )
    if len(keys) == 2:
        if not numeric and (keys[0] in _POSITIVE or (keys[1] in _NEGATIVE and keys[0] not in _NEGATIVE)):
            keys = keys[::-1]
        return Task(target, BINARY, tuple(names.get(key, key) for key in keys))
    return Task(target, MULTICLASS, tuple(names.get(key, key) for key in keys))


def _transformed(task: Task, found: ColumnContents, transforms: dict[str, str], name: str, of_all: bool) -> Task:
    """A task with the transform that is asked for it; one asked of all targets is for the numbers alone."""
    transform = transforms.get(task.name, "none")
    if transform == "none" or (of_all and task.kind != REGRESSION):
        return task
    if task.kind != REGRESSION:
        raise InputError(f"--transform {transform}: the target {task.name!r} is no number, but {task.kind}")
    _check_positive(found.least, task.name, name)
    return Task(task.name, task.kind, (), transform)


def check_transforms(targets: np.ndarray, tasks: Sequence[Task], name: str) -> None:
    """Raise :class:`InputError` for a label that cannot be transformed as those that were learned.

    Args:
        targets: ``float64 [R, T]``, nan where unknown.
        tasks: of the T targets.
        name: of the table, for messages.
    """
    for labels, task in zip(targets.T, tasks, strict=True):
        if task.transform == "log" and not np.isnan(labels).all():
            row = int(np.nanargmin(labels))
            _check_positive((labels[row], row + 1), task.name, name)


def _check_positive(least: tuple[float, int], target: str, name: str) -> None:
    value, row = least
    if value <= 0:
        raise InputError(
            f"{name}: the target {target!r} is {value:g} in row {row}, which has no logarithm: leave out what is not "
            "positive, or --transform"
        )
