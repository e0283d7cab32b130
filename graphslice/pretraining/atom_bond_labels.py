"""Atom- and bond-level labels of a corpus: lists with one number for each atom or bond of a SMILES."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from graphslice.config import BOND, GraphConfig
from graphslice.data.columns import check_unique, find_smiles_column
from graphslice.data.featurize import featurizer_pool, parse
from graphslice.data.labels import Labels, pointers
from graphslice.data.list_columns import ListLengths, list_cells
from graphslice.data.parse_cells import column_cells, is_empty
from graphslice.data.store import GraphStore
from graphslice.data.tables import open_table, reject_other_atom_order


def read_label_lists(
    tables: Sequence[Path], names: Sequence[str], smiles_column: str | None = None
) -> tuple[dict[str, Labels], set[int]]:
    """Read the list columns of some files, in chunks; raise InputError if a list may be of atoms or of bonds.

    Returns the labels of all rows of all files in their order, by level (atom or bond); and the rows in which a list
    column has another value, or the lists of one level differ in length.
    """
    lists: dict[str, dict[int, np.ndarray]] = {name: {} for name in names}
    lengths = {name: ListLengths() for name in names}
    rows, invalid = 0, set()
    for path in tables:
        with open_table(path) as table:
            present = [name for name in names if name in table.columns]
            smiles = find_smiles_column(table.columns, None, str(path), smiles_column)
            check_unique(table.columns, [smiles, *present], str(path))
            for chunk in table.chunks:
                for name in present:
                    if not (cells := list_cells(chunk, name)):
                        continue
                    reject_other_atom_order(table, path)
                    molecules, others = column_cells(chunk, smiles), enumerate(column_cells(chunk, name))
                    lengths[name].look((molecules[row] for row in cells), cells.values())
                    lists[name] |= {rows + row: numbers for row, numbers in cells.items()}
                    invalid |= {rows + row for row, cell in others if row not in cells and not is_empty(cell)}
                rows += len(chunk)
    levels = {name: lengths[name].level(name) for name in names if lists[name]}
    labels = {}
    for level in dict.fromkeys(levels.values()):
        columns = {name: lists[name] for name in names if levels.get(name) == level}
        labels[level], mismatched = _stack_columns(level, columns, rows)
        invalid |= mismatched
    return labels, invalid


def _stack_columns(level: str, columns: Mapping[str, Mapping[int, np.ndarray]], rows: int) -> tuple[Labels, set[int]]:
    """Combine the labels of several columns; rows whose lists differ in length get none and are returned too."""
    counts, mismatched = np.full(rows, -1, np.int64), set()
    for lists in columns.values():
        for row, numbers in lists.items():
            if counts[row] not in (-1, len(numbers)):
                mismatched.add(row)
            counts[row] = len(numbers)
    counts[list(mismatched)] = 0
    counts = np.maximum(counts, 0)
    ptr = pointers(counts)
    values = np.full((int(ptr[-1]), len(columns)), np.nan)
    for column, lists in enumerate(columns.values()):
        for row, numbers in lists.items():
            if row not in mismatched:
                values[ptr[row] : ptr[row + 1], column] = numbers
    return Labels(level, values, ptr, tuple(columns)), mismatched


def select_molecule_labels(
    labels: Labels,
    smiles: Sequence[str],
    rows: np.ndarray,
    store_rows: np.ndarray,
    store: GraphStore,
    chosen: np.ndarray,
    config: GraphConfig,
) -> tuple[Labels, set[int]]:
    """Select the labels of each molecule of a corpus from its first labelled row, in the order of its graph.

    Args:
        labels: labels of R rows.
        smiles: SMILES of the R rows.
        rows: ``int64 [R]``, index of each row's molecule among the G molecules; -1 for none.
        store_rows: ``int64 [R]``, row of ``store`` of each row's SMILES.
        store: all molecules that were read.
        chosen: ``int64 [G]``, row of ``store`` of each molecule of the corpus.
        config: how molecules are converted to graphs.

    Returns:
        The labels of the G molecules; and the rows whose lists do not fit the molecule, since their length or, for
        bonds, their order differs.
    """
    labelled = np.flatnonzero((labels.counts > 0) & (rows >= 0))
    ordered = replace(labels, values=labels[labelled], ptr=pointers(labels.counts[labelled]))
    with featurizer_pool(len(labelled)) as pool:
        texts = [smiles[row] for row in labelled.tolist()]
        arrays, _, order, _ = parse(texts, config, pool, level=labels.level)
    counts = arrays.atom_bond_counts(labels.level)
    invalid = set(labelled[list(ordered.length_errors(counts, labels.names))].tolist())
    ordered = ordered.in_graph_order(counts, order)
    first: dict[int, int] = {}
    for i in np.flatnonzero(ordered.counts).tolist():
        molecule, store_row = int(rows[labelled[i]]), int(store_rows[labelled[i]])
        if molecule in first:
            continue
        # Two graphs of a molecule have the same order of atoms, but perhaps not of bonds.
        if labels.level == BOND and not np.array_equal(store[store_row].bonds, store[int(chosen[molecule])].bonds):
            invalid.add(int(labelled[i]))
        else:
            first[molecule] = i
    molecules = sorted(first)
    picked = np.array([first[molecule] for molecule in molecules], np.int64)
    chosen_counts = np.zeros(len(chosen), np.int64)
    chosen_counts[molecules] = ordered.counts[picked]
    return replace(ordered, values=ordered[picked], ptr=pointers(chosen_counts)), invalid
