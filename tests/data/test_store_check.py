"""Stores with invalid contents."""

from __future__ import annotations

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


def assert_damaged(path: Path) -> None:
    with pytest.raises(InputError, match=f"{path} is not a preprocessed dataset, or is damaged"):
        GraphStore.open(path)


def test_valid_store_opens(tmp_path):
    store = GraphStore.open(write(tmp_path / "s.arrow", batch_of(arrays())))
    assert [graph.num_atoms for graph in store] == [3, 7, 1]


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [("bonds", (8, 1), 9), ("bonds", (1,), (0, 2)), ("bond_type_ids", (2,), 60), ("atom_ptr", (1,), 11)],
)
def test_invalid_molecules_raise(name, index, value, tmp_path):
    changed = arrays()
    if name == "bonds" and len(index) == 1:
        changed.bonds[0] = value  # one of the two bonds of the first molecule
    getattr(changed, name)[index] = value
    assert_damaged(write(tmp_path / "s.arrow", batch_of(changed)))


def test_more_atoms_than_max_atoms_raise(tmp_path):
    info = replace(INFO, max_atoms=6)
    assert_damaged(write(tmp_path / "s.arrow", batch_of(arrays(), info), metadata=info.to_metadata()))


def replaced(column: str, array: pa.Array) -> pa.RecordBatch:
    batch = batch_of(arrays())
    at = batch.schema.get_field_index(column)
    return batch.set_column(at, batch.schema.field(at).with_type(array.type), array)


def test_invalid_columns_raise(tmp_path):
    assert_damaged(write(tmp_path / "s.arrow", replaced("error", pa.nulls(3, pa.int64()))))
    assert_damaged(write(tmp_path / "s.arrow", batch_of(arrays()).drop_columns("error")))


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


def test_fewer_splits_are_accepted(tmp_path):
    split = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["train", "valid"]))
    store = GraphStore.open(write(tmp_path / "s.arrow", replaced("split", split)))
    assert store.split.tolist() == [0, 1, -1]


def test_invalid_split_index_raises(tmp_path):
    numbers = pa.array([0, 5, 0], pa.int8())
    split = pa.DictionaryArray.from_arrays(numbers, pa.array(SPLITS), safe=False)
    assert_damaged(write(tmp_path / "s.arrow", replaced("split", split)))


def test_compressed_columns_raise(tmp_path):
    assert_damaged(write(tmp_path / "s.arrow", batch_of(arrays()), compression="zstd"))


def test_record_batches_of_the_wrong_size_raise(tmp_path):
    batch = batch_of(arrays())
    assert_damaged(write(tmp_path / "s.arrow", batch, batch))
    assert len(GraphStore.open(write(tmp_path / "none.arrow", batch[:0])).sizes) == 0


@pytest.mark.parametrize("info", ["x", "{}"])
def test_invalid_metadata_raises(info, tmp_path):
    assert_damaged(write(tmp_path / "s.arrow", batch_of(arrays()), metadata={"graphslice.info": info}))


def test_misaligned_columns_raise(tmp_path):
    content = write(tmp_path / "s.arrow", batch_of(arrays())).read_bytes()
    outer = pa.py_buffer(bytes(1) + content)
    batch = pa.ipc.open_file(outer[1:]).get_batch(0)
    with pytest.raises(ValueError, match="misaligned"):
        column_starts(batch, outer)
