"""Validation of a store's contents, row by row, when it is opened.

The compiled code has no bounds checks and relies on it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.chem.molecule_check import molecule_fault
from graphslice.config import ATOM, LEVELS
from graphslice.data.arrow import list_offsets, number_values, valid_rows
from graphslice.data.splits import SPLITS
from graphslice.data.store_schema import atom_bond_column, descriptor_column
from graphslice.hardware import cores

# Each thread holds a record batch in memory, about 20 MB.
_MOST_THREADS = 4


class StoreFault(ValueError):
    """Invalid contents of a store; its message is a clause."""


def check_contents(path: Path, batches: int, batch_rows: int, max_atoms: int) -> None:
    """Validate every row of a store, in parallel over record batches.

    The batches are read from the file, not through the memory map, so that a large file does not fill the memory.

    Args:
        path: the file, whose schema was validated.
        batches: number of record batches.
        batch_rows: rows of every record batch except the last.
        max_atoms: maximum number of atoms of a molecule, from the metadata of the store.

    Raises:
        StoreFault: if the compiled code must not read the contents.
    """
    if batches:
        with ThreadPoolExecutor(min(batches, cores(), _MOST_THREADS)) as pool:
            for _ in pool.map(
                lambda number: _check_batch(path, number, number * batch_rows, max_atoms), range(batches)
            ):
                pass


def _check_batch(path: Path, number: int, first_row: int, max_atoms: int) -> None:
    with pa.OSFile(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(number)
    _check_columns(batch, first_row)
    fault = _molecule_fault(batch, max_atoms)
    if fault is not None:
        raise StoreFault(f"row {first_row + fault[0] + 1} has {fault[1]}")


def _check_columns(batch: pa.RecordBatch, first_row: int) -> None:
    """Check the columns: buffer sizes and dictionary indices, nulls, splits, number of atom- and bond-level targets."""
    batch.validate()
    atoms, bonds, split = batch.column("atoms"), batch.column("bonds"), batch.column("split")
    for column in (batch.column("smiles"), batch.column("error"), split):
        column.validate(full=True)
    values = [batch.column("identity"), batch.column("family")]
    values += [atoms.values, atoms.values.values, bonds.values, *bonds.values.flatten()]
    if "targets" in batch.schema.names:
        values.append(batch.column("targets"))
    for column in (batch.column(name) for name in batch.schema.names if name.startswith(descriptor_column(""))):
        values += [column, column.values] if pa.types.is_fixed_size_list(column.type) else [column]
    names, order_level = batch.schema.names, batch.schema.metadata.get(b"graphslice.level", b"").decode()
    lists = [(f"{level} targets", level, atom_bond_column(level)) for level in LEVELS]
    lists = [one for one in [*lists, ("places in its order", order_level, "order")] if one[-1] in names]
    for column in (batch.column(name) for *_, name in lists):
        column.validate(full=True)
        values += [column, column.values, column.values.values]
    if any(array.null_count for array in values):
        raise StoreFault("it has null values in molecules, hashes, targets or descriptors")
    if split.dictionary.to_pylist() != list(SPLITS)[: len(split.dictionary)]:
        raise StoreFault(f"its splits are not {', '.join(SPLITS)}")
    for column, name in ((atoms, "atoms"), (bonds, "bonds")):
        present = np.diff(list_offsets(column)) > 0
        if (wrong := present & ~valid_rows(column)).any():
            raise StoreFault(f"row {first_row + int(wrong.argmax()) + 1} is null but has {name}")
    for noun, level, name in lists:
        lengths, counts = (np.diff(list_offsets(c)) for c in (batch.column(name), atoms if level == ATOM else bonds))
        optional = (lengths == 0) & (name != "order")  # rows may have no labels
        if (wrong := (lengths != counts) & ~optional).any():
            row = first_row + int(wrong.argmax()) + 1
            raise StoreFault(f"the number of {noun} in row {row} differs from its number of {level}s")
        if name == "order":
            places = number_values(batch.column(name).values.values).reshape(-1, 2)[:, 0]
            if (places >= np.repeat(counts, lengths)).any():
                raise StoreFault(f"its order names {level}s that a molecule does not have")


def _molecule_fault(batch: pa.RecordBatch, max_atoms: int) -> tuple[int, str] | None:
    atoms, bonds = batch.column("atoms"), batch.column("bonds")
    begins, ends, kinds = (number_values(bonds.values.field(name)) for name in ("begin", "end", "kind"))
    features = number_values(atoms.values.values)
    return molecule_fault(list_offsets(atoms), list_offsets(bonds), features, begins, ends, kinds, max_atoms)
