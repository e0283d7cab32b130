"""Long tables, with a row for each measurement, converted to a row for each molecule and a column for each target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from graphslice.config import DataConfig, join_names
from graphslice.data.cells import is_empty, plain_numbers
from graphslice.data.columns import find_columns, target_names
from graphslice.data.splits import SPLIT_METHODS
from graphslice.data.tables import Rows, number_array, text_array, texts
from graphslice.errors import InputError, pluralize, quoted_list
from graphslice.tasks import parse_bound

# Targets with fewer values, bounds not counted, are left out unless they are named.
_LEAST_VALUES = 10
# Most cells of the converted table: 0.8 GB of labels, of which a run holds several copies.
_MOST_CELLS = 100_000_000


def widen(
    columns: Sequence[str], chunks: Iterable[Rows], config: DataConfig, name: str
) -> tuple[Rows, DataConfig, list[str]]:
    """Convert a long table of some ``columns``; also return the settings by which the rows are read, and a note if
    targets are left out. Measurements of the same SMILES, split, weight and features share a row; of a target that was
    measured repeatedly, each measurement is in a row of its own. Identifiers are those of the first measurement."""
    roles = find_columns(columns, config, name, SPLIT_METHODS)
    keys = [roles.smiles, *filter(None, (roles.split, roles.weights)), *roles.features]
    kept = [*keys, *roles.identifiers]
    chunks = [plain_numbers(chunk, config.decimal, [roles.long[1], *keys[1:]]) for chunk in chunks]
    table = pa.concat_tables([chunk.table.select([*kept, *roles.long]) for chunk in chunks])
    begins = np.cumsum([0, *map(len, chunks)]).tolist()
    faults = {begin + row: fault for begin, c in zip(begins, chunks, strict=False) for row, fault in c.faults.items()}
    measured, cells = _measurements(table, roles.long, faults)
    first, row_of = _rows(table.select(keys), measured, faults)
    notes: list[str] = []
    if not (targets := target_names(config.targets, ())):
        targets, notes = _choose_targets(measured, cells, name)
    if len(first) * len(targets) > _MOST_CELLS:
        raise InputError(
            f"{name}: {pluralize(len(first), 'row')} of {pluralize(len(targets), 'target')} have more than "
            f"{_MOST_CELLS:,} cells: keep {_MOST_CELLS // len(first):,} targets, or name them with data.targets"
        )
    members: dict[str, list[int]] = {target: [] for target in targets}
    for measurement, target in enumerate(measured):
        if target in members:
            members[target].append(measurement)
    found = text_array(cells)
    arrays = [*table.select(kept).take(number_array(first)).columns]
    arrays += [_place(found, np.array(rows, np.int64), row_of, len(first)) for rows in members.values()]
    rows = Rows(pa.table(arrays, [*kept, *targets]), {int(row_of[row]): fault for row, fault in faults.items()})
    return rows, replace(config, long=None, targets=join_names(targets), decimal=None), notes


def _measurements(table: pa.Table, names: Sequence[str], faults: Mapping[int, str]) -> tuple[list[str], list[str]]:
    """Return target and value of each row, a bound where the relation is one; no target if there is no value, as with
    other relations such as ``~``."""
    targets, values, *relations = (texts(table.column(name)) for name in names)
    empty = {text for text in {*targets, *values} if is_empty(text)}
    written = relations[0] if relations else [""] * len(table)
    sign_of = {text: "" if is_empty(sign := text.strip(" '\"")) or sign == "=" else sign for text in {*written}}
    unknown = {text for text, sign in sign_of.items() if sign and parse_bound(f"{sign}1") is None}
    for row, (target, value, relation) in enumerate(zip(targets, values, written, strict=True)):
        is_label = not (row in faults or target in empty or value in empty or relation in unknown)
        targets[row], values[row] = target.strip() if is_label else "", sign_of[relation] + value
    return targets, values


def _rows(keys: pa.Table, targets: Sequence[str], faults: Mapping[int, str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first measurement of each of R rows, ``int64 [R]``, and the row of each measurement, ``[M]``."""
    repeats: Counter[tuple] = Counter()
    rows: dict[tuple, int] = {}
    first: list[int] = []
    row_of = np.empty(len(targets), np.int64)
    cells = zip(*map(texts, keys.columns), strict=True)
    for measurement, (key, target) in enumerate(zip(cells, targets, strict=True)):
        repeat = repeats[key, target] if target else 0
        repeats[key, target] += 1
        # The cells of a malformed row may belong to other columns.
        row = rows.setdefault((measurement,) if measurement in faults else (key, repeat), len(rows))
        if row == len(first):
            first.append(measurement)
        row_of[measurement] = row
    return np.array(first, np.int64), row_of


def _choose_targets(targets: Sequence[str], cells: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """Return the targets with enough values, those with most first, and a note about the others."""
    is_value = {cell: parse_bound(cell) is None for cell in {*cells}}
    counts: Counter[str] = Counter()
    distinct: dict[str, set[str]] = {}
    for target, cell in zip(targets, cells, strict=True):
        if target:
            counts[target] += is_value[cell]
            distinct.setdefault(target, set()).add(cell)
    enough = {target for target, count in counts.items() if count >= _LEAST_VALUES and len(distinct[target]) > 1}
    chosen = [target for target, _ in counts.most_common() if target in enough]
    few = [target for target, _ in counts.most_common() if target not in enough]
    if not chosen:
        raise InputError(f"{name}: no target has {_LEAST_VALUES} values that differ")
    if not few:
        return chosen, []
    named = quoted_list([f"{target} ({counts[target]})" for target in few], 6, str)
    problem = f"fewer than {_LEAST_VALUES} values, or equal ones,"
    note = f"{pluralize(len(few), 'target')} with {problem} left out, unless data.targets names them: {named}"
    return chosen, [note]


def _place(cells: pa.Array, measurements: np.ndarray, row_of: np.ndarray, rows: int) -> pa.Array:
    """Return the column of a target: the cells of its measurements in their rows, null in the others."""
    chosen, known = np.zeros(rows, np.int64), np.zeros(rows, bool)
    chosen[row_of[measurements]], known[row_of[measurements]] = measurements, True
    return cells.take(number_array(chosen, known))
