"""Labels of atoms and of bonds from tables: lists in cells, one number for each atom or bond of the row's SMILES."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rdkit import rdBase

from graphslice.chem.parse import MAX_ATOMS, MoleculeError, parse_molecule
from graphslice.config import ATOM, BOND, DataConfig
from graphslice.data.arrow import number_array
from graphslice.data.atom_bond_labels import AtomBondLabels, pluralize, pointers
from graphslice.data.columns import MAX_MAGNITUDE
from graphslice.data.infer_tasks import infer_tasks_from_values
from graphslice.data.parse_cells import class_indices, column_cells, list_or_none, number_key, parse_number_list
from graphslice.data.tables import malformed_rows
from graphslice.errors import InputError
from graphslice.tasks import Task

# Rows that are looked at to see what their lists are of.
_SAMPLE_ROWS = 50


def read_atom_bond_labels(
    chunks: Sequence[pa.Table], targets: Sequence[str], level: str
) -> tuple[AtomBondLabels, dict[int, str], list[pa.Table]]:
    """The lists in some columns of a table.

    Args:
        chunks: all of the table.
        targets: T columns.
        level: what they are of.

    Returns:
        The labels; why a row has none that could be read; and the chunks with the mean of each list in its place.
    """
    parts: list[np.ndarray] = [np.empty((0, len(targets)))]
    rejected: dict[int, str] = {}
    counts: list[int] = []
    for chunk in chunks:
        malformed, columns = malformed_rows(chunk), [column_cells(chunk, target) for target in targets]
        for row, cells in enumerate(zip(*columns, strict=True)):
            try:
                part = _parse_label_row([None] * len(cells) if row in malformed else cells, targets)
            except ValueError as reason:
                rejected[len(counts)] = str(reason)
                part = parts[0]
            parts.append(part)
            counts.append(len(part))
    labels = AtomBondLabels(level, np.concatenate(parts), pointers(counts))
    return labels, rejected, _lists_to_means(chunks, targets, labels.means())


def _parse_label_row(cells: Sequence[object], targets: Sequence[str]) -> np.ndarray:
    """``float64 [n, T]`` of T cells; raises ValueError, with the reason, for what is no list of numbers."""
    lists: list[np.ndarray | None] = []
    for cell, target in zip(cells, targets, strict=True):
        try:
            numbers = parse_number_list(cell)
        except ValueError as reason:
            raise ValueError(f"target {target!r} {reason}") from None
        if numbers is not None and (np.abs(numbers) > MAX_MAGNITUDE).any():
            raise ValueError(f"target {target!r} has a number that is too large: {np.nanmax(np.abs(numbers)):g}")
        lists.append(numbers)
    lengths = {len(numbers): target for numbers, target in zip(lists, targets, strict=True) if numbers is not None}
    if len(lengths) > 1:
        said = " and ".join(f"{target!r} has {pluralize(n, 'number')}" for n, target in list(lengths.items())[:2])
        raise ValueError(f"targets differ in length: {said}")
    length = next(iter(lengths), 0)
    columns = [np.full(length, np.nan) if numbers is None else numbers for numbers in lists]
    return np.stack(columns, axis=1) if columns else np.empty((0, 0))


def _lists_to_means(chunks: Sequence[pa.Table], targets: Sequence[str], means: np.ndarray) -> list[pa.Table]:
    found, begin = [], 0
    for chunk in chunks:
        for t, target in enumerate(targets):
            column = number_array(np.ascontiguousarray(means[begin : begin + len(chunk), t]))
            chunk = chunk.set_column(chunk.column_names.index(target), target, column)
        found.append(chunk)
        begin += len(chunk)
    return found


def infer_atom_bond_tasks(labels: AtomBondLabels, targets: Sequence[str], config: DataConfig, name: str) -> list[Task]:
    """What is asked of each target: as :func:`~graphslice.data.infer_tasks.infer_tasks` says of single numbers."""
    if not len(labels.values):
        raise InputError(f"{name}: no row of {', '.join(targets)} has a list of numbers, such as [0.1, -0.2, 0.1]")
    return infer_tasks_from_values(labels.values, targets, config, name)


def encode_classes(labels: AtomBondLabels, tasks: Sequence[Task]) -> tuple[AtomBondLabels, dict[int, str]]:
    """Labels with the places of classes in place of the numbers that name them; and why rows have others, by row."""
    values, rejected = labels.values.copy(), {}
    for t, task in enumerate(tasks):
        if not task.classes:
            continue
        known = np.flatnonzero(~np.isnan(labels.values[:, t]))
        places = class_indices(task.classes)
        found = np.array([places.get(number_key(value), np.nan) for value in labels.values[known, t].tolist()])
        values[known, t] = found
        for at in known[np.isnan(found)].tolist():
            row = int(np.searchsorted(labels.ptr, at, side="right")) - 1
            value = labels.values[at, t]
            rejected[row] = f"target {task.name!r} has a number that is none of its classes: {value:g}"
    return replace(labels, values=values), rejected


@dataclass
class ListLengths:
    """How long the lists of a column are beside their molecules, by which one knows what they are of.

    Attributes:
        found: of those that were looked at how many numbers they have, and how many atoms and bonds their molecule.
        lists: whether there was any list, of a molecule or not.
    """

    found: list[tuple[int, int, int]] = field(default_factory=list)
    lists: bool = False

    def look(self, smiles: Iterable[object], lists: Iterable[np.ndarray]) -> None:
        """Look at some lists and their SMILES, unless enough were seen to know what they are of."""
        with rdBase.BlockLogs():
            for text, numbers in zip(smiles, lists, strict=True):
                self.lists = True
                if len(self.found) >= _SAMPLE_ROWS and len(self.levels) == 1:
                    return
                with suppress(MoleculeError):
                    mol = parse_molecule(str(text), MAX_ATOMS)
                    self.found.append((len(numbers), mol.GetNumAtoms(), mol.GetNumBonds()))

    @property
    def levels(self) -> list[str]:
        """What most of the lists can be of, since single ones may be wrong: atom, bond, both or neither."""
        fits = {level: sum(n[0] == n[column] for n in self.found) for level, column in ((ATOM, 1), (BOND, 2))}
        return [level for level, count in fits.items() if count and count == max(fits.values())]

    def level(self, target: str) -> str:
        """Atom or bond; raises InputError where that cannot be told. ``target``: the column."""
        if len(levels := self.levels) == 1:
            return levels[0]
        if not self.found:
            raise InputError(f"the lists of {target!r} stand beside texts that are no molecules")
        said = f"the lists of {target!r} ({self.first}) are "
        if levels:
            raise InputError(
                f"{said}all as long as there are atoms, and as there are bonds: what they are of is not known"
            )
        raise InputError(f"{said}not of one length with the atoms of their molecules, nor with the bonds")

    @property
    def first(self) -> str:
        """The first list in words."""
        if not self.found:
            return "of texts that are no molecules"
        numbers, atoms, bonds = self.found[0]
        return f"the first {numbers}, of a molecule of {pluralize(atoms, 'atom')} and {pluralize(bonds, 'bond')}"


def reject_lists(chunks: Sequence[pa.Table], smiles: str, targets: Sequence[str], name: str) -> None:
    """Raise :class:`InputError` if a target that shall be of molecules holds lists, saying what these are of.

    Args:
        chunks: all of the table.
        smiles: the column of the SMILES.
        targets: the columns of the targets.
        name: of the table, for messages.
    """
    for target in targets:
        lengths = ListLengths()
        for chunk in chunks:
            some = list_cells(chunk, target)
            lengths.look(column_cells(chunk, smiles, some), some.values())
            if lengths.lists:
                break
        if lengths.lists:
            given = " or ".join(f"--level {level}" for level in lengths.levels or (ATOM, BOND))
            raise InputError(f"{name}: the target {target!r} holds lists of numbers ({lengths.first}): give {given}")


def list_cells(chunk: pa.Table, column: str) -> dict[int, np.ndarray]:
    """The lists of numbers in the cells of a column, by row of the chunk."""
    cells = chunk.column(column)
    kind = cells.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return {}
    if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        rows = np.flatnonzero(pc.match_substring(cells, "[").fill_null(False).to_numpy()).tolist()
    else:
        rows = np.flatnonzero(cells.is_valid().to_numpy()).tolist()
    found = zip(rows, column_cells(chunk, column, rows), strict=True)
    lists = {row: list_or_none(cell) for row, cell in found}
    return {row: numbers for row, numbers in lists.items() if numbers is not None}
