"""Summary of the cells of a column, from which its task is inferred."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from graphslice.censored import parse_bound
from graphslice.data.decimals import has_comma
from graphslice.data.parse_cells import cell_text, class_key, is_empty, parse_number_column
from graphslice.data.tables import texts

#: Maximal number of classes.
MOST_CLASSES = 100


@dataclass
class ColumnContents:
    """Summary of the cells of a target column, accumulated chunk by chunk.

    Cells are given as ``(row, text)`` with rows counted from 1.

    Attributes:
        numbers: number of cells with numbers.
        bounds: number of cells that are bounds of a number, such as ``>5``.
        words: number of other cells that are not empty.
        commas: number of these that are numbers with commas.
        values: the different finite numbers; not extended beyond the maximal number of classes.
        names: the different bounds and words as they are first written, by :func:`class_key`; not extended beyond the
            maximal number of classes.
        firsts: the first cell of a kind: ``word``, ``comma``, and ``none`` (that word in a column of words).
    """

    numbers: int = 0
    bounds: int = 0
    words: int = 0
    commas: int = 0
    values: set[float] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    firsts: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, chunk: pa.Table, column: str, first_row: int, ignored: np.ndarray) -> None:
        """Add the cells of a chunk that begins with a row, counted from 0; those of ``ignored`` rows count as empty."""
        numbers, empty = parse_number_column(chunk, column)
        numbers, empty = np.where(ignored, np.nan, numbers), empty | ignored
        is_number = ~np.isnan(numbers)
        self.numbers += int(is_number.sum())
        if len(self.values) <= MOST_CLASSES:
            self.values |= set(np.unique(numbers[np.isfinite(numbers)])[: MOST_CLASSES + 1].tolist())
        for row in np.flatnonzero(~empty & ~is_number).tolist():
            cell = cell_text(chunk.column(column), row)
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
            for row, cell in enumerate(texts(chunk.column(column))):
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


def scan_columns(chunks: Iterable[pa.Table], columns: Sequence[str], smiles: str | None = None) -> list[ColumnContents]:
    """Summarise some columns of a table, without the rows of no SMILES, such as a line of units or of sums."""
    contents = [ColumnContents() for _ in columns]
    first_row = 0
    for chunk in chunks:
        ignored = np.zeros(len(chunk), bool)
        if smiles is not None:
            ignored = np.array([is_empty(cell) for cell in texts(chunk.column(smiles))], bool)
        if ignored.all():  # the empty SMILES are reported, rather than an empty target
            ignored[:] = False
        for column_contents, column in zip(contents, columns, strict=True):
            column_contents.add(chunk, column, first_row, ignored)
        first_row += len(chunk)
    return contents
