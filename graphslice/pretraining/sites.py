"""Labels of atoms and of bonds in the tables of a corpus: lists, one number for each atom or bond of a row's SMILES."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.config import GraphConfig
from graphslice.data.arrow import number_array
from graphslice.data.cells import holds_lists
from graphslice.data.columns import check_unique
from graphslice.data.labels import find_smiles_column
from graphslice.data.site_orders import ordered
from graphslice.data.site_tables import level_of_lists, read_sites
from graphslice.data.sites import SiteLabels, pointers
from graphslice.data.store import GraphStore
from graphslice.data.tables import open_table


def levels_of(tables: Sequence[Path], names: Sequence[str]) -> dict[str, list[str]]:
    """Which of some columns hold lists in at least one of the tables, by what these are of: atom or bond.

    Raises:
        InputError: if the lengths of lists are those of neither, or of both.
    """
    found: dict[str, str] = {}
    for path in tables:
        with open_table(path) as table:
            asked = [name for name in names if name in table.columns and name not in found]
            if not asked:
                continue
            smiles = find_smiles_column(table.columns, None, str(path))
            check_unique(table.columns, [smiles, *asked], str(path))
            for chunk in table.chunks:
                for name in asked:
                    if name not in found and holds_lists(chunk, name):
                        found[name] = level_of_lists([chunk], smiles, name, str(path))
    return {level: [name for name in names if found.get(name) == level] for level in dict.fromkeys(found.values())}


def read_site_labels(tables: Sequence[Path], levels: dict[str, list[str]]) -> tuple[dict[str, SiteLabels], int]:
    """The labels of all rows of some tables, by level, as written; and in how many rows there is something else.

    Args:
        tables: with a column of SMILES.
        levels: of :func:`levels_of`.
    """
    parts: dict[str, list[SiteLabels]] = {level: [] for level in levels}
    wrong = 0
    for path in tables:
        with open_table(path) as table:
            columns, chunks = table.columns, list(table.chunks)
        for level, names in levels.items():
            known = [name for name in names if name in columns]
            if not known:
                rows = sum(map(len, chunks))
                parts[level].append(SiteLabels(level, np.empty((0, len(names))), np.zeros(rows + 1, np.int64)))
                continue
            labels, rejected, _ = read_sites(chunks, known, level)
            wrong += len(rejected)
            values = np.full((len(labels.values), len(names)), np.nan)
            values[:, [names.index(name) for name in known]] = labels.values
            parts[level].append(replace(labels, values=values))
    return {level: replace(SiteLabels.join(some), names=tuple(levels[level])) for level, some in parts.items()}, wrong


def labels_of_molecules(
    labels: SiteLabels,
    smiles: Sequence[str],
    rows: np.ndarray,
    places: np.ndarray,
    store: GraphStore,
    chosen: np.ndarray,
    config: GraphConfig,
) -> tuple[SiteLabels, int]:
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
        The labels of the G molecules; and how many rows have lists of another length than their molecule.
    """
    given = np.flatnonzero((labels.counts > 0) & (rows >= 0))
    some = replace(labels, values=labels[given], ptr=pointers(labels.counts[given]))
    some, faults = ordered(some, [smiles[row] for row in given.tolist()], config, labels.names)
    some = some.without(list(faults))
    first: dict[int, int] = {}
    for i in np.flatnonzero(some.counts).tolist():
        molecule, place = int(rows[given[i]]), int(places[given[i]])
        if molecule not in first and _alike(store, place, int(chosen[molecule])):
            first[molecule] = i
    molecules = sorted(first)
    picked = np.array([first[molecule] for molecule in molecules], np.int64)
    counts = np.zeros(len(chosen), np.int64)
    counts[molecules] = some.counts[picked]
    return replace(some, values=some[picked], ptr=pointers(counts)), len(faults)


def _alike(store: GraphStore, one: int, other: int) -> bool:
    """Whether the atoms of two graphs of one molecule stand in the same order."""
    if one == other:
        return True
    a, b = store[one], store[other]
    return np.array_equal(a.atoms, b.atoms) and np.array_equal(a.bonds, b.bonds)


def site_array(labels: SiteLabels, rows: np.ndarray, kind: pa.DataType) -> pa.Array:
    """The column of a store for some rows: a list of lists of each, which may be empty."""
    offsets = pointers(labels.counts[rows]).astype(np.int32)
    values = number_array(labels[rows].astype(np.float32).reshape(-1))
    items = pa.FixedSizeListArray.from_arrays(values, type=kind.value_type)
    return pa.ListArray.from_arrays(number_array(offsets), items, type=kind)
