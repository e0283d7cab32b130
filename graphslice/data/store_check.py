"""Validation of a store's contents, row by row, when it is opened.

The compiled code has no bounds checks and relies on it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.chem.molecule_check import molecule_fault
from graphslice.config import ATOM, BOND
from graphslice.data.arrow import list_offsets, number_values, valid_rows
from graphslice.data.splits import SPLITS
from graphslice.data.store_schema import atom_bond_column, descriptor_column
from graphslice.hardware import cores

# Each thread holds a record batch in memory, about 20 MB.
_MOST_THREADS = 4


def check_contents(path: Path, batches: int, max_atoms: int) -> None:
    """Validate every row of a store, in parallel over record batches.

    The batches are read from the file, not through the memory map, so that a large file does not fill the memory.

    Args:
        path: the file, whose schema was validated.
        batches: number of record batches.
        max_atoms: maximum number of atoms of a molecule, from the metadata of the store.

    Raises:
        ValueError, pyarrow.ArrowException: if the compiled code must not read the contents.
    """
    with ThreadPoolExecutor(max(1, min(batches, cores(), _MOST_THREADS))) as pool:
        list(pool.map(lambda number: _check_batch(path, number, max_atoms), range(batches)))


def _check_batch(path: Path, number: int, max_atoms: int) -> None:
    with pa.OSFile(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(number)
    _check_columns(batch)
    atoms, bonds = batch.column("atoms"), batch.column("bonds")
    begins, ends, kinds = (number_values(bonds.values.field(name)) for name in ("begin", "end", "kind"))
    features = number_values(atoms.values.values)
    if molecule_fault(list_offsets(atoms), list_offsets(bonds), features, begins, ends, kinds, max_atoms) is not None:
        raise ValueError("a molecule is invalid")


def _check_columns(batch: pa.RecordBatch) -> None:
    """Check the columns: buffer sizes and dictionary indices, nulls, splits, lengths of lists of atoms and bonds."""
    batch.validate()
    names, order_level = batch.schema.names, batch.schema.metadata[b"graphslice.level"].decode()
    levels = {atom_bond_column(ATOM): ATOM, atom_bond_column(BOND): BOND, "order": order_level}
    lists = [name for name in levels if name in names]
    for name in ("smiles", "error", "split", *lists):
        batch.column(name).validate(full=True)
    atoms, bonds, splits = batch.column("atoms"), batch.column("bonds"), batch.column("split").dictionary
    values = [batch.column("identity"), batch.column("family")]
    values += [atoms.values, atoms.values.values, bonds.values, *bonds.values.flatten()]
    if "targets" in names:
        values.append(batch.column("targets"))
    for column in (batch.column(name) for name in names if name.startswith(descriptor_column(""))):
        values += [column, column.values] if pa.types.is_fixed_size_list(column.type) else [column]
    for column in (batch.column(name) for name in lists):
        values += [column, column.values, column.values.values]
    if any(array.null_count for array in values):
        raise ValueError("null values in molecules, hashes, targets or descriptors")
    if splits.to_pylist() != list(SPLITS)[: len(splits)]:
        raise ValueError("unknown splits")
    for column in (atoms, bonds):
        if np.diff(list_offsets(column))[~valid_rows(column)].any():
            raise ValueError("a row that is null has atoms or bonds")
    for name in lists:
        lengths, counts = (
            np.diff(list_offsets(c)) for c in (batch.column(name), atoms if levels[name] == ATOM else bonds)
        )
        if (lengths != counts)[(lengths > 0) | (name == "order")].any():  # rows may have no labels
            raise ValueError(f"a list of {name} has not the length of its molecule")
        if name == "order":
            places = number_values(batch.column(name).values.values).reshape(-1, 2)[:, 0]
            if (places >= np.repeat(counts, lengths)).any():
                raise ValueError("an order names atoms or bonds that a molecule does not have")
