"""Compiled code that copies molecules out of the memory map of a store."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import njit

# Order of the byte offsets that column_starts returns.
ATOM_OFFSETS, ATOM_VALUES, BOND_OFFSETS, BOND_BEGINS, BOND_ENDS, BOND_KINDS = range(6)
NUM_STARTS = 6
# Item sizes of these columns in bytes; the columns must be aligned to them.
_ITEM_BYTES = (4, 1, 4, 2, 2, 1)


def column_starts(batch: pa.RecordBatch, file: pa.Buffer) -> list[int]:
    """Compute the byte offsets, in the file, of the columns that :func:`copy_rows` reads.

    Args:
        batch: a record batch of a store.
        file: memory map of the file.

    Returns:
        ``NUM_STARTS`` offsets.

    Raises:
        ValueError: if a column is compressed, or not aligned to the size of its items.
    """
    atoms, bonds = batch.column("atoms"), batch.column("bonds")
    buffers = [
        atoms.buffers()[1],
        atoms.values.values.buffers()[1],
        bonds.buffers()[1],
        *(bonds.values.field(name).buffers()[1] for name in ("begin", "end", "kind")),
    ]
    starts = [buffer.address - file.address if buffer is not None and buffer.size else 0 for buffer in buffers]
    for start, buffer, size in zip(starts, buffers, _ITEM_BYTES, strict=True):
        end = start + (0 if buffer is None else buffer.size)
        if start % size or not 0 <= start <= end <= file.size:
            raise ValueError("a column is compressed or misaligned")
    return starts


@njit(cache=True, nogil=True)
def copy_rows(data, starts, batch_rows, rows, features):
    """Copy molecules out of a store, padded to the largest.

    There are no bounds checks: the contents of a store are checked when it is opened.

    Args:
        data: ``uint8``, the bytes of a store.
        starts: ``int64 [record batches, 6]``, byte offsets computed by :func:`column_starts`.
        batch_rows: rows of every record batch except the last.
        rows: ``int64 [B]``, rows of molecules with at least one atom.
        features: number of features of an atom.

    Returns:
        As :meth:`graphslice.data.store.GraphStore.gather`.
    """
    ints = data[: len(data) // 4 * 4].view(np.int32)
    shorts = data[: len(data) // 2 * 2].view(np.uint16)
    count = len(rows)
    atom_ptr, bond_ptr = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    width = 1
    for b in range(count):
        batch, row = rows[b] // batch_rows, rows[b] % batch_rows
        at = starts[batch, ATOM_OFFSETS] // 4 + row
        size = ints[at + 1] - ints[at]
        width = max(width, size)
        atom_ptr[b + 1] = atom_ptr[b] + size
        at = starts[batch, BOND_OFFSETS] // 4 + row
        bond_ptr[b + 1] = bond_ptr[b] + ints[at + 1] - ints[at]
    atoms = np.zeros((count, width, features), np.uint8)
    degrees = np.zeros((count, width), np.uint8)
    bonds = np.empty((bond_ptr[count], 2), np.int32)
    bond_type_ids = np.empty(bond_ptr[count], np.uint8)
    for b in range(count):
        batch, row = rows[b] // batch_rows, rows[b] % batch_rows
        first = starts[batch, ATOM_VALUES] + features * ints[starts[batch, ATOM_OFFSETS] // 4 + row]
        flat = atoms[b].reshape(-1)
        for k in range(features * (atom_ptr[b + 1] - atom_ptr[b])):
            flat[k] = data[first + k]
        first = ints[starts[batch, BOND_OFFSETS] // 4 + row]
        begins, ends = starts[batch, BOND_BEGINS] // 2 + first, starts[batch, BOND_ENDS] // 2 + first
        kinds = starts[batch, BOND_KINDS] + first
        for m in range(bond_ptr[b + 1] - bond_ptr[b]):
            to = bond_ptr[b] + m
            bonds[to, 0], bonds[to, 1], bond_type_ids[to] = shorts[begins + m], shorts[ends + m], data[kinds + m]
            degrees[b, shorts[begins + m]] += 1
            degrees[b, shorts[ends + m]] += 1
    return atom_ptr, bond_ptr, atoms, degrees, bonds, bond_type_ids
