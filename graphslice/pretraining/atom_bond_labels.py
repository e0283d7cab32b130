"""Labels of atoms and of bonds in the tables of a corpus: lists, one number for each atom or bond of a row's SMILES."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.config import BOND, GraphConfig
from graphslice.data.arrow import number_array
from graphslice.data.atom_bond_columns import ListLengths, list_cells
from graphslice.data.atom_bond_labels import AtomBondLabels, pointers
from graphslice.data.atom_bond_order import to_graph_order
from graphslice.data.columns import check_unique
from graphslice.data.labels import find_smiles_column
from graphslice.data.parse_cells import column_cells, is_empty, list_or_none
from graphslice.data.store import GraphStore
from graphslice.data.tables import open_table


def read_label_lists(
    tables: Sequence[Path], names: Sequence[str], smiles_column: str | None = None
) -> tuple[dict[str, AtomBondLabels], set[int]]:
    """The lists in some columns of tables, which are read once, a chunk at a time.

    Args:
        tables: with a column of SMILES.
        names: of columns, in any of the tables, of which some may hold lists.
        smiles_column: the column of the SMILES in those tables that have it.

    Returns:
        The labels of all rows of the tables, one table's behind another's, by what they are of: atom or bond. And the
        rows that have something else among lists, or lists of several lengths.

    Raises:
        InputError: if what lists are of cannot be told.
    """
    lists: dict[str, dict[int, np.ndarray]] = {name: {} for name in names}
    lengths = {name: ListLengths() for name in names}
    rows, wrong = 0, set()
    for path in tables:
        with open_table(path) as table:
            present = [name for name in names if name in table.columns]
            smiles = find_smiles_column(table.columns, None, str(path), smiles_column)
            check_unique(table.columns, [smiles, *present], str(path))
            for chunk in table.chunks:
                for name in present:
                    some = list_cells(chunk, name)
                    lengths[name].look(column_cells(chunk, smiles, some), some.values())
                    lists[name] |= {rows + row: numbers for row, numbers in some.items()}
                    wrong |= {rows + row for row in _invalid_cells(chunk, name)} if some else set()
                rows += len(chunk)
    levels = {name: lengths[name].level(name) for name in names if lengths[name].lists}
    found = {}
    for level in dict.fromkeys(levels.values()):
        columns = {name: lists[name] for name in names if levels.get(name) == level}
        found[level], faults = _stack_columns(level, columns, rows)
        wrong |= faults
    return found, wrong


def _invalid_cells(chunk: pa.Table, column: str) -> list[int]:
    """The rows of a column of lists that have something else."""
    cells = column_cells(chunk, column)
    return [row for row, cell in enumerate(cells) if list_or_none(cell) is None and not is_empty(cell)]


def _stack_columns(
    level: str, columns: Mapping[str, Mapping[int, np.ndarray]], rows: int
) -> tuple[AtomBondLabels, set[int]]:
    """Labels of several columns side by side, and the rows whose lists differ in length, which have none."""
    counts, wrong = np.full(rows, -1, np.int64), set()
    for some in columns.values():
        for row, numbers in some.items():
            if counts[row] not in (-1, len(numbers)):
                wrong.add(row)
            counts[row] = len(numbers)
    counts[list(wrong)] = 0
    counts = np.maximum(counts, 0)
    ptr = pointers(counts)
    values = np.full((int(ptr[-1]), len(columns)), np.nan)
    for column, some in enumerate(columns.values()):
        for row, numbers in some.items():
            if row not in wrong:
                values[ptr[row] : ptr[row + 1], column] = numbers
    return AtomBondLabels(level, values, ptr, tuple(columns)), wrong


def select_molecule_labels(
    labels: AtomBondLabels,
    smiles: Sequence[str],
    rows: np.ndarray,
    places: np.ndarray,
    store: GraphStore,
    chosen: np.ndarray,
    config: GraphConfig,
) -> tuple[AtomBondLabels, set[int]]:
    """The labels of the molecules of a corpus in the order of their graphs: those of the first row that has some.

    Args:
        labels: of R rows.
        smiles: of each of these.
        rows: ``int64 [R]``, which of the G molecules each is; -1 of none.
        places: ``int64 [R]``, its row in ``store``.
        store: of all molecules.
        chosen: ``int64 [G]``, the row of ``store`` that each molecule of the corpus is.
        config: how molecules became graphs.

    Returns:
        The labels of the G molecules; and the rows whose lists cannot be theirs: those of another length, and those
        of bonds in another order.
    """
    given = np.flatnonzero((labels.counts > 0) & (rows >= 0))
    some = replace(labels, values=labels[given], ptr=pointers(labels.counts[given]))
    some, faults = to_graph_order(some, [smiles[row] for row in given.tolist()], config, labels.names)
    wrong = set(given[list(faults)].tolist())
    some = some.without(list(faults))
    first: dict[int, int] = {}
    for i in np.flatnonzero(some.counts).tolist():
        molecule, place = int(rows[given[i]]), int(places[given[i]])
        if molecule in first:
            continue
        if labels.level == BOND and not _same_bond_order(store, place, int(chosen[molecule])):
            wrong.add(int(given[i]))
        else:
            first[molecule] = i
    molecules = sorted(first)
    picked = np.array([first[molecule] for molecule in molecules], np.int64)
    counts = np.zeros(len(chosen), np.int64)
    counts[molecules] = some.counts[picked]
    return replace(some, values=some[picked], ptr=pointers(counts)), wrong


def _same_bond_order(store: GraphStore, one: int, other: int) -> bool:
    """Whether the bonds of two graphs of one molecule stand in the same order: its atoms do."""
    return one == other or np.array_equal(store[one].bonds, store[other].bonds)


def atom_bond_array(labels: AtomBondLabels, rows: np.ndarray, kind: pa.DataType) -> pa.Array:
    """The column of a store for some rows: a list of lists of each, which may be empty."""
    offsets = pointers(labels.counts[rows]).astype(np.int32)
    values = number_array(labels[rows].astype(np.float32).reshape(-1))
    items = pa.FixedSizeListArray.from_arrays(values, type=kind.value_type)
    return pa.ListArray.from_arrays(number_array(offsets), items, type=kind)
