"""Inference of the target column, its level and its task (regression, binary or multiclass) from its cells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rdkit import rdBase

from graphslice.censored import parse_bound
from graphslice.chem.parse import MAX_ATOMS, MoleculeError, parse_molecule
from graphslice.config import ATOM, BOND, MOLECULE, DataConfig, quote_item, quote_setting
from graphslice.data.class_words import merge_class_words
from graphslice.data.columns import LabelColumns, check_unique, quoted_list
from graphslice.data.decimals import decimal_advice, decimal_readings, has_thousands_separators, number_advice
from graphslice.data.labels import Labels, pluralize
from graphslice.data.parse_cells import (
    NO_WORDS,
    YES_WORDS,
    cell_text,
    class_key,
    column_cells,
    holds_lists,
    list_or_none,
    number_key,
    parse_number_column,
)
from graphslice.data.parse_rows import parse_lists
from graphslice.data.tables import decode_text, file_columns, texts
from graphslice.errors import InputError
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION, TASK_KINDS, TRANSFORMS, Task, parse_per_target

# Maximal number of classes.
_MOST_CLASSES = 100
# Up to this many different numbers may be classes, regardless of the number of rows of each.
_FEW_CLASSES = 10
# Up to this ratio of cells with commas to numbers, the commas are taken for errors in single rows.
_FEW_COMMAS = 0.1
# Number of rows from which the level (atom or bond) of a column of lists is inferred.
_SAMPLE_ROWS = 50
# Columns with many different words such as "12 %", ">5" and "3-4" hold numbers with units or signs, not classes.
_BEGINS_AS_NUMBER = re.compile(r"[<>=~$]*\s*[+-]?\.?[0-9]")
# Words that name the positive or the negative class.
_POSITIVE = YES_WORDS | {"+", "toxic", "hit", "pass", "high", "binder"}
_NEGATIVE = NO_WORDS | {"-", "nontoxic", "non-toxic", "fail", "low"}


@dataclass
class ColumnContents:
    """Summary of the cells of a target column, accumulated chunk by chunk.

    Cells are given as ``(row, text)`` with rows counted from 1.

    Attributes:
        numbers: number of cells with finite numbers.
        words: number of other cells; empty cells, infinities, bounds and numbers with commas are not counted.
        bounds: number of cells that are bounds of a number, such as ``>5``.
        commas: number of cells that are numbers with decimal commas or thousands separators.
        values: the different numbers; not extended beyond the maximal number of classes.
        names: the ways in which every class is written, with counts, by :func:`class_key`; not extended beyond the
            maximal number of classes.
        first_word: the first cell that is not empty and has no finite number and no comma.
        first_comma: the first of these, unlike 1,234 not ambiguous if possible.
        first_thousands: the first number with thousands separators.
        first_bound: the first bound.
        first_none_word: the first cell ``none`` in a column of words.
        dashes: number of cells ``-`` in a column of words, which are classes if there are cells ``+``, else empty.
        smallest: the smallest number or upper bound, as ``(number, row)``.
    """

    numbers: int = 0
    words: int = 0
    bounds: int = 0
    commas: int = 0
    values: set[float] = field(default_factory=set)
    names: dict[str, Counter[str]] = field(default_factory=dict)
    first_word: tuple[int, str] | None = None
    first_comma: tuple[int, str] | None = None
    first_thousands: tuple[int, str] | None = None
    first_bound: tuple[int, str] | None = None
    first_none_word: tuple[int, str] | None = None
    dashes: int = 0
    smallest: tuple[float, int] = (np.inf, 0)

    def add(self, chunk: pa.Table, column: str, first_row: int) -> None:
        """Add the cells of a chunk.

        Args:
            chunk: rows of the table.
            column: name of the column.
            first_row: row of the table with which the chunk begins, counted from 0.
        """
        numbers, empty = parse_number_column(chunk, column)
        finite = np.isfinite(numbers)
        self.numbers += int(finite.sum())
        if finite.any():
            row = int(np.where(finite, numbers, np.inf).argmin())
            self.smallest = min(self.smallest, (float(numbers[row]), first_row + row + 1))
        if len(self.values) <= _MOST_CLASSES:
            unique_numbers = np.unique(numbers[finite])[: _MOST_CLASSES + 1].tolist()
            self.values |= set(unique_numbers)
        for row in np.flatnonzero(~empty & ~finite).tolist():
            cell = cell_text(chunk.column(column), row)
            if (bound := parse_bound(cell)) is not None:
                self.bounds += 1
                self.first_bound = self.first_bound or (first_row + row + 1, cell)
                self.smallest = min(self.smallest, (bound[1], first_row + row + 1))
                self._add_name(cell)
                continue
            if readings := decimal_readings(cell):
                self.commas += 1
                if self.first_comma is None or (len(readings) == 1 < len(decimal_readings(self.first_comma[1]))):
                    self.first_comma = (first_row + row + 1, cell)
                if self.first_thousands is None and has_thousands_separators(cell):
                    self.first_thousands = (first_row + row + 1, cell)
                continue
            self.first_word = self.first_word or (first_row + row + 1, cell)
            if np.isinf(numbers[row]):
                continue
            self.words += 1
            self._add_name(cell)
        if self.numbers <= self.words and empty.any():
            cells = texts(chunk.column(column), decode_text)
            keys = [class_key(cell) for cell in cells]
            if self.first_none_word is None and "none" in keys:
                row = keys.index("none")
                self.first_none_word = (first_row + row + 1, cells[row])
            self.dashes += keys.count("-")

    def _add_name(self, cell: str) -> None:
        if len(self.names) <= _MOST_CLASSES:
            self.names.setdefault(class_key(cell), Counter())[cell.strip()] += 1

    @property
    def measurements(self) -> int:
        """Number of cells with a number in any notation, or a bound."""
        return self.numbers + self.bounds + self.commas

    @property
    def looks_like_classes(self) -> bool:
        """True if the column holds few different words, some of them repeated."""
        return 1 < len(self.names) < self.words and _infer_word_kind(self) != REGRESSION

    @property
    def looks_like_ids(self) -> bool:
        """True if the column holds integers, none of them repeated as far as they were counted."""
        counted = min(self.numbers, _MOST_CLASSES + 1)
        return len(self.values) >= counted > 0 and all(value.is_integer() for value in self.values)


def scan_columns(chunks: Iterable[pa.Table], columns: Sequence[str]) -> list[ColumnContents]:
    """Summarise the cells of some columns of a table.

    Args:
        chunks: consecutive rows of the table, from the first row.
        columns: names of the columns.
    """
    contents = [ColumnContents() for _ in columns]
    first_row = 0
    for chunk in chunks:
        for column_contents, column in zip(contents, columns, strict=True):
            column_contents.add(chunk, column, first_row)
        first_row += len(chunk)
    for column_contents in contents:
        if column_contents.dashes and "+" in column_contents.names:
            column_contents.words += column_contents.dashes
            column_contents.names["-"] = Counter({"-": column_contents.dashes})
    return contents


def infer_tasks(chunks: Iterable[pa.Table], targets: Sequence[str], config: DataConfig, name: str) -> list[Task]:
    """Determine the task of each target: from ``config.task``, else from its values.

    A column of 0 and 1, or of two different words, is binary, also if yes and no are written by different words. A
    column of more words is multiclass if there are at most 100 different words and, on average, at least 3 rows of
    each. Other numbers, including integers, are regression.

    Of atom- and bond-level targets the values are the numbers of all lists.

    Args:
        chunks: all rows of the table.
        targets: names of the target columns.
        config: data settings of the user.
        name: name of the table, for messages.

    Raises:
        InputError: if a column cannot be trained on: it is empty, has a single class, holds neither numbers nor
            classes, contradicts ``config.task``, or has a value without a logarithm where ``log`` is configured.
    """
    if config.level != MOLECULE:
        chunks = [_numbers_of_lists(list(chunks), targets, name)]
    kinds = parse_per_target(config.task, targets, TASK_KINDS, "--task")
    transforms = parse_per_target(config.transform, targets, TRANSFORMS, "--transform")
    contents = scan_columns(chunks, targets)
    tasks = []
    for target, column_contents in zip(targets, contents, strict=True):
        task = _infer_task(target, column_contents, kinds.get(target), f"{name}: the target {target!r}")
        tasks.append(_with_transform(task, column_contents, transforms, name, config.transform in TRANSFORMS))
    if config.transform in TRANSFORMS[1:] and not any(task.kind == REGRESSION for task in tasks):
        raise InputError(f"--transform {config.transform}: {name} has no regression target")
    return tasks


def _numbers_of_lists(chunks: Sequence[pa.Table], targets: Sequence[str], name: str) -> pa.Table:
    """Return the numbers of all valid lists as a table with one number per cell; raise InputError without any."""
    rows = [parse_lists(chunk, targets)[0].values for chunk in chunks]
    values = np.concatenate([np.empty((0, len(targets))), *rows])
    if not len(values):
        raise InputError(f"{name}: no row of {', '.join(targets)} has a list of numbers, such as [0.1, -0.2, 0.1]")
    return pa.table(list(values.T), names=list(targets))


def infer_tasks_from_values(labels: np.ndarray, targets: Sequence[str], config: DataConfig, name: str) -> list[Task]:
    """Run :func:`infer_tasks` on numeric labels, ``float64 [R, T]``, nan where unknown."""
    return infer_tasks([pa.table(list(labels.T), names=list(targets))], targets, config, name)


def _infer_task(target: str, contents: ColumnContents, kind: str | None, label: str) -> Task:
    """Return the task of a column; ``kind`` is the configured one, ``label`` names the column in messages."""
    if not contents.measurements + contents.words and contents.first_word is None:
        raise InputError(f"{label} is empty in every row")
    if contents.first_bound is not None and not contents.numbers + contents.words and kind in (None, REGRESSION):
        row, cell = contents.first_bound
        raise InputError(
            f"{label} has bounds alone, such as {cell!r} in row {row}: training needs numbers too; to learn the bounds "
            f"as classes give --task {quote_setting(target, BINARY)}"
        )
    if contents.first_word is not None and list_or_none(contents.first_word[1]) is not None:
        raise InputError(
            f"{label} holds lists (row {contents.first_word[0]}): to train on atom-level targets give graphslice train "
            "--level atom, on bond-level targets --level bond"
        )
    # Single words among numbers are errors, reported in rejected.csv. Where classes are configured, bounds are words.
    numeric = contents.numbers >= contents.words + (contents.bounds if kind in (BINARY, MULTICLASS) else 0)
    if not numeric and kind in (None, BINARY):
        names = merge_class_words(contents.names, map(number_key, contents.values), label)
        if names is not None:
            contents = replace(contents, names=names, values=set())
    # Only large numbers have thousands separators: without their rows a model would be trained on small values only.
    few = contents.numbers * (_FEW_COMMAS if contents.first_thousands else 1)
    if contents.commas > max(few, contents.words) and kind in (None, REGRESSION):
        problem = "thousands separators" if contents.first_thousands else "decimal commas"
        row, cell = contents.first_thousands or contents.first_comma or (0, "")
        raise InputError(f"{label} has {problem}, such as {cell!r} in row {row}: {decimal_advice(cell)}")
    if kind is None:
        kind = BINARY if contents.values == {0.0, 1.0} and numeric and not contents.bounds else REGRESSION
        if not numeric:
            kind = _infer_word_kind(contents)
            if kind == REGRESSION and not contents.numbers:
                row, cell = contents.first_word or (0, "")
                raise InputError(
                    f"{label} is not numeric (row {row} is {cell!r}), and has too many different words to be classes: "
                    f"write numbers without units and signs, or give --task {quote_setting(target, MULTICLASS)}"
                )
    if kind == REGRESSION or not contents.numbers + contents.words + contents.bounds:
        return _regression_task(target, contents, label)
    return _classification_task(target, contents, kind, numeric, label)


def _infer_word_kind(contents: ColumnContents) -> str:
    """Return the kind of a column of words: classes if there are few, each with several rows; else regression."""
    if len(contents.names) <= 2:
        return BINARY
    few = len(contents.names) <= min(_MOST_CLASSES, contents.words // 3)
    numbers = len(contents.names) > _FEW_CLASSES and all(map(_BEGINS_AS_NUMBER.match, contents.names))
    return MULTICLASS if few and not numbers else REGRESSION


def _regression_task(target: str, contents: ColumnContents, label: str) -> Task:
    if not contents.numbers:
        row, cell = contents.first_word or contents.first_comma or (0, "")
        advice = number_advice(cell)
        raise InputError(f"{label} is not numeric (row {row} is {cell!r}{advice and f'; {advice}'})")
    return Task(target)


def _classification_task(target: str, contents: ColumnContents, kind: str, numeric: bool, label: str) -> Task:
    """Return a classification task with the numbers as classes, or with the words (and numbers among them)."""
    if contents.first_none_word is not None and not numeric:
        row, cell = contents.first_none_word
        raise InputError(
            f"{label} is {cell!r} in row {row}, among words: leave cells with unknown values empty, or write another "
            "word if it is a class"
        )
    names = {key: counts.most_common(1)[0][0] for key, counts in contents.names.items()}
    numbers = list(dict.fromkeys(map(number_key, sorted(contents.values))))
    keys = numbers if numeric else [*sorted(names), *(key for key in numbers if key not in names)]
    if len(keys) > _MOST_CLASSES:
        raise InputError(f"{label} has more than {_MOST_CLASSES} different values: too many to be classes")
    if len(keys) == 1:
        only = names.get(keys[0], keys[0])
        hint = ", or write a word in place of '-' if that is a class" if contents.dashes else ""
        raise InputError(
            f"{label} is {only!r} in every row with a label: there is nothing to learn, leave it out{hint}"
        )
    if numeric and len(keys) > max(_FEW_CLASSES, contents.numbers / 2):
        raise InputError(
            f"{label} has {len(keys)} different numbers in {contents.numbers} rows: too many to be classes; leave out "
            f"--task, or give --task {quote_setting(target, REGRESSION)}"
        )
    if kind == BINARY and len(keys) > 2 and not numeric and contents.first_word and len(numbers) > 2:
        row, cell = contents.first_word
        raise InputError(
            f"{label} has {len(numbers)} different numbers, and words such as {cell!r} in row {row}: leave cells with "
            f"unknown values empty, or give --task {quote_setting(target, MULTICLASS)}"
        )
    if kind == BINARY and len(keys) > 2:
        raise InputError(
            f"{label} has {len(keys)} different values instead of two: give --task "
            f"{quote_setting(target, MULTICLASS)}, or {REGRESSION}"
        )
    if len(keys) == 2:
        if not numeric and (keys[0] in _POSITIVE or (keys[1] in _NEGATIVE and keys[0] not in _NEGATIVE)):
            keys = keys[::-1]
        return Task(target, BINARY, tuple(names.get(key, key) for key in keys))
    return Task(target, MULTICLASS, tuple(names.get(key, key) for key in keys))


def _with_transform(task: Task, contents: ColumnContents, transforms: dict[str, str], name: str, for_all: bool) -> Task:
    """Return a task with its configured transform; one configured for all targets applies to regression only."""
    transform = transforms.get(task.name, "none")
    if transform == "none" or (for_all and task.kind != REGRESSION):
        return task
    if task.kind != REGRESSION:
        raise InputError(f"--transform {transform}: the target {task.name!r} is {task.kind}, not {REGRESSION}")
    if transform == "log":
        _check_positive(contents.smallest, task.name, name)
    return replace(task, transform=transform)


def check_transforms(labels: Labels, tasks: Sequence[Task], name: str) -> None:
    """Raise :class:`InputError` for a label that cannot be transformed like those of the training set.

    Args:
        labels: labels of R rows.
        tasks: tasks of the T targets.
        name: name of the table, for messages.
    """
    largest = np.fmin(labels.means(), labels.bounds[..., 1] if labels.bounds is not None else np.inf)
    for t, task in enumerate(tasks):
        if task.transform == "log" and len(largest):
            row = int(largest[:, t].argmin())
            _check_positive((largest[row, t], row + 1), task.name, name)


def _check_positive(smallest: tuple[float, int], target: str, name: str) -> None:
    value, row = smallest
    if value < 0:
        raise InputError(
            f"{name}: the target {target!r} is {value:g} in row {row}, which has no logarithm: if it is a logarithm "
            "already, leave out --transform; otherwise leave out negative values"
        )
    if value == 0:
        raise InputError(
            f"{name}: the target {target!r} is {value:g} in row {row}, which has no logarithm: leave out zeros, or "
            "leave out --transform"
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
    used = (columns.smiles, columns.split, columns.weights, *columns.auxiliary, *columns.descriptors)
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
        numeric = [name for name in others if contents[name].measurements > contents[name].words]
        classes = [column for column in others if column not in numeric and contents[column].looks_like_classes]
        if len(numeric) == 1 and not (classes and contents[numeric[0]].looks_like_ids):
            return numeric[0], classes
        if len(others) == 1:
            return others[0], []  # a column of words: classes, or infer_tasks reports what is wrong with it
    if not others:
        raise InputError(f"{name} has no column that could be predicted, only {quoted_list(filter(None, used))}")
    raise InputError(
        f"{name}: which columns are the targets? Name them with --targets, or as targets in Python; the columns are "
        f"{quoted_list(others, quote=quote_item)}"
    )


@dataclass
class ListLengths:
    """Lengths of the lists of a column and sizes of their molecules, from which the level is inferred.

    Attributes:
        sizes: for each sampled list, its length and the numbers of atoms and bonds of its molecule.
        lists: true if there was any list, even with an invalid SMILES.
    """

    sizes: list[tuple[int, int, int]] = field(default_factory=list)
    lists: bool = False

    def look(self, smiles: Iterable[object], lists: Iterable[np.ndarray]) -> None:
        """Add lists and their SMILES to the sample, unless it is large enough to infer the level."""
        with rdBase.BlockLogs():
            for text, numbers in zip(smiles, lists, strict=True):
                self.lists = True
                if len(self.sizes) >= _SAMPLE_ROWS and len(self.levels) == 1:
                    return
                with suppress(MoleculeError):
                    mol = parse_molecule(str(text), MAX_ATOMS)
                    self.sizes.append((len(numbers), mol.GetNumAtoms(), mol.GetNumBonds()))

    @property
    def levels(self) -> list[str]:
        """Levels that fit most of the lists (single lists may be wrong): atom, bond, both or neither."""
        fits = {level: sum(n[0] == n[column] for n in self.sizes) for level, column in ((ATOM, 1), (BOND, 2))}
        return [level for level, count in fits.items() if count and count == max(fits.values())]

    def level(self, target: str) -> str:
        """Return the level of the lists.

        Args:
            target: name of the column, for messages.

        Raises:
            InputError: if the level is ambiguous or unknown.
        """
        if len(levels := self.levels) == 1:
            return levels[0]
        if not self.sizes:
            raise InputError(f"the lists of {target!r} are in rows without a valid SMILES")
        subject = f"the lists of {target!r} ({self.first}) "
        if levels:
            raise InputError(f"{subject}fit the numbers of atoms and of bonds equally well: the level is ambiguous")
        raise InputError(f"{subject}fit neither the numbers of atoms of their molecules nor those of bonds")

    @property
    def first(self) -> str:
        """Description of the first list."""
        if not self.sizes:
            return "in rows without a valid SMILES"
        numbers, atoms, bonds = self.sizes[0]
        return f"the first has {numbers}, its molecule {pluralize(atoms, 'atom')} and {pluralize(bonds, 'bond')}"


def reject_lists(chunks: Sequence[pa.Table], smiles: str, targets: Sequence[str], name: str) -> None:
    """Raise :class:`InputError` if a molecule-level target holds lists; the message names their level.

    Args:
        chunks: all rows of the table.
        smiles: name of the SMILES column.
        targets: names of the target columns.
        name: name of the table, for messages.
    """
    for target in targets:
        lengths = ListLengths()
        for chunk in chunks:
            lists = list_cells(chunk, target)
            lengths.look(column_cells(chunk, smiles, lists), lists.values())
            if lengths.lists:
                break
        if lengths.lists:
            options = " or ".join(f"--level {level}" for level in lengths.levels or (ATOM, BOND))
            raise InputError(f"{name}: the target {target!r} holds lists of numbers ({lengths.first}): give {options}")


def list_cells(chunk: pa.Table, column: str) -> dict[int, np.ndarray]:
    """Return the lists of numbers in a column, by row of the chunk."""
    cells = chunk.column(column)
    kind = cells.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return {}
    if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        rows = np.flatnonzero(pc.match_substring(cells, "[").fill_null(False).to_numpy()).tolist()
    else:
        rows = np.flatnonzero(cells.is_valid().to_numpy()).tolist()
    rows_and_cells = zip(rows, column_cells(chunk, column, rows), strict=True)
    lists = {row: list_or_none(cell) for row, cell in rows_and_cells}
    return {row: numbers for row, numbers in lists.items() if numbers is not None}
