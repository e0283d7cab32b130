from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import graphslice as gs
from graphslice.config import DataConfig, RunConfig
from graphslice.data.datamodule import MoleculeData
from graphslice.data.sources import Source, load_source, pyg_source
from graphslice.errors import InputError


def config(split: str | None = None, max_atoms: int = 512) -> RunConfig:
    return RunConfig.from_dict({"data": {"split": split}, "graph": {"max_atoms": max_atoms}})


@pytest.fixture
def table(tmp_path):
    """``table(smiles=[...], y=[...], ...)``: a file with these columns, whose targets are y and z."""

    def make(**columns: list) -> Source:
        pd.DataFrame(columns).to_csv(tmp_path / "t.csv", index=False)
        return load_source(DataConfig(str(tmp_path / "t.csv"), targets="y" + ",z" * ("z" in columns)))

    return make


def test_rejected_rows_leave_the_splits(table):
    smiles = ["CCO", "oops", "CCN", "CCF", "C" * 9, "CO", "CN", "CF"]
    words = ["train", "train", "train", "valid", "test", "test", "train", "valid"]
    data = MoleculeData(table(smiles=smiles, y=[1, 2, 3, 4, 5, 6, "?", 8], split=words), config(max_atoms=8))
    assert set(data.rejected) == {1, 4, 6} and "9 atoms" in data.rejected[4] and "'y'" in data.rejected[6]
    splits = {split: rows.tolist() for split, rows in data.splits.items()}
    assert splits == {"train": [0, 2], "valid": [3, 7], "test": [5]}
    assert data.kept.tolist() == [0, 2, 3, 5, 7]
    assert data.train_labels.tolist() == [[1], [3]]


def test_batches_carry_the_labels_of_their_rows(table):
    smiles = ["C" * (n % 5 + 1) for n in range(30)]
    data = MoleculeData(table(smiles=smiles, y=np.arange(30.0)), config("random"))
    for split in ("train", "valid", "test"):
        found = list(data.eval_dataloader(split))
        rows = torch.cat([batch.rows for batch in found])
        assert sorted(rows.tolist()) == data.splits[split].tolist()
        for batch in found:
            assert batch.targets[:, 0].tolist() == batch.rows.tolist()
            assert batch.lengths.tolist() == [row % 5 + 1 for row in batch.rows.tolist()]


@pytest.mark.parametrize(
    ("columns", "split", "reason"),
    [
        ({"smiles": ["oops", ""], "y": [1, 2]}, None, r"none of its 2 rows can be used; row 1: "),
        ({"smiles": ["C", "N"], "y": [1, 2]}, None, r"no usable row is for validation \(2 of 2 rows"),
        ({"smiles": ["C", "N"], "y": [1, 2], "split": ["test", "valid"]}, None, "no usable row is for training"),
        (
            {"smiles": list("CNO"), "y": [1, 2, 3], "z": [None, 1, 1], "split": ["train", "valid", "test"]},
            None,
            "no training row has a value of the target 'z'",
        ),
    ],
)
def test_data_of_no_use(columns, split, reason, table):
    with pytest.raises(InputError, match=reason):
        MoleculeData(table(**columns), config(split))


def test_pyg_graphs():
    items = []
    for n in range(1, 13):
        items.append(gs.smiles_to_graph("C" * n).to_pyg())
        items[-1].y = torch.tensor([float(n)])
    data = MoleculeData(pyg_source(items), config(max_atoms=10))
    assert set(data.rejected) == {10, 11} and "11 atoms" in data.rejected[10]
    assert [data.store[i].num_atoms for i in data.kept] == list(range(1, 11))
    with pytest.raises(InputError, match="a scaffold split needs SMILES"):
        MoleculeData(pyg_source(items), config("scaffold"))
