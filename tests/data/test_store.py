import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from graphslice import MoleculeError, MolGraph, smiles_to_graph
from graphslice.chem.hashes import hash_molecules
from graphslice.chem.molecule import read_smiles
from graphslice.data.dataset import LabelledDataset
from graphslice.data.labels import Labels
from graphslice.data.preprocess import build_store
from graphslice.data.splits import NO_SPLIT
from graphslice.data.store import GraphStore, StoreInfo
from graphslice.errors import InputError

SMILES = ["c1ccccc1O", "oops", "C", "CC(=O)[O-].[Na+]", "", "C" * 90, "C12C3C4C1C5C2C3C45", "[H+]"]
BAD = [1, 4]


def rows(smiles: list[str], targets: int = 1, faults: dict[int, str] | None = None) -> LabelledDataset:
    values = np.arange(len(smiles) * targets, dtype=float).reshape(len(smiles), targets)
    values[::3] = np.nan
    split = (np.arange(len(smiles)) % 4 - 1).astype(np.int8)
    return LabelledDataset("", smiles, Labels.of_molecules(values), [], faults or {}, split)


def build(path, smiles: list[str] | None = None, targets: tuple[str, ...] = ("y",), **more) -> GraphStore:
    chunks = [rows(SMILES if smiles is None else smiles, len(targets), **more)]
    return build_store(path, chunks, StoreInfo("some data", "", targets), workers=1)


def same(first: MolGraph, second: MolGraph) -> bool:
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in MolGraph.__slots__)


@pytest.fixture
def small_batches(monkeypatch):
    """Three rows per record batch."""
    monkeypatch.setattr("graphslice.data.store.BATCH_ROWS", 3)
    monkeypatch.setattr("graphslice.data.preprocess.BATCH_ROWS", 3)
    monkeypatch.setattr("graphslice.data.dataset.BATCH_ROWS", 3)


@pytest.fixture(params=["memory", "file", "batches"])
def stored(request, tmp_path):
    if request.param == "batches":
        request.getfixturevalue("small_batches")
    if request.param == "memory":
        return GraphStore.from_arrays(*read_smiles(SMILES)[:2])
    store = build(tmp_path / "s.arrow")
    assert [batch.num_rows for batch in store.batches] == ([3, 3, 2] if request.param == "batches" else [8])
    return store


def test_items_match_the_molecules(stored):
    assert len(stored) == len(SMILES)
    for row, smiles in enumerate(SMILES):
        if row in BAD:
            with pytest.raises(MoleculeError, match=r"not a valid molecule|empty"):
                stored[row]
            continue
        graph, expected = stored[row], smiles_to_graph(smiles)
        assert same(graph, expected)
        for name in MolGraph.__slots__:
            assert getattr(graph, name).dtype == getattr(expected, name).dtype
            assert getattr(graph, name).shape == getattr(expected, name).shape
        assert same(stored[np.int64(row)], expected)


def test_errors_and_sizes_by_row(stored):
    assert sorted(stored.errors) == BAD and stored.errors[4] == "empty SMILES"
    assert stored.sizes.dtype == np.int32
    assert stored.sizes.tolist() == [7, 0, 1, 5, 0, 90, 8, 1]


@pytest.mark.parametrize("chosen", [[0], [2], [7, 2], [5, 0, 3, 6, 7, 2, 0, 0], []])
def test_gather_matches_items(stored, chosen):
    atom_ptr, bond_ptr, atoms, degrees, bonds, bond_type_ids = stored.gather(np.array(chosen, np.int64))
    assert len(atom_ptr) == len(bond_ptr) == len(chosen) + 1
    assert atoms.shape == (len(chosen), max([smiles_to_graph(SMILES[row]).num_atoms for row in chosen], default=1), 9)
    for b, row in enumerate(chosen):
        graph = smiles_to_graph(SMILES[row])
        n, own = graph.num_atoms, slice(bond_ptr[b], bond_ptr[b + 1])
        assert atom_ptr[b + 1] - atom_ptr[b] == n
        np.testing.assert_array_equal(atoms[b, :n], graph.atoms)
        np.testing.assert_array_equal(bonds[own], graph.bonds)
        types = bond_type_ids[own]
        features = np.stack([types // 12, types // 2 % 6, types % 2], axis=1)
        np.testing.assert_array_equal(features, graph.bond_features)
        np.testing.assert_array_equal(degrees[b, :n], np.bincount(graph.bonds.reshape(-1), minlength=n))
        assert not atoms[b, n:].any() and not degrees[b, n:].any()


@pytest.mark.parametrize("targets", [("y",), ("y", "dipole, D", "µ"), ()])
@pytest.mark.parametrize("batches", [False, True])
def test_labels_and_splits_are_kept(targets, batches, request, tmp_path):
    if batches:
        request.getfixturevalue("small_batches")
    store, expected = build(tmp_path / "s.arrow", targets=targets), rows(SMILES, len(targets))
    assert store.info.targets == targets
    np.testing.assert_array_equal(store.targets, expected.targets, strict=True)
    np.testing.assert_array_equal(store.split, [NO_SPLIT, 0, 1, 2, NO_SPLIT, 0, 1, 2])
    assert store.split.dtype == np.int8 and store.name == str(tmp_path / "s.arrow")


def test_row_with_a_rejected_label_keeps_its_molecule(tmp_path):
    store = build(tmp_path / "s.arrow", faults={0: "no number", 1: "no number"})
    assert store[0].num_atoms == 7 and store.errors[0] == "no number" and "no number" not in store.errors[1]


@pytest.mark.parametrize("smiles", [[], ["oops"], ["C"], ["oops", "C"]])
def test_stores_of_few_molecules(smiles, tmp_path):
    stores = [GraphStore.from_arrays(*read_smiles(smiles)[:2])]
    if smiles == ["oops"]:
        with pytest.raises(InputError, match="no row can be used; the first: not a valid"):
            build(tmp_path / "s.arrow", smiles)
    else:
        stores.append(build(tmp_path / "s.arrow", smiles))
    for store in stores:
        assert len(store) == len(smiles) == len(store.sizes) == len(store.split)
        assert store.targets.shape == (len(smiles), len(store.info.targets))
        assert sorted(store.errors) == [row for row, text in enumerate(smiles) if text == "oops"]
        assert "C" not in smiles or store[len(smiles) - 1].num_atoms == 1
        assert len(store.gather(np.array([], np.int64))[2]) == 0


def test_file_is_readable_by_pandas(tmp_path, small_batches):
    build(tmp_path / "s.arrow")
    table = pd.read_feather(tmp_path / "s.arrow")
    assert (
        list(table) == ["smiles", "atoms", "bonds", "error", "targets", "split", "identity", "family"]
        and len(table) == 8
    )
    graph = smiles_to_graph(SMILES[0])
    np.testing.assert_array_equal(np.stack(table["atoms"][0]), graph.atoms)
    np.testing.assert_array_equal([(b["begin"], b["end"]) for b in table["bonds"][0]], graph.bonds)
    kinds = [(b["kind"] // 12, b["kind"] // 2 % 6, b["kind"] % 2) for b in table["bonds"][0]]
    np.testing.assert_array_equal(kinds, graph.bond_features)
    assert table["atoms"].isna().tolist() == [row in BAD for row in range(8)]
    assert table["error"].notna().tolist() == [row in BAD for row in range(8)]
    assert np.isnan(table["targets"][0][0]) and table["targets"][1].tolist() == [1.0]
    assert table["split"].tolist()[1:4] == ["train", "valid", "test"] and table["split"].isna()[0]


def test_smiles_and_hashes_are_stored(tmp_path, small_batches):
    store = build(tmp_path / "s.arrow", ["OCC", "oops", "", "CCO", "C"])
    with pa.ipc.open_file(str(tmp_path / "s.arrow")) as reader:
        assert StoreInfo.from_metadata(reader.schema.metadata) == store.info
    assert store.smiles[3:] == ["CCO", "C"] and store.smiles[-5] == "OCC" and len(store.smiles) == 5
    assert list(store.smiles) == ["OCC", "oops", "", "CCO", "C"]
    assert store.keys is not None
    expected = hash_molecules(read_smiles(["OCC", "C"])[0])
    for name in ("identity", "family"):
        (ethanol, methane), stored = getattr(expected, name).tolist(), getattr(store.keys, name).tolist()
        assert stored[0] == stored[3] == ethanol and stored[4] == methane
    in_memory = GraphStore.from_arrays(*read_smiles(["OCC"])[:2])
    assert in_memory.keys is None and len(in_memory.smiles) == 0


@pytest.mark.parametrize("level", ["atom", "bond"])
def test_order_of_the_smiles_is_stored(level, tmp_path, small_batches):
    info = StoreInfo("some data", "", ("y",), level=level)
    store = build_store(tmp_path / "s.arrow", [rows(SMILES)], info, workers=1)
    some = np.array([6, 0, 1])
    expected = [read_smiles([SMILES[row]], level)[2] for row in some]
    np.testing.assert_array_equal(store.order(some), np.concatenate(expected))
    assert store.info == StoreInfo.from_metadata({k.encode(): v.encode() for k, v in store.info.to_metadata().items()})


def test_truncation_is_detected(tmp_path):
    build(tmp_path / "s.arrow", ["CCO", "oops", "c1ccccc1O"])
    content = (tmp_path / "s.arrow").read_bytes()
    for length in (0, 9, *range(40, len(content), 97), len(content) - 1):
        (tmp_path / "cut.arrow").write_bytes(content[:length])
        with pytest.raises(InputError, match=r"cut\.arrow .*is damaged"):
            GraphStore.open(tmp_path / "cut.arrow")


def test_files_other_than_stores_raise(tmp_path):
    table = pd.DataFrame({"smiles": ["C", "N"], "y": [1.0, 2.0]})
    table.to_csv(tmp_path / "csv.arrow", index=False)
    table.to_feather(tmp_path / "feather.arrow")
    for name in ("csv", "feather"):
        with pytest.raises(InputError, match=rf"{name}\.arrow is not a preprocessed dataset"):
            GraphStore.open(tmp_path / f"{name}.arrow")
    with pytest.raises(InputError, match=r"cannot read .*absent\.arrow"):
        GraphStore.open(tmp_path / "absent.arrow")
