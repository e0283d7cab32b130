"""Columns of a table by their names, and those of them that are descriptors: numbers that a model reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from graphslice.chem.descriptors import DESCRIPTORS, feature_column_names
from graphslice.data.parse_cells import cell_text, decimal_point_hint, parse_number_column
from graphslice.data.tables import decode_text, texts
from graphslice.errors import InputError, nearest

#: The largest magnitude of a number: models compute with float32, up to 3.4e38, and square what they standardise.
MAX_MAGNITUDE = 1e18
_TRUTH = {"true": 1.0, "false": 0.0}


def check_unique(columns: Sequence[str], used: Iterable[str], name: str) -> None:
    """Raise :class:`InputError` if a column that is used has the name of another one."""
    for column in used:
        if list(columns).count(column) > 1:
            raise InputError(f"{name} has two columns called {column!r}")


def quoted_list(names: Iterable[object], most: int = 12) -> str:
    """Some names for a message, the first few where there are many."""
    quoted = [repr(str(name)) for name in names]
    return ", ".join(quoted[:most]) + (f" and {len(quoted) - most} more" if len(quoted) > most else "") or "none"


def find_feature_columns(columns: Sequence[str], names: Sequence[str], targets: Sequence[str], name: str) -> list[str]:
    """The columns of a table that ``data.features`` names.

    Args:
        columns: all that the table has.
        names: of descriptors, :data:`~graphslice.chem.descriptors.DESCRIPTORS` and columns.
        targets: columns that are labels.
        name: of the table, for messages.

    Raises:
        InputError: if the table has no such column, or it is a label.
    """
    own = feature_column_names(names)
    for column in own:
        if column not in columns:
            raise InputError(
                f"{name} has no column {column!r}{nearest(column, [*DESCRIPTORS, *columns])}: --features names "
                f"{', '.join(DESCRIPTORS)} and numeric columns of the table, which has {quoted_list(columns)}"
            )
        if column in targets:
            raise InputError(f"{name}: {column!r} is a target, so --features cannot name it: it would be known already")
    return own


def as_descriptors(columns: Sequence[np.ndarray]) -> np.ndarray:
    """``float32 [R, K]`` of K columns ``[R]``: nan for what is not finite, and at most 1e18 in magnitude."""
    values = np.stack([np.asarray(column, np.float64) for column in columns], axis=1)
    return np.where(np.isfinite(values), values.clip(-MAX_MAGNITUDE, MAX_MAGNITUDE), np.nan).astype(np.float32)


def check_feature_columns(values: np.ndarray, names: Sequence[str], name: str) -> None:
    """Raise :class:`InputError` if a column has no number in any row.

    Args:
        values: ``float32 [R, K]`` of all rows.
        names: K names.
        name: of the table, for messages.
    """
    for column, empty in zip(names, np.isnan(values).all(axis=0), strict=True):
        if empty:
            raise InputError(f"{name}: the column {column!r} of --features has no number in any row")


def parse_feature_columns(chunk: pa.Table, names: Sequence[str]) -> np.ndarray:
    """``float32 [R, K]``, the descriptors in some columns, at least one: true is 1, false is 0; nan where there is no
    number."""
    return as_descriptors([_feature_cells(chunk, name)[0] for name in names])


def _feature_cells(chunk: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """:func:`parse_number_column` of a column of descriptors, which may hold true and false."""
    numbers, empty = parse_number_column(chunk, name)
    words = np.flatnonzero(~empty & np.isnan(numbers))
    if len(words):
        cells, numbers = texts(chunk.column(name), decode_text), numbers.copy()
        numbers[words] = [_TRUTH.get(cells[row].strip().lower(), np.nan) for row in words.tolist()]
    return numbers, empty


class FeatureColumns:
    """Reads the columns of a table that are descriptors, chunk by chunk, and knows which cells were no numbers.

    Args:
        names: of the columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self._rows = names, 0
        self._counts, self._firsts = [0] * len(names), [""] * len(names)

    def parse(self, chunk: pa.Table) -> np.ndarray:
        """:func:`parse_feature_columns` of the next chunk."""
        found = [_feature_cells(chunk, name) for name in self.names]
        for n, (name, (numbers, empty)) in enumerate(zip(self.names, found, strict=True)):
            wrong = np.flatnonzero(~empty & ~np.isfinite(numbers))
            if len(wrong) and not self._counts[n]:
                cell = cell_text(chunk.column(name), int(wrong[0]))
                self._firsts[n] = f"{cell!r} in row {self._rows + wrong[0] + 1}{decimal_point_hint(cell)}"
            self._counts[n] += len(wrong)
        self._rows += len(chunk)
        return as_descriptors([numbers for numbers, _ in found])

    def notes(self) -> list[str]:
        """A sentence on each column that had cells which are neither empty nor a number."""
        return [
            f"{count:,} cells of the column {name!r} of --features are no numbers, the first {first}: they count as "
            "unknown"
            for name, count, first in zip(self.names, self._counts, self._firsts, strict=True)
            if count
        ]


def feature_column_notes(chunks: Iterable[pa.Table], names: Sequence[str]) -> list[str]:
    """What :meth:`FeatureColumns.notes` says of all chunks of a table."""
    if not names:
        return []
    columns = FeatureColumns(names)
    for chunk in chunks:
        columns.parse(chunk)
    return columns.notes()
