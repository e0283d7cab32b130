"""Identifier columns of a table: what users call their compounds, such as a registry number or a name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa

from graphslice.config import split_words
from graphslice.data.columns import check_unique, require_column
from graphslice.data.parse_cells import is_empty, list_or_none, parse_number
from graphslice.data.tables import file_columns, texts
from graphslice.errors import InputError

# At most this many columns are kept.
_MOST_COLUMNS = 3
# Names that end in the word id or name, or number a compound: id, Compound ID, Cmpd No, compound_name, CMPD_CHEMBLID.
_NUMBERED = (
    r"(?:compound|cmpd|cpd|molecule|mol|substance|sample|catalog|catalogue|registry|cas)[^a-z]?(?:no\.?|number|code)"
)
_ID_NAME = re.compile(rf"(?i:(?:^|[^a-z])(?:id|name|{_NUMBERED}))$|[a-z](?:Id|ID|Name)$|[A-Z]{{3}}ID$")
# Columns that files of a run have in addition to the identifiers.
_RESERVED = {"", "row", "smiles", "split", "reason"}
# Smallest fraction of rows with a value, and of distinct texts among these, in identifier columns without such a name.
_MIN_FRACTION = 0.9
# Columns of measurements are recognised by this many cells: decimals, also with signs and units, and lists of numbers.
_SAMPLE_ROWS = 100
_DECIMAL = re.compile(r"[<>=~\s]*[+-]?[0-9]*[.,][0-9]")


def identifier_columns(
    chunks: Sequence[pa.Table],
    used: Collection[str | None],
    requested: str | None,
    name: str,
    written: Sequence[pa.Table] | None = None,
) -> dict[str, list[str]]:
    """Find the identifier columns of a table, and read them.

    They are the requested columns. Otherwise they are columns without another role and without measurements: first
    those whose name ends in the word id or name, or in a phrase such as compound number, then those whose values are
    unique (integers) or nearly so (texts: at least 90% are distinct, and at most 10% are missing), at most three.

    Args:
        chunks: all rows of the table ``name``, at least one chunk.
        used: columns with another role.
        requested: names separated by commas, or None.
        written: the rows as they are written, if ``chunks`` are converted ones.

    Returns:
        The R texts of each column by its name, empty where there is no value.

    Raises:
        InputError: if a requested column is missing, has another role, or its name is not unique.
    """
    columns = file_columns(chunks[0]).column_names
    if requested is None:
        names = _infer(chunks, [one for one, n in Counter(columns).items() if n == 1 and one not in used])
    else:
        names = [requested] if requested in columns else split_words(requested)
        for one in names:
            require_column(one, columns, name)
            if one in used or one.lower() in _RESERVED:
                raise InputError(
                    f"--id-column: {one!r} cannot be an identifier, since files of a run have that column too"
                )
        check_unique(columns, names, name)
    return {one: [text for chunk in written or chunks for text in texts(chunk.column(one))] for one in names}


def _infer(chunks: Sequence[pa.Table], columns: Iterable[str]) -> list[str]:
    free = (one for one in columns if one.strip().lower() not in _RESERVED)
    candidates = [one for one in free if not _holds_measurements(chunks[0], one)]
    named = [one for one in candidates if _ID_NAME.search(one.strip())]
    unique = (one for one in candidates if one not in named and _is_unique(chunks, one))
    return [*named[:_MOST_COLUMNS], *islice(unique, max(0, _MOST_COLUMNS - len(named)))]


def _holds_measurements(chunk: pa.Table, column: str) -> bool:
    """True if the first cells of a column hold a measurement, or no value at all."""
    cells = texts(chunk.column(column).slice(0, _SAMPLE_ROWS))
    numbers = [parse_number(cell) for cell in cells]
    return all(map(is_empty, cells)) or any(
        _DECIMAL.match(cell) or list_or_none(cell) is not None or (np.isfinite(number) and number % 1 != 0)
        for cell, number in zip(cells, numbers, strict=True)
        if not is_empty(cell)
    )


def _is_unique(chunks: Sequence[pa.Table], column: str) -> bool:
    """True if the values of a column are unique (integers) or nearly so (texts)."""
    values, rows = Counter[str](), 0
    for chunk in chunks:
        cells = texts(chunk.column(column))
        values.update(cell.strip() for cell in cells if not is_empty(cell))
        rows += len(cells)
        if len(values) < _MIN_FRACTION * values.total() or values.total() < _MIN_FRACTION * rows:
            return False
    return len(values) == values.total() or any(np.isnan(parse_number(value)) for value in islice(values, _SAMPLE_ROWS))
