"""Atom- and bond-level labels: lists in cells, and ragged arrays."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rdkit import Chem

from graphslice.config import DataConfig, RunConfig
from graphslice.data.batches import collate_rows
from graphslice.data.cells import parse_number_list
from graphslice.data.datamodule import MoleculeData
from graphslice.data.labels import Labels, pointers, ragged_indices
from graphslice.data.loaders import dataset_from_frame, load_dataset
from graphslice.data.preprocess import featurize_dataset
from graphslice.errors import InputError


def numbers_of(smiles: str, level: str = "atom") -> list[float]:
    """Element and degree of each atom, or their sum over both atoms of each bond, from RDKit."""
    mol = Chem.MolFromSmiles(smiles)
    atom_values = [float(atom.GetAtomicNum() + 100 * atom.GetDegree()) for atom in mol.GetAtoms()]
    if level == "atom":
        return atom_values
    return [atom_values[b.GetBeginAtomIdx()] + atom_values[b.GetEndAtomIdx()] for b in mol.GetBonds()]


def write_table(path, smiles, cells, **more):
    pd.DataFrame({"smiles": smiles, "q": cells, **more}).to_csv(path, index=False)
    return str(path)


@pytest.mark.parametrize(
    ("cell", "numbers"),
    [
        ("[0.12, -0.3, null]", [0.12, -0.3, np.nan]),
        (" [1 2\n 3e-1] ", [1, 2, 0.3]),
        ("[nan,1,None,NaN]", [np.nan, 1, np.nan, np.nan]),
        ("[true, false]", [1, 0]),
        ("[]", []),
        ([1, None, 2.5], [1, np.nan, 2.5]),
        ("", None),
        ("NA", None),
        (None, None),
        (float("nan"), None),
    ],
)
def test_lists_of_numbers_are_parsed(cell, numbers):
    result = parse_number_list(cell)
    assert (result is None) == (numbers is None)
    if numbers is not None:
        np.testing.assert_array_equal(result, numbers)


@pytest.mark.parametrize("cell", ["5.3", 5.3, "[1, x]", "[[1], 2]", "[1, inf]", "1, 2", "[1_0]", [[1], [2]], "[1;2]"])
def test_other_cells_are_rejected(cell):
    with pytest.raises(ValueError, match=r"not a list|not a number|not finite"):
        parse_number_list(cell)


def test_ragged_indices_match_manual_computation():
    counts = np.array([3, 0, 2, 1])
    ptr = pointers(counts)
    labels = Labels("atom", np.arange(12.0).reshape(6, 2), ptr)
    for rows in ([0, 1, 2, 3], [3, 0, 3], [1], []):
        expected = [i for row in rows for i in range(ptr[row], ptr[row + 1])]
        assert ragged_indices(ptr, rows).tolist() == expected
        np.testing.assert_array_equal(labels[rows], labels.values[expected])
    assert labels.counts.tolist() == counts.tolist() and len(labels) == 4
    joined = Labels.join([labels, labels.without([0, 3])])
    assert joined.counts.tolist() == [3, 0, 2, 1, 0, 0, 2, 0]
    np.testing.assert_array_equal(joined[[6]], labels[[2]])


def test_means_ignore_unknown_labels():
    values = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, 4.0]])
    means = Labels("atom", values, pointers([2, 1, 0])).means()
    np.testing.assert_array_equal(means, [[2, np.nan], [np.nan, 4], [np.nan, np.nan]])


SMILES = ["CCO", "C", "[Na+].[Cl-]", "[2H]OC", "c1ccccc1N", "OCC", "C[N", "CC", "N->[Pt](Cl)(Cl)<-N"]


@pytest.mark.parametrize("level", ["atom", "bond"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_labels_in_batches_belong_to_their_atoms(level, suffix, tmp_path):
    """Labels computed by RDKit from the atoms are compared with the features and bonds of the batch."""
    smiles = [s for s in SMILES for _ in range(4)]
    cells = [numbers_of(s, level) if Chem.MolFromSmiles(s) else [1.0] for s in smiles]
    path = tmp_path / f"t.{suffix}"
    if suffix == "csv":
        write_table(path, smiles, [json.dumps(cell) for cell in cells])
    else:
        pq.write_table(pa.table({"smiles": smiles, "q": cells}), path)
    config = RunConfig(data=DataConfig(dataset=str(path), targets="q", level=level))
    dataset = load_dataset(config.data)
    data = MoleculeData(dataset, config)
    without = {"C[N"} | ({"C", "[Na+].[Cl-]"} if level == "bond" else set())
    assert {smiles[row] for row in data.rejected} == without
    batch = collate_rows(data.store, data.usable_rows[::-1].copy(), targets=data.labels, level=level)
    assert len(batch.atom_bond_index) == len(batch.targets) == batch.atom_bond_counts().sum()
    molecule, first, second, kind = batch.atom_bond_index.T
    atom_values = batch.atoms[:, :, 0].double() + 1 + 100 * batch.degrees.double()
    result = atom_values[molecule, first] + (atom_values[molecule, second] if level == "bond" else 0)
    np.testing.assert_array_equal(result, batch.targets[:, 0].double())
    assert (kind == 0).all() or level == "bond"


# Molecules of two atoms each, of different families.
PAIRS = ["CC", "CN", "CO", "CF", "CCl", "CBr", "CI", "CS", "NO", "CP"]


def test_invalid_rows_have_reasons(tmp_path):
    smiles = ["CCO", "CCO", "CCO", "CCO", "C[N", "CCO", "CCO", *PAIRS]
    cells = ["[1,2,3]", "[1,2]", "", "5", "[1]", "[null,null,nan]", "[1,1e30,2]"] + ["[1,2]"] * 10
    other = ["[1,2,3]", "[1,2]", "[null,1,2]", "[1,2,3]", "[1]", "", "[1,2,3]"] + ["[1,2]"] * 9 + ["[1,2,3]"]
    path = write_table(tmp_path / "t.csv", smiles, cells, r=other)
    config = RunConfig(data=DataConfig(dataset=path, targets="q,r", level="atom"))
    rejected = MoleculeData(load_dataset(config.data), config).rejected
    assert rejected[1] == "the targets have 2 numbers for 3 atoms"
    assert rejected[3] == "target 'q' is not a list of numbers: '5'"
    assert "not a valid SMILES" in rejected[4] or "not a valid molecule" in rejected[4]
    assert rejected[5] == "no target value" and "too large" in rejected[6]
    assert rejected[16] == "targets differ in length: 'q' has 2 numbers and 'r' has 3 numbers"
    assert sorted(rejected) == [1, 3, 4, 5, 6, 16]
    path = write_table(tmp_path / "u.csv", ["CCO"] * 3, ["[1,2,3]"] * 3)
    one = RunConfig(data=DataConfig(dataset=path, targets="q", level="bond"))
    with pytest.raises(InputError, match="the first: target 'q' has 3 numbers for 2 bonds"):
        MoleculeData(load_dataset(one.data), one)


def test_numbers_are_encoded_as_classes(tmp_path):
    path = write_table(tmp_path / "t.csv", ["CCO"] * 12, ["[0,1,1]"] * 12, k=["[1,2,3]"] * 11 + ["[1,2,7]"])
    dataset = load_dataset(DataConfig(dataset=path, targets="q,k", level="atom", task="k=multiclass"))
    assert [(task.kind, task.classes) for task in dataset.tasks] == [
        ("binary", ("0", "1")),
        ("multiclass", ("1", "2", "3", "7")),
    ]
    np.testing.assert_array_equal(dataset.all_labels[np.array([11])], [[0, 0], [1, 1], [1, 3]])
    known = [dataset.tasks[0], replace(dataset.tasks[1], classes=("1", "2", "3"))]
    again = load_dataset(DataConfig(dataset=path, targets="q,k", level="atom"), known)
    assert not again.rejected and again.invalid_labels == {11: "target 'k' has a number that is none of its classes: 7"}


def test_separate_files_and_fingerprint_of_lists(tmp_path):
    path = write_table(tmp_path / "t.csv", ["CCO", "CC"] * 10, ["[1,2,3]", "[1,2]"] * 10)
    test = write_table(tmp_path / "u.csv", ["OC"], ["[5,6]"])
    dataset = load_dataset(DataConfig(dataset=path, test_file=test, targets="q", level="atom"))
    np.testing.assert_array_equal(dataset.all_labels[dataset.splits["test"]][:, 0], [5, 6])
    swapped = write_table(tmp_path / "v.csv", ["CCO", "CC"] * 10, ["[1,3,2]", "[1,2]"] * 10)  # with the same means
    result = [
        load_dataset(DataConfig(dataset=p, targets="q", level="atom")).fingerprint() for p in (path, path, swapped)
    ]
    assert result[0] == result[1] != result[2]


def test_only_column_of_lists_is_target_and_data_without_lists_are_rejected(tmp_path, demo_csv):
    path = write_table(tmp_path / "t.csv", ["CCO"] * 12, ["[1,2,3]"] * 12, note=["[Na+]"] * 12, y=range(12))
    assert load_dataset(DataConfig(dataset=path, level="atom")).target_names == ["q"]
    with pytest.raises(InputError, match="list of numbers"):
        load_dataset(DataConfig(dataset=str(demo_csv), targets="gap_ev", level="atom"))
    store = tmp_path / "s.arrow"
    featurize_dataset(DataConfig(dataset=str(demo_csv), targets="gap_ev"), RunConfig().graph, store)
    for dataset in (str(store), "pcqm4m"):
        with pytest.raises(InputError, match=r"data.level of .* must be molecule, not 'atom'"):
            load_dataset(DataConfig(dataset=dataset, level="atom"))


def test_data_frame_with_lists(tmp_path):
    frame = pd.DataFrame({"smiles": ["CCO", "C"] * 6, "q": [np.array([1, 2, np.nan]), [4.0]] * 6})
    dataset = dataset_from_frame(frame, DataConfig(targets="q", level="atom"))
    np.testing.assert_array_equal(dataset.all_labels[np.array([1, 0])][:, 0], [4, 1, 2, np.nan])
    molecules = frame.assign(smiles=[Chem.MolFromSmiles(s) for s in frame.smiles])
    with pytest.raises(InputError, match="these are RDKit molecules"):
        dataset_from_frame(molecules, DataConfig(targets="q", smiles_column="smiles", level="atom"))
