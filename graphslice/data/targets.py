"""Inference of the target column, its level and its task (regression, binary or multiclass) from its cells.

The rule for the task is :attr:`ColumnContents.kind`. In all functions ``chunks`` are all rows of a table, and ``name``
is its name, for messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from graphslice.chem.molecule import smiles_to_graph
from graphslice.chem.parse import MoleculeError
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
from graphslice.data.columns import TableColumns, check_unique
from graphslice.data.rows import parse_lists
from graphslice.data.tables import Rows, texts
from graphslice.errors import InputError, pluralize, quoted_list
from graphslice.tasks import (
    BINARY,
    MULTICLASS,
    REGRESSION,
    TASK_KINDS,
    Task,
    parse_bound,
    parse_per_target,
    with_transforms,
)

#: Maximal number of classes.
MOST_CLASSES = 100
_NEGATIONS = ("in", "im", "un", "non", "non-", "non ", "not ")
# Number of rows from which the level (atom or bond) of a column of lists is inferred.
_SAMPLE_ROWS = 50


@dataclass
class ColumnContents:
    """Summary of the cells of a target column that are not empty, accumulated chunk by chunk."""

    numbers: int = 0  # cells with numbers
    bounds: int = 0  # cells with bounds of a number, such as >5
    words: int = 0  # other cells
    values: set[float] = field(default_factory=set)  # different finite numbers, until too many for classes
    names: dict[str, str] = field(default_factory=dict)  # bounds and words by class_key, until too many
    first_word: tuple[int, str] = (0, "")  # row, from 1, and cell
    unclear: tuple[int, str] | None = None  # first list of numbers, or number with a comma

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
            if self.unclear is None and (has_comma(cell) or ("[" in cell and list_or_none(cell) is not None)):
                self.unclear = first_row + row + 1, cell
            if parse_bound(cell) is not None:
                self.bounds += 1
            else:
                self.first_word = self.first_word if self.words else (first_row + row + 1, cell)
                self.words += 1
            if len(self.names) <= MOST_CLASSES:
                self.names.setdefault(class_key(cell), cell.strip())

    @property
    def kind(self) -> str | None:
        """The kind of task of the column, None if it has none.

        A column with at least as many numbers (or bounds) as words is binary if its numbers are 0 and 1, else
        regression: words are invalid labels. A column of words is of classes if these are two, of which one is
        repeated, or at most 100 with three rows each on average. A column with a list of numbers, or with a number that
        has a comma, has no task.
        """
        if self.unclear is not None:
            return None
        if self.numbers + self.bounds >= max(1, self.words):
            return BINARY if self.values == {0.0, 1.0} and not self.bounds else REGRESSION
        cells, classes = self.numbers + self.bounds + self.words, len(self.names) + len(self.values)
        is_repeated = classes < cells and (classes == 2 or 3 * classes <= cells)
        return MULTICLASS if 1 < classes <= MOST_CLASSES and is_repeated else None

    @property
    def classes(self) -> tuple[str, ...]:
        """The different numbers, ascending, of a column of numbers; else also the words, in alphabetical order, but the
        negation of a word before it: inactive before active."""
        keys = {number_key(value): number_key(value) for value in sorted(self.values)}
        if self.numbers < self.bounds + self.words:
            keys = dict(sorted((keys | self.names).items()))
            if len(keys) == 2 and max(keys) in {prefix + min(keys) for prefix in _NEGATIONS}:
                keys = dict(reversed(keys.items()))
        return tuple(keys.values())


def scan_columns(chunks: Iterable[Rows], columns: Sequence[str], smiles: str | None = None) -> list[ColumnContents]:
    """Summarise some columns of a table, without the rows of no SMILES, such as a line of units or of sums."""
    contents = [ColumnContents() for _ in columns]
    first_row = 0
    for chunk in chunks:
        ignored = np.zeros(len(chunk), bool)
        if smiles is not None:
            ignored = np.array([is_empty(cell) for cell in texts(chunk.table.column(smiles))], bool)
        for column_contents, column in zip(contents, columns, strict=True):
            column_contents.add(chunk, column, first_row, ignored)
        first_row += len(chunk)
    return contents


def infer_tasks(
    chunks: Iterable[Rows], targets: Sequence[str], config: DataConfig, name: str, smiles: str | None = None
) -> list[Task]:
    """Infer the task of each target: from ``config.task``, else from its values (for atoms and bonds of all lists).
    Rows without a SMILES are left out, if ``smiles`` names that column."""
    if config.level != MOLECULE:
        chunks, smiles = [numbers_of_lists(list(chunks), targets, name)], None
    kinds = parse_per_target(config.task, targets, TASK_KINDS, "data.task")
    tasks = [
        _make_task(target, contents, kinds.get(target, contents.kind), f"{name}: the target {target!r}")
        for target, contents in zip(targets, scan_columns(chunks, targets, smiles), strict=True)
    ]
    return with_transforms(tasks, config.transform)


def _make_task(target: str, contents: ColumnContents, kind: str | None, label: str) -> Task:
    """Return the task of a column of a kind; ``label`` names the column in messages."""
    classes, as_classes = contents.classes, quote_setting(target, MULTICLASS)
    if kind == REGRESSION and contents.unclear is None and contents.numbers + contents.bounds:
        return Task(target)
    if kind != REGRESSION and len(classes) < 2 and contents.unclear is None:
        found = repr(classes[0]) if classes else "empty"
        raise InputError(f"{label} is {found} in every row with a SMILES: there is nothing to learn, leave it out")
    if kind in (BINARY, MULTICLASS):
        most = MOST_CLASSES if kind == MULTICLASS else 2
        if len(classes) > most:
            raise InputError(
                f"{label} has more than {most} different values, such as {classes[-1]!r}: leave cells with unknown "
                f"values empty, or give data.task {as_classes if kind == BINARY else quote_setting(target, REGRESSION)}"
            )
        return Task(target, BINARY if len(classes) == 2 else MULTICLASS, classes)
    row, cell = contents.unclear or contents.first_word
    if contents.unclear is None:
        advice = f"write plain numbers, without units; or, if these are classes, give data.task {as_classes}"
    elif has_comma(cell):
        advice = COMMA_ADVICE
    else:
        advice = f"for targets of atoms give data.level {ATOM}, of bonds data.level {BOND}"
    raise InputError(f"{label} is not numeric (row {row} is {cell!r}): {advice}")


def infer_target(chunks: Sequence[Rows], columns: TableColumns, config: DataConfig, name: str) -> str:
    """Infer the target column if the user names none: the only other column, or the only one of these with a task."""
    used = (columns.smiles, columns.split, columns.weights, *columns.features, *columns.identifiers)
    names = chunks[0].table.column_names
    others = [column for column in names if column not in used and column.strip().lower() != "split"]
    if others.count("") > 1:  # spreadsheets write additional commas at the ends of lines
        others = [column for column in others if column]
    check_unique(others, others, name)
    if config.level != MOLECULE:
        possible = [column for column in others if any(list_cells(chunk, column) for chunk in chunks)]
    else:
        contents = scan_columns(chunks, others)
        possible = [column for column, found in zip(others, contents, strict=True) if found.kind is not None]
    found = possible if len(possible) == 1 else others
    if len(found) == 1:
        return found[0]  # also a column of other words: infer_tasks says what is wrong with it
    raise InputError(
        f"{name}: which columns are the targets? Name them with data.targets; the columns are "
        f"{quoted_list(others, quote=quote_item)}, next to {quoted_list(filter(None, used))}"
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


def infer_level(target: str, smiles: Sequence[object], lists: Iterable[np.ndarray]) -> str:
    """Return the level, atom or bond, that the lengths of most of the first lists of a target fit, given their SMILES;
    raise :class:`InputError` if it is not clear."""
    fits, first = {ATOM: 0, BOND: 0}, "is in a row without a valid SMILES"
    for row, (text, numbers) in enumerate(zip(smiles, lists, strict=True)):
        if row >= _SAMPLE_ROWS and fits[ATOM] != fits[BOND]:
            break
        with suppress(MoleculeError):
            graph = smiles_to_graph(str(text))
            atoms, bonds = graph.num_atoms, graph.num_bonds
            if row == 0:
                first = f"is {len(numbers)} for {pluralize(atoms, 'atom')} and {pluralize(bonds, 'bond')}"
            fits[ATOM] += len(numbers) == atoms
            fits[BOND] += len(numbers) == bonds
    if fits[ATOM] == fits[BOND]:
        raise InputError(
            f"the lengths of the lists of {target!r} do not say whether it is a target of atoms or of bonds: the first "
            f"{first}"
        )
    return ATOM if fits[ATOM] > fits[BOND] else BOND
