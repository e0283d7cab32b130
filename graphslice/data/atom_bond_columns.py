"""Atom-level and bond-level labels from tables: lists in cells, a number for each atom or bond of the row's SMILES."""

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

# Number of rows from which the level (atom or bond) of a column of lists is inferred.
_SAMPLE_ROWS = 50


def read_atom_bond_labels(
    chunks: Sequence[pa.Table], targets: Sequence[str], level: str
) -> tuple[AtomBondLabels, dict[int, str], list[pa.Table]]:
    """Read atom-level or bond-level labels: the lists in the target columns of a table.

    Args:
        chunks: all rows of the table.
        targets: names of T columns.
        level: ``atom`` or ``bond``.

    Returns:
        The labels; the reason, by row, for rows whose lists cannot be parsed; the chunks with each list replaced by its
        mean.
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
    """Parse T cells to ``float64 [n, T]``; raise ValueError, with the reason, for invalid lists."""
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
        examples = " and ".join(f"{target!r} has {pluralize(n, 'number')}" for n, target in list(lengths.items())[:2])
        raise ValueError(f"targets differ in length: {examples}")
    length = next(iter(lengths), 0)
    columns = [np.full(length, np.nan) if numbers is None else numbers for numbers in lists]
    return np.stack(columns, axis=1) if columns else np.empty((0, 0))


def _lists_to_means(chunks: Sequence[pa.Table], targets: Sequence[str], means: np.ndarray) -> list[pa.Table]:
    converted, begin = [], 0
    for chunk in chunks:
        for t, target in enumerate(targets):
            column = number_array(np.ascontiguousarray(means[begin : begin + len(chunk), t]))
            chunk = chunk.set_column(chunk.column_names.index(target), target, column)
        converted.append(chunk)
        begin += len(chunk)
    return converted


def infer_atom_bond_tasks(labels: AtomBondLabels, targets: Sequence[str], config: DataConfig, name: str) -> list[Task]:
    """Infer the task of each atom- or bond-level target, as :func:`~graphslice.data.infer_tasks.infer_tasks` does.

    Args:
        labels: the labels.
        targets: names of the targets.
        config: data settings of the user.
        name: name of the table, for messages.

    Raises:
        InputError: if there are no lists of numbers, or a target cannot be trained on.
    """
    if not len(labels.values):
        raise InputError(f"{name}: no row of {', '.join(targets)} has a list of numbers, such as [0.1, -0.2, 0.1]")
    return infer_tasks_from_values(labels.values, targets, config, name)


def encode_classes(labels: AtomBondLabels, tasks: Sequence[Task]) -> tuple[AtomBondLabels, dict[int, str]]:
    """Replace the numbers of classification targets by class indices.

    Args:
        labels: the labels.
        tasks: task of each target.

    Returns:
        The encoded labels; the reason, by row, for rows with a number that is not a class.
    """
    values, rejected = labels.values.copy(), {}
    for t, task in enumerate(tasks):
        if not task.classes:
            continue
        known = np.flatnonzero(~np.isnan(labels.values[:, t]))
        indices = class_indices(task.classes)
        encoded = np.array([indices.get(number_key(value), np.nan) for value in labels.values[known, t].tolist()])
        values[known, t] = encoded
        for position in known[np.isnan(encoded)].tolist():
            row = int(np.searchsorted(labels.ptr, position, side="right")) - 1
            value = labels.values[position, t]
            rejected[row] = f"target {task.name!r} has a number that is none of its classes: {value:g}"
    return replace(labels, values=values), rejected


@dataclass
class ListLengths:
    """Lengths of the lists of a column and sizes of their molecules, from which the level is inferred.

    Attributes:
        sizes: for each sampled list, its length and the numbers of atoms and bonds of its molecule.
        lists: true if there was any list, even with an invalid SMILES.
    """

    sizes: list[tuple[int, int, int]] = field(default_factory=list)
    lists: bool = False

    def look(self, smiles: Iterable[object], lists: Iterable[np.ndarray]) -> None:
        """Add lists and their SMILES to the sample, unless it is large enough to infer the level."""
        with rdBase.BlockLogs():
            for text, numbers in zip(smiles, lists, strict=True):
                self.lists = True
                if len(self.sizes) >= _SAMPLE_ROWS and len(self.levels) == 1:
                    return
                with suppress(MoleculeError):
                    mol = parse_molecule(str(text), MAX_ATOMS)
                    self.sizes.append((len(numbers), mol.GetNumAtoms(), mol.GetNumBonds()))

    @property
    def levels(self) -> list[str]:
        """Levels that fit most of the lists (single lists may be wrong): atom, bond, both or neither."""
        fits = {level: sum(n[0] == n[column] for n in self.sizes) for level, column in ((ATOM, 1), (BOND, 2))}
        return [level for level, count in fits.items() if count and count == max(fits.values())]

    def level(self, target: str) -> str:
        """Return the level of the lists.

        Args:
            target: name of the column, for messages.

        Raises:
            InputError: if the level is ambiguous or unknown.
        """
        if len(levels := self.levels) == 1:
            return levels[0]
        if not self.sizes:
            raise InputError(f"the lists of {target!r} are in rows without a valid SMILES")
        subject = f"the lists of {target!r} ({self.first}) "
        if levels:
            raise InputError(f"{subject}fit the numbers of atoms and of bonds equally well: the level is ambiguous")
        raise InputError(f"{subject}fit neither the numbers of atoms of their molecules nor those of bonds")

    @property
    def first(self) -> str:
        """Description of the first list."""
        if not self.sizes:
            return "in rows without a valid SMILES"
        numbers, atoms, bonds = self.sizes[0]
        return f"the first has {numbers}, its molecule {pluralize(atoms, 'atom')} and {pluralize(bonds, 'bond')}"


def reject_lists(chunks: Sequence[pa.Table], smiles: str, targets: Sequence[str], name: str) -> None:
    """Raise :class:`InputError` if a molecule-level target holds lists; the message names their level.

    Args:
        chunks: all rows of the table.
        smiles: name of the SMILES column.
        targets: names of the target columns.
        name: name of the table, for messages.
    """
    for target in targets:
        lengths = ListLengths()
        for chunk in chunks:
            lists = list_cells(chunk, target)
            lengths.look(column_cells(chunk, smiles, lists), lists.values())
            if lengths.lists:
                break
        if lengths.lists:
            options = " or ".join(f"--level {level}" for level in lengths.levels or (ATOM, BOND))
            raise InputError(f"{name}: the target {target!r} holds lists of numbers ({lengths.first}): give {options}")


def list_cells(chunk: pa.Table, column: str) -> dict[int, np.ndarray]:
    """Return the lists of numbers in a column, by row of the chunk."""
    cells = chunk.column(column)
    kind = cells.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return {}
    if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        rows = np.flatnonzero(pc.match_substring(cells, "[").fill_null(False).to_numpy()).tolist()
    else:
        rows = np.flatnonzero(cells.is_valid().to_numpy()).tolist()
    rows_and_cells = zip(rows, column_cells(chunk, column, rows), strict=True)
    lists = {row: list_or_none(cell) for row, cell in rows_and_cells}
    return {row: numbers for row, numbers in lists.items() if numbers is not None}
