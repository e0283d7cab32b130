"""Inference of the target column, its level and its task (regression, binary or multiclass) from its cells.

In all functions ``chunks`` hold all rows of a table, and ``name`` is its name, for messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from graphslice.chem.parse import MAX_ATOMS, MoleculeError, parse_molecule, rdkit_messages_blocked
from graphslice.config import ATOM, BOND, MOLECULE, DataConfig, quote_item, quote_setting
from graphslice.data.cells import (
    COMMA_ADVICE,
    cell_text,
    class_key,
    column_cells,
    has_comma,
    is_empty,
    list_or_none,
    number_key,
    parse_number_column,
)
from graphslice.data.columns import LabelColumns, check_unique
from graphslice.data.rows import parse_lists
from graphslice.data.tables import Rows, texts
from graphslice.errors import InputError, pluralize, quoted_list
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION, TASK_KINDS, TRANSFORMS, Task, parse_bound, parse_per_target

# Up to this ratio of cells with commas to numbers, the commas are taken for errors in single rows.
_FEW_COMMAS = 0.1


def infer_tasks(
    chunks: Iterable[Rows], targets: Sequence[str], config: DataConfig, name: str, smiles: str | None = None
) -> list[Task]:
    """Infer the task of each target: from ``config.task``, else from its values (for atoms and bonds of all lists).

    Numbers are regression; only 0 and 1, or exactly two words, are binary (the second word in alphabetical order is the
    positive class, as in scikit-learn); at most 100 words with, on average, at least three rows each are multiclass.
    Anything else is an error. Rows without a SMILES are left out, if ``smiles`` names that column.
    """
    if config.level != MOLECULE:
        chunks, smiles = [numbers_of_lists(list(chunks), targets, name)], None
    kinds = parse_per_target(config.task, targets, TASK_KINDS, "data.task")
    transforms = parse_per_target(config.transform, targets, TRANSFORMS, "data.transform")
    tasks = [
        _infer_task(target, contents, kinds.get(target), f"{name}: the target {target!r}")
        for target, contents in zip(targets, scan_columns(chunks, targets, smiles), strict=True)
    ]
    return [_with_transform(task, transforms, config.transform in TRANSFORMS) for task in tasks]


def infer_tasks_from_values(labels: np.ndarray, targets: Sequence[str], config: DataConfig, name: str) -> list[Task]:
    """Run :func:`infer_tasks` on numeric labels, ``float64 [R, T]``, nan where unknown."""
    return infer_tasks([Rows(pa.table(list(labels.T), names=list(targets)))], targets, config, name)


def _infer_task(target: str, contents: ColumnContents, kind: str | None, label: str) -> Task:
    """Return the task of a column; ``kind`` is the configured one, ``label`` names the column in messages."""
    if not contents.numbers + contents.bounds + contents.words:
        raise InputError(f"{label} is empty in every row: leave it out, or write its labels")
    row, cell = contents.firsts.get("word", (0, ""))
    if list_or_none(cell) is not None:
        raise InputError(
            f"{label} holds lists of numbers (row {row}): to train on atom-level targets give graphslice train "
            "data.level atom, on bond-level targets data.level bond"
        )
    # Where they separate thousands only large numbers have them: a model would be trained on small values only.
    others = contents.words - contents.commas
    if contents.commas > max(contents.numbers * _FEW_COMMAS, others) and kind in (None, REGRESSION):
        row, cell = contents.firsts["comma"]
        raise InputError(f"{label} has numbers with commas, such as {cell!r} in row {row}: {COMMA_ADVICE}")
    is_flag = contents.values == {0.0, 1.0} and contents.is_numeric and not contents.bounds
    if kind in (BINARY, MULTICLASS) or (kind is None and (is_flag or contents.are_classes)):
        return _classification_task(target, contents, kind or MULTICLASS, label)
    if contents.is_numeric or (kind == REGRESSION and contents.numbers):
        return Task(target)
    raise InputError(
        f"{label} is not numeric (row {row} is {cell!r}): write plain numbers, without units; or, if these are "
        f"classes, give data.task {quote_setting(target, MULTICLASS)}"
    )


def _classification_task(target: str, contents: ColumnContents, kind: str, label: str) -> Task:
    """Return a classification task with the numbers as classes, or with the words (and numbers among them)."""
    keys = {number_key(value): number_key(value) for value in sorted(contents.values)}
    if contents.numbers < contents.words + contents.bounds:
        if "none" in contents.firsts:
            row, cell = contents.firsts["none"]
            raise InputError(
                f"{label} is {cell!r} in row {row}, among words: leave cells with unknown values empty, or write "
                "another word if it is a class"
            )
        keys = dict(sorted((keys | contents.names).items()))
    names = tuple(keys.values())
    if len(names) == 1:
        raise InputError(f"{label} is {names[0]!r} in every row with a label: there is nothing to learn, leave it out")
    most = MOST_CLASSES if kind == MULTICLASS else 2
    if len(names) > most:
        raise InputError(
            f"{label} has more than {most} different values, such as {names[-1]!r}: leave cells with unknown values "
            f"empty, or give data.task {quote_setting(target, MULTICLASS if kind == BINARY else REGRESSION)}"
        )
    return Task(target, BINARY if len(names) == 2 else MULTICLASS, names)


def _with_transform(task: Task, transforms: dict[str, str], for_all: bool) -> Task:
    """Return a task with its configured transform; one configured for all targets applies to regression only."""
    transform = transforms.get(task.name, "none")
    if transform == "none" or (for_all and task.kind != REGRESSION):
        return task
    if task.kind != REGRESSION:
        raise InputError(f"data.transform {transform}: the target {task.name!r} is {task.kind}, not {REGRESSION}")
    return replace(task, transform=transform)


def infer_target(chunks: Sequence[Rows], columns: LabelColumns, config: DataConfig, name: str) -> str:
    """Infer the target column if the user names none: the only one that can be a target, or the only other column."""
    used = (columns.smiles, columns.split, columns.weights, *columns.descriptors, *columns.identifiers)
    names = chunks[0].table.column_names
    others = [column for column in names if column not in used and column.strip().lower() != "split"]
    if others.count("") > 1:  # spreadsheets write additional commas at the ends of lines
        others = [column for column in others if column]
    check_unique(others, others, name)
    if config.level != MOLECULE:
        possible = [column for column in others if any(list_cells(chunk, column) for chunk in chunks)]
    else:
        contents = dict(zip(others, scan_columns(chunks, others), strict=True))
        possible = [column for column in others if contents[column].can_be_target]
    found = possible if len(possible) == 1 else others
    if len(found) == 1:
        return found[0]  # also a column of other words: infer_tasks says what is wrong with it
    if not others:
        raise InputError(f"{name} has no column that could be predicted, only {quoted_list(filter(None, used))}")
    raise InputError(
        f"{name}: which columns are the targets? Name them with data.targets; the columns are "
        f"{quoted_list(others, quote=quote_item)}"
    )


#: Maximal number of classes.
MOST_CLASSES = 100


@dataclass
class ColumnContents:
    """Summary of the cells ``(row from 1, text)`` of a target column, accumulated chunk by chunk."""

    numbers: int = 0  # cells with numbers
    bounds: int = 0  # cells with bounds of a number, such as >5
    words: int = 0  # other cells that are not empty
    commas: int = 0  # of these, numbers with commas
    values: set[float] = field(default_factory=set)  # different finite ones, until too many for classes
    names: dict[str, str] = field(default_factory=dict)  # bounds and words by class_key, until too many
    firsts: dict[str, tuple[int, str]] = field(default_factory=dict)  # first cell of a kind: word, comma, none

    def add(self, chunk: Rows, column: str, first_row: int, ignored: np.ndarray) -> None:
        """Add the cells of a chunk that begins with a row, counted from 0; those of ``ignored`` rows count as empty."""
        numbers, empty = parse_number_column(chunk, column)
        numbers, empty = np.where(ignored, np.nan, numbers), empty | ignored
        is_number = ~np.isnan(numbers)
        self.numbers += int(is_number.sum())
        if len(self.values) <= MOST_CLASSES:
            self.values |= set(np.unique(numbers[np.isfinite(numbers)])[: MOST_CLASSES + 1].tolist())
        for row in np.flatnonzero(~empty & ~is_number).tolist():
            cell = cell_text(chunk.table.column(column), row)
            if parse_bound(cell) is not None:
                self.bounds += 1
            else:
                self.words += 1
                self.firsts.setdefault("word", (first_row + row + 1, cell))
                if has_comma(cell):
                    self.commas += 1
                    self.firsts.setdefault("comma", (first_row + row + 1, cell))
            if len(self.names) <= MOST_CLASSES:
                self.names.setdefault(class_key(cell), cell.strip())
        if self.numbers <= self.words and empty.any():
            for row, cell in enumerate(texts(chunk.table.column(column))):
                if class_key(cell) == "none":
                    self.firsts.setdefault("none", (first_row + row + 1, cell))

    @property
    def is_numeric(self) -> bool:
        """True for a column of numbers and bounds, in which single words are errors."""
        return self.numbers + self.bounds >= self.words

    @property
    def are_classes(self) -> bool:
        """True for a column of two words, or of at most 100 with three rows each on average."""
        classes, rows = len(self.names) + len(self.values), self.words + self.bounds + self.numbers
        return not self.is_numeric and classes <= max(2, min(MOST_CLASSES, rows // 3))

    @property
    def can_be_target(self) -> bool:
        """True for a column of numbers, or of classes that are repeated."""
        numbers = self.numbers + self.bounds + self.commas
        return numbers > self.words - self.commas or (self.are_classes and 1 < len(self.names) < self.words)


def scan_columns(chunks: Iterable[Rows], columns: Sequence[str], smiles: str | None = None) -> list[ColumnContents]:
    """Summarise some columns of a table, without the rows of no SMILES, such as a line of units or of sums."""
    contents = [ColumnContents() for _ in columns]
    first_row = 0
    for chunk in chunks:
        ignored = np.zeros(len(chunk), bool)
        if smiles is not None:
            ignored = np.array([is_empty(cell) for cell in texts(chunk.table.column(smiles))], bool)
        if ignored.all():  # the empty SMILES are reported, rather than an empty target
            ignored[:] = False
        for column_contents, column in zip(contents, columns, strict=True):
            column_contents.add(chunk, column, first_row, ignored)
        first_row += len(chunk)
    return contents


# Number of rows from which the level (atom or bond) of a column of lists is inferred.
_SAMPLE_ROWS = 50


@dataclass
class ListLengths:
    """Lengths of the lists of a column and sizes of their molecules, from which the level is inferred."""

    sizes: list[tuple[int, int, int]] = field(default_factory=list)  # list length, atoms and bonds of each sample

    def look(self, smiles: Iterable[object], lists: Iterable[np.ndarray]) -> None:
        """Add lists and their SMILES to the sample, unless it is large enough to infer the level."""
        with rdkit_messages_blocked():
            for text, numbers in zip(smiles, lists, strict=True):
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
        """Return the level of the lists of a target; raise :class:`InputError` if it is not clear."""
        if len(levels := self.levels) == 1:
            return levels[0]
        sizes = [f"{n} for {pluralize(atoms, 'atom')} and {pluralize(bonds, 'bond')}" for n, atoms, bonds in self.sizes]
        raise InputError(
            f"the lengths of the lists of {target!r} do not say whether it is a target of atoms or of bonds: the first "
            f"is {sizes[0] if sizes else 'in a row without a valid SMILES'}"
        )


def list_cells(chunk: Rows, column: str) -> dict[int, np.ndarray]:
    """Return the cells of a column that are lists of numbers, by row."""
    if pa.types.is_primitive(chunk.table.schema.field(column).type):
        return {}
    cells = [cell if not isinstance(cell, str) or "[" in cell else None for cell in column_cells(chunk, column)]
    lists = {row: list_or_none(cell) for row, cell in enumerate(cells)}
    return {row: numbers for row, numbers in lists.items() if numbers is not None}


def numbers_of_lists(chunks: Sequence[Rows], targets: Sequence[str], name: str) -> Rows:
    """Return the numbers of all lists, one per cell; raise :class:`InputError` if there are none."""
    rows = [parse_lists(chunk, targets)[0].values for chunk in chunks]
    values = np.concatenate([np.empty((0, len(targets))), *rows])
    if not len(values):
        raise InputError(f"{name}: no row of {', '.join(targets)} has a list of numbers, such as [0.1, -0.2, 0.1]")
    return Rows(pa.table(list(values.T), names=list(targets)))
