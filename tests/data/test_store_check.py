"""Stores with invalid contents."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from graphslice import InputError
from graphslice.chem.hashes import MoleculeHashes
from graphslice.chem.molecule import MolArrays, smiles_to_graph
from graphslice.data.splits import SPLITS
from graphslice.data.store import GraphStore, StoreInfo, column_starts, record_batch

SMILES = ["CCO", "oops", "c1ccccc1O", "C"]
INFO = StoreInfo("some data", "", ("y",))


def arrays() -> MolArrays:
    return MolArrays.from_graphs([smiles_to_graph(text) for text in SMILES if text != "oops"])


def batch_of(molecules: MolArrays, info: StoreInfo = INFO, **columns) -> pa.RecordBatch:
    rows = len(molecules)
    columns |= {"smiles": ["C"] * rows, "targets": np.zeros((rows, 1))}
    columns["keys"] = MoleculeHashes(*np.zeros((2, rows), np.uint64))
    return record_batch(info.schema(), molecules, [None] * rows, **columns)


def write(path: Path, *batches: pa.RecordBatch, metadata: dict | None = None, **options) -> Path:
    schema = batches[0].schema.with_metadata({**INFO.to_metadata(), **(metadata or {})})
    with pa.ipc.new_file(str(path), schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    return path


def replaced(column: str, array: pa.Array) -> pa.RecordBatch:
    batch = batch_of(arrays())
    at = batch.schema.get_field_index(column)
    return batch.set_column(at, batch.schema.field(at).with_type(array.type), array)


def changed(name: str, index: tuple, value: int | tuple) -> pa.RecordBatch:
    molecules = arrays()
    getattr(molecules, name)[index] = value
    return batch_of(molecules)


SMALL = replace(INFO, max_atoms=6)
DAMAGED = {
    "atom out of range": lambda path: write(path, changed("bonds", (8, 1), 9)),
    "repeated bond": lambda path: write(path, changed("bonds", (slice(2),), (0, 2))),
    "unknown bond type": lambda path: write(path, changed("bond_type_ids", (2,), 60)),
    "pointers out of order": lambda path: write(path, changed("atom_ptr", (1,), 11)),
    "more than max_atoms": lambda path: write(path, batch_of(arrays(), SMALL), metadata=SMALL.to_metadata()),
    "column of another type": lambda path: write(path, replaced("error", pa.nulls(3, pa.int64()))),
    "missing column": lambda path: write(path, batch_of(arrays()).drop_columns("error")),
    "split out of range": lambda path: write(
        path,
        replaced("split", pa.DictionaryArray.from_arrays(pa.array([0, 5, 0], pa.int8()), pa.array(SPLITS), safe=False)),
    ),
    "compressed columns": lambda path: write(path, batch_of(arrays()), compression="zstd"),
    "short record batch": lambda path: write(path, batch_of(arrays()), batch_of(arrays())),
    "metadata": lambda path: write(path, batch_of(arrays()), metadata={"graphslice.info": "{}"}),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_stores_are_rejected(damage, tmp_path):
    DAMAGED[damage](tmp_path / "s.arrow")
    with pytest.raises(InputError, match=r"s\.arrow is not a preprocessed dataset"):
        GraphStore.open(tmp_path / "s.arrow")


ATOM_BOND_INFO = replace(INFO, atom_targets=("charge", "spin"), bond_targets=("order",))


def with_atom_bond_labels(atoms: list, bonds: list) -> pa.RecordBatch:
    """Three molecules, with 3, 7 and 1 atoms and 2, 7 and 0 bonds, and atom- and bond-level labels."""
    schema, plain = ATOM_BOND_INFO.schema(), batch_of(arrays())
    columns = [
        pa.array(values, schema.field(f"{level} targets").type) for level, values in (("atom", atoms), ("bond", bonds))
    ]
    return pa.RecordBatch.from_arrays([*plain.columns, *columns], schema=schema)


def test_atom_and_bond_labels_are_read(tmp_path):
    nan = float("nan")
    batch = with_atom_bond_labels([[[1, 2], [3, nan], [5, 6]], [], [[7, 8]]], [[], [[float(i)] for i in range(7)], []])
    store = GraphStore.open(write(tmp_path / "s.arrow", batch, metadata=ATOM_BOND_INFO.to_metadata()))
    assert store.info == ATOM_BOND_INFO and store.info.atom_bond_targets == {
        "atom": ("charge", "spin"),
        "bond": ("order",),
    }
    atoms, bonds = store.atom_bond_labels("atom"), store.atom_bond_labels("bond")
    np.testing.assert_array_equal(atoms.values, [[1, 2], [3, nan], [5, 6], [7, 8]])
    assert atoms.ptr.tolist() == [0, 3, 3, 4] and atoms.names == ("charge", "spin")
    np.testing.assert_array_equal(bonds[np.array([1])][:, 0], np.arange(7.0))
    assert bonds.ptr.tolist() == [0, 0, 7, 7]


def test_misaligned_columns_raise(tmp_path):
    content = write(tmp_path / "s.arrow", batch_of(arrays())).read_bytes()
    outer = pa.py_buffer(bytes(1) + content)
    batch = pa.ipc.open_file(outer[1:]).get_batch(0)
    with pytest.raises(ValueError, match="misaligned"):
        column_starts(batch, outer)
