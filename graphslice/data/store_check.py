"""Validation of a store's contents, once, when it is opened: the compiled code has no bounds checks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from graphslice.chem.molecule_check import invalid_molecule
from graphslice.data.arrow import list_offsets, number_values
from graphslice.hardware import cores

# Each thread holds a record batch in memory, about 20 MB.
_MOST_THREADS = 4


def check_contents(path: Path, batches: int, max_atoms: int) -> None:
    """Raise an exception if the compiled code must not read the contents of a file.

    The record batches are read from the file, not through the memory map, so that a large file does not fill the
    memory.
    """

    def check(number: int) -> None:
        with pa.OSFile(str(path)) as file:
            batch = pa.ipc.open_file(file).get_batch(number)
        batch.validate(full=True)
        atoms, bonds = batch.column("atoms"), batch.column("bonds")
        offsets = list_offsets(atoms), list_offsets(bonds)
        begins, ends, kinds = map(number_values, bonds.values.flatten())
        row = invalid_molecule(*offsets, number_values(atoms.values.values), begins, ends, kinds, max_atoms)
        if row is not None:
            raise ValueError(f"row {row} of record batch {number} is not a valid molecule")

    with ThreadPoolExecutor(max(1, min(batches, cores(), _MOST_THREADS))) as pool:
        list(pool.map(check, range(batches)))
