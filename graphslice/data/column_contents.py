"""Summary of the cells of a column, from which its task is inferred."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from graphslice.censored import parse_bound
from graphslice.data.columns import MAX_MAGNITUDE
from graphslice.data.decimals import has_comma
from graphslice.data.parse_cells import cell_text, class_key, is_empty, parse_number_column
from graphslice.data.tables import texts
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION

#: Maximal number of classes.
MOST_CLASSES = 100
#: Up to this many different numbers may be classes, regardless of the number of rows of each.
FEW_CLASSES = 10
# Columns with many different words such as "12 %", ">5" and "3-4" hold numbers with units or signs, not classes.
_BEGINS_AS_NUMBER = re.compile(r"[<>=~$]*\s*[+-]?\.?[0-9]")


@dataclass
class ColumnContents:
    """Summary of the cells of a target column, accumulated chunk by chunk.

    Cells are given as ``(row, text)`` with rows counted from 1.

    Attributes:
        numbers: number of cells with finite numbers.
        words: number of other cells; empty cells, infinities, bounds and numbers with commas are not counted.
        bounds: number of cells that are bounds of a number, such as ``>5``.
        commas: number of cells that are numbers with commas.
        values: the different numbers; not extended beyond the maximal number of classes.
        names: the ways in which every class is written, with counts, by :func:`class_key`; not extended beyond the
            maximal number of classes.
        firsts: the first cell of a kind: ``word`` (not empty, without a finite number and without a comma), ``comma``,
            ``bound``, and ``none`` (that word in a column of words).
        dashes: number of cells ``-`` in a column of words, which are classes if there are cells ``+``, else empty.
        smallest: the smallest number or upper bound, as ``(number, row)``.
    """

    numbers: int = 0
    words: int = 0
    bounds: int = 0
    commas: int = 0
    values: set[float] = field(default_factory=set)
    names: dict[str, Counter[str]] = field(default_factory=dict)
    firsts: dict[str, tuple[int, str]] = field(default_factory=dict)
    dashes: int = 0
    smallest: tuple[float, int] = (np.inf, 0)

    def add(self, chunk: pa.Table, column: str, first_row: int, ignored: np.ndarray | None = None) -> None:
        """Add the cells of a chunk.

        Args:
            chunk: rows of the table.
            column: name of the column.
            first_row: row of the table with which the chunk begins, counted from 0.
            ignored: ``bool [R]``, true for rows whose cells count as empty; None for none.
        """
        numbers, empty = parse_number_column(chunk, column)
        if ignored is not None:
            numbers, empty = np.where(ignored, np.nan, numbers), empty | ignored
        finite = np.isfinite(numbers)
        self.numbers += int(finite.sum())
        labels = finite & (np.abs(numbers) <= MAX_MAGNITUDE)
        if labels.any():
            row = int(np.where(labels, numbers, np.inf).argmin())
            self.smallest = min(self.smallest, (float(numbers[row]), first_row + row + 1))
        if len(self.values) <= MOST_CLASSES:
            unique_numbers = np.unique(numbers[finite])[: MOST_CLASSES + 1].tolist()
            self.values |= set(unique_numbers)
        for row in np.flatnonzero(~empty & ~finite).tolist():
            cell = cell_text(chunk.column(column), row)
            place = (first_row + row + 1, cell)
            if (bound := parse_bound(cell)) is not None:
                self.bounds += 1
                self.firsts.setdefault("bound", place)
                self.smallest = min(self.smallest, (bound[1], first_row + row + 1))
                self._add_name(cell)
                continue
            if has_comma(cell):
                self.commas += 1
                self.firsts.setdefault("comma", place)
                continue
            self.firsts.setdefault("word", place)
            if np.isinf(numbers[row]):
                continue
            self.words += 1
            self._add_name(cell)
        if self.numbers <= self.words and empty.any():
            cells = texts(chunk.column(column))
            keys = [class_key(cell) for cell in cells]
            if "none" in keys:
                row = keys.index("none")
                self.firsts.setdefault("none", (first_row + row + 1, cells[row]))
            self.dashes += keys.count("-")

    def first(self, kind: str) -> tuple[int, str]:
        """Return the row and the text of the first cell of a kind; 0 and an empty text if there is none."""
        return self.firsts.get(kind, (0, ""))

    def _add_name(self, cell: str) -> None:
        if len(self.names) <= MOST_CLASSES:
            self.names.setdefault(class_key(cell), Counter())[cell.strip()] += 1

    @property
    def measurements(self) -> int:
        """Number of cells with a number in any notation, or a bound."""
        return self.numbers + self.bounds + self.commas

    @property
    def word_kind(self) -> str:
        """Kind of a column of words: classes if there are few, each with several rows; else regression."""
        if len(self.names) <= 2:
            return BINARY
        few = len(self.names) <= min(MOST_CLASSES, self.words // 3)
        numbers = len(self.names) > FEW_CLASSES and all(map(_BEGINS_AS_NUMBER.match, self.names))
        return MULTICLASS if few and not numbers else REGRESSION

    @property
    def looks_like_classes(self) -> bool:
        """True if the column holds few different words, some of them repeated."""
        return 1 < len(self.names) < self.words and self.word_kind != REGRESSION

    @property
    def looks_like_ids(self) -> bool:
        """True if the column holds integers, none of them repeated as far as they were counted."""
        counted = min(self.numbers, MOST_CLASSES + 1)
        return len(self.values) >= counted > 0 and all(value.is_integer() for value in self.values)


def scan_columns(chunks: Iterable[pa.Table], columns: Sequence[str], smiles: str | None = None) -> list[ColumnContents]:
    """Summarise the cells of some columns of a table.

    Args:
        chunks: consecutive rows of the table, from the first row.
        columns: names of the columns.
        smiles: column of the SMILES. Rows without one, such as a line of units or of sums, are left out.
    """
    contents = [ColumnContents() for _ in columns]
    first_row = 0
    for chunk in chunks:
        without = None if smiles is None else np.array([is_empty(cell) for cell in texts(chunk.column(smiles))], bool)
        if without is not None and without.all():  # the empty SMILES are reported, rather than an empty target
            without = None
        for column_contents, column in zip(contents, columns, strict=True):
            column_contents.add(chunk, column, first_row, without)
        first_row += len(chunk)
    for column_contents in contents:
        if column_contents.dashes and any(name.lstrip("(").startswith("+") for name in column_contents.names):
            column_contents.words += column_contents.dashes
            column_contents.names["-"] = Counter({"-": column_contents.dashes})
    return contents
