import numpy as np
import pandas as pd
import pytest
import torch

import graphslice as gs
from graphslice.chem.descriptors import compute_descriptors
from graphslice.config import DataConfig, RunConfig
from graphslice.data.datamodule import MoleculeData
from graphslice.data.dataset import LabelledDataset
from graphslice.data.loaders import dataset_from_pyg, load_dataset
from graphslice.errors import InputError
from graphslice.tasks import Task


def config(split: str | None = None, max_atoms: int = 512, **data) -> RunConfig:
    return RunConfig.from_dict({"data": {"split": split, **data}, "graph": {"max_atoms": max_atoms}})


@pytest.fixture
def table(tmp_path):
    """Return ``table(smiles=[...], y=[...], ...)``, which loads a file with these columns and the targets y and z."""

    def make(features: str | None = None, **columns: list) -> LabelledDataset:
        pd.DataFrame(columns).to_csv(tmp_path / "t.csv", index=False)
        targets = "y" + ",z" * ("z" in columns)
        return load_dataset(DataConfig(str(tmp_path / "t.csv"), targets=targets, features=features))

    return make


def test_rejected_rows_are_in_no_split(table):
    smiles = ["CCO", "oops", "CCN", "CCF", "C" * 9, "CO", "CN", "CF"]
    words = ["train", "train", "train", "valid", "test", "test", "train", "valid"]
    data = MoleculeData(table(smiles=smiles, y=[1, 2, 3, 4, 5, 6, "?", 8], split=words), config(max_atoms=8))
    assert set(data.rejected) == {1, 4, 6} and "9 atoms" in data.rejected[4] and "'y'" in data.rejected[6]
    splits = {split: rows.tolist() for split, rows in data.splits.items()}
    assert splits == {"train": [0, 2], "valid": [3, 7], "test": [5]}
    assert data.usable_rows.tolist() == [0, 2, 3, 5, 7]
    assert data.train_labels.tolist() == [[1], [3]]


@pytest.mark.parametrize(("cell", "value"), [("-3", "-3"), ("<0", "0")])
def test_labels_without_a_logarithm_are_rejected(cell, value, table):
    data = MoleculeData(table(smiles=["C" * n for n in range(1, 13)], y=[*range(1, 12), cell]), config())
    with pytest.raises(InputError, match=f"'y' is {value} in row 12, which has no logarithm"):
        data.with_tasks([Task("y", transform="log")])


def test_mostly_rejected_labelled_rows_raise(table):
    dataset = table(smiles=["CCO", "C", "CC", "aspirin"] + ["mol7", "mol8"] * 2, y=[*range(8)])
    with pytest.raises(
        InputError, match=r"only 3 of 8 labelled rows .*; 5 rows are rejected; .* row 4: .*data.rejected any"
    ):
        MoleculeData(dataset, config())
    assert len(MoleculeData(dataset, config("random", rejected="any")).usable_rows) == 3


def test_unlabelled_rows_do_not_count_as_rejected(table):
    y, z = [1, 2, 3, 4, *[None] * 36], [None] * 3 + [5, 6, 7, *[None] * 34]
    assert len(MoleculeData(table(smiles=["C" * n for n in range(1, 41)], y=y, z=z), config("random")).usable_rows) == 6


def test_descriptors_are_not_computed_for_unlabelled_rows(table, monkeypatch):
    read: list[str] = []

    def recording(smiles, *args, **kwargs):
        read.extend(smiles)
        return compute_descriptors(smiles, *args, **kwargs)

    monkeypatch.setattr("graphslice.data.featurize.compute_descriptors", recording)
    labels = [float(n) if n % 5 == 0 else None for n in range(40)]
    dataset = table(smiles=["C" * (n % 9 + 1) + "O" for n in range(40)], y=labels)
    trained = RunConfig.from_dict({"data": {"split": "random", "features": "rdkit2d"}})
    data = MoleculeData(dataset, trained)
    assert data.usable_rows.tolist() == list(range(0, 40, 5)) and data.rejected[1] == "no target value"
    assert sum(text != "" for text in read) == 8
    assert not np.isnan(data.store.descriptors(data.usable_rows, ["rdkit2d"])).all(axis=1).any()


@pytest.mark.parametrize("method", ["random", "scaffold"])
def test_training_set_has_a_value_of_every_target(method, table, demo_smiles):
    """Two molecules of one scaffold alone have values of z."""
    smiles = [*demo_smiles[:60], "C1CC2CCC1S2", "CC1CC2CCC1S2"]
    dataset = table(smiles=smiles, y=[*range(62)], z=[None] * 60 + [1.5, 2.5])
    for seed in range(20):
        train = {*MoleculeData(dataset, config(method, seed=seed)).splits["train"].tolist()}
        assert {60, 61} <= train if method == "scaffold" else {60, 61} & train


def test_unusable_data_is_rejected(table):
    with pytest.raises(InputError, match="no row can be used; the first: not a valid"):
        MoleculeData(table(smiles=["oops", ""], y=[1, 2]), config())
    labels = {"y": [1, 2, 3], "z": [None, 1, 1], "split": ["train", "valid", "test"]}
    with pytest.raises(InputError, match="no training row has a value, other than bounds, of the target 'z'"):
        MoleculeData(table(smiles=list("CNO"), **labels), config())


SAME = {
    "smiles": ["CCO", "OCC", "CCN", "CCF", "[O-]CC.[Na+]", "NCC", "C", "CN", "CCO"],
    "y": [1, 3, 5, 0, 9, 8, 7, 2, 100],
    "split": ["train", "train", "train", "valid", "test", "test", "train", "valid", "train"],
}


def test_duplicates_are_counted(table):
    """Three rows of ethanol, two of ethylamine (one in the test set), and a salt of ethanol in the test set."""
    data = MoleculeData(table(**SAME), config())
    assert (data.duplicates.molecules, data.duplicates.rows) == (2, 5)
    assert data.duplicates.conflicting == ((0, 1, 8),)  # with a standard deviation of 30, 5 and 8 agree
    assert data.duplicates.shared == {"valid": 0, "test": 2}
    assert data.splits["train"].tolist() == [0, 1, 2, 6, 8] and not data.rejected
    assert "5 rows of 2 molecules are" in data.duplicates.describe()


def test_labels_of_duplicates_are_compared_on_the_scale_of_training(table):
    data = MoleculeData(table(**SAME | {"y": [1, 30, 10, 1, 1, 10, 10_000, 1, 30]}), config())
    assert data.duplicates.conflicting == ()
    assert data.with_tasks([Task("y", transform="log")]).duplicates.conflicting == ((0, 1, 8),)


def test_labels_of_duplicates_are_compared_atom_by_atom():
    """Ethanol has the same labels in two notations, one of them unknown; ethylamine has others with the same mean."""
    labels = {"OCC": [1, 2, 3], "CCO": [3, None, 1], "NCC": [1, 2, 3], "CCN": [1, 2, 3]}
    labels |= {"C" * n: [2] * n for n in range(3, 13)}
    settings, table = config(level="atom"), pd.DataFrame({"smiles": [*labels], "y": [*labels.values()]})
    found = MoleculeData(load_dataset(settings.data, data=table), settings).duplicates
    assert (found.molecules, found.rows, found.conflicting) == (2, 4, ((2, 3),))


@pytest.mark.parametrize("split", ["random", "scaffold", "cluster"])
def test_split_of_graphs_matches_split_of_smiles(split, demo_smiles, table):
    smiles, y = demo_smiles[:120], np.arange(120.0)
    items = []
    for text, label in zip(smiles, y, strict=True):
        items.append(gs.smiles_to_graph(text).to_pyg())
        items[-1].y = torch.tensor([label])
    datasets = dataset_from_pyg(items, DataConfig()), table(smiles=smiles, y=y)
    graphs, texts = (MoleculeData(data, config(split)).splits for data in datasets)
    assert {k: v.tolist() for k, v in graphs.items()} == {k: v.tolist() for k, v in texts.items()}


def test_inner_folds_leave_labels_of_every_target(tmp_path):
    """A target that is known in one chemical series alone would be learned of no molecule without its fold."""
    series = [f"C{'C' * n}C1Cc2ccccc2C1" for n in range(12)]  # one scaffold
    others = [
        f"{'C' * n}c1cc{ring}cc1" for n in range(1, 9) for ring in ("n", "c", "(O)", "(-c2ccccc2)", "(-c2ccncc2)")
    ]
    table = pd.DataFrame({"smiles": [*series, *others], "main": np.arange(52.0)})
    table["rare"] = [*np.arange(7.0, 19.0), *[np.nan] * 40]
    table.to_csv(tmp_path / "t.csv", index=False)
    for targets, is_scaffold in (("main", True), ("main,rare", False)):
        settings = {"targets": targets, "split": "scaffold", "split_sizes": "0.98,0.02,0"}
        config = RunConfig(data=DataConfig(dataset=str(tmp_path / "t.csv"), **settings))
        data = MoleculeData(load_dataset(config.data), config)
        folds = data.inner_folds(5)
        assert sum(np.isin(fold, np.arange(12)).any() for fold in folds) == (1 if is_scaffold else 5)
        np.testing.assert_array_equal(np.sort(np.concatenate(folds)), data.splits["train"])
