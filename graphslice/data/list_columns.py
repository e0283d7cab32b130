"""Columns of lists of numbers: labels of atoms or bonds, and which of the two they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from graphslice.chem.parse import MAX_ATOMS, MoleculeError, parse_molecule
from graphslice.chem.quiet import rdkit_messages_blocked
from graphslice.config import ATOM, BOND
from graphslice.data.labels import pluralize
from graphslice.data.parse_cells import column_cells, list_or_none
from graphslice.data.parse_rows import parse_lists
from graphslice.errors import InputError

# Number of rows from which the level (atom or bond) of a column of lists is inferred.
_SAMPLE_ROWS = 50


@dataclass
class ListLengths:
    """Lengths of the lists of a column and sizes of their molecules, from which the level is inferred.

    Attributes:
        sizes: for each sampled list, its length and the numbers of atoms and bonds of its molecule.
    """

    sizes: list[tuple[int, int, int]] = field(default_factory=list)

    def look(self, smiles: Iterable[object], lists: Iterable[np.ndarray]) -> None:
        """Add lists and their SMILES to the sample, unless it is large enough to infer the level."""
        with rdkit_messages_blocked():
            for text, numbers in zip(smiles, lists, strict=True):
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
        """Return the level of the lists of a target; raise :class:`InputError` if it is not clear."""
        if len(levels := self.levels) == 1:
            return levels[0]
        sizes = [f"{n} for {pluralize(atoms, 'atom')} and {pluralize(bonds, 'bond')}" for n, atoms, bonds in self.sizes]
        raise InputError(
            f"the lengths of the lists of {target!r} do not say whether it is a target of atoms or of bonds: the first "
            f"is {sizes[0] if sizes else 'in a row without a valid SMILES'}"
        )


def list_cells(chunk: pa.Table, column: str) -> dict[int, np.ndarray]:
    """Return the lists of numbers in a column, by row of the chunk."""
    if pa.types.is_primitive(chunk.schema.field(column).type):
        return {}
    cells = [cell if not isinstance(cell, str) or "[" in cell else None for cell in column_cells(chunk, column)]
    lists = {row: list_or_none(cell) for row, cell in enumerate(cells)}
    return {row: numbers for row, numbers in lists.items() if numbers is not None}


def numbers_of_lists(chunks: Sequence[pa.Table], targets: Sequence[str], name: str) -> pa.Table:
    """Return the numbers of all lists, one per cell of a table; raise :class:`InputError` if there are none."""
    rows = [parse_lists(chunk, targets)[0].values for chunk in chunks]
    values = np.concatenate([np.empty((0, len(targets))), *rows])
    if not len(values):
        raise InputError(f"{name}: no row of {', '.join(targets)} has a list of numbers, such as [0.1, -0.2, 0.1]")
    return pa.table(list(values.T), names=list(targets))
