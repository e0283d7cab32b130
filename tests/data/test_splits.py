from __future__ import annotations

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem.Scaffolds import MurckoScaffold

from graphslice.data.splits import NO_SPLIT, name_splits, number_splits, random_split, scaffold_split


def assert_partition(split, rows) -> None:
    assert set(split) == {"train", "valid", "test"}
    together = np.concatenate(list(split.values()))
    assert sorted(together.tolist()) == sorted(rows.tolist()) and together.dtype == np.int64
    assert all((np.diff(name) > 0).all() for name in split.values())


@pytest.mark.parametrize(("rows", "sizes"), [(100, (80, 10, 10)), (57, (47, 5, 5)), (9, (7, 1, 1)), (3, (1, 1, 1))])
def test_random_split(rows, sizes):
    names = np.arange(rows) * 3 + 1  # rows that were rejected leave gaps
    split = random_split(names, seed=0)
    assert_partition(split, names)
    assert tuple(len(split[name]) for name in ("train", "valid", "test")) == sizes


def test_the_seed_decides_the_random_split():
    rows = np.arange(50)
    first, again, other = random_split(rows, 1), random_split(rows, 1), random_split(rows, 2)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["test"], other["test"])


@pytest.mark.parametrize("rows", [1, 2])
def test_too_few_rows_all_train(rows):
    assert {name: len(members) for name, members in random_split(np.arange(rows), 0).items()} == {
        "train": rows,
        "valid": 0,
        "test": 0,
    }


def test_scaffold_split(demo_smiles):
    rows = np.arange(0, 900, 3)
    split = scaffold_split(rows, demo_smiles)
    assert_partition(split, rows)
    assert len(split["train"]) <= 240 and len(split["valid"]) <= 30 and len(split["test"]) >= 30

    def scaffolds(name: str) -> set[str]:
        molecules = (Chem.MolFromSmiles(demo_smiles[row]) for row in split[name])
        return {MurckoScaffold.MurckoScaffoldSmiles(mol=m, includeChirality=False) for m in molecules}

    parts = [scaffolds(name) for name in ("train", "valid", "test")]
    assert all(parts) and not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
    again = scaffold_split(rows, demo_smiles)
    assert all(np.array_equal(split[name], again[name]) for name in split)


def test_scaffold_split_by_hand():
    """Benzenes (7) and one single fit in training; the other two singles are validation and test."""
    smiles = ["C1CCCCC1", "Cc1ccccc1", "c1ccncc1", *["C" * n + "c1ccccc1" for n in range(6)], "CCO"]
    splits = [scaffold_split(np.arange(10), smiles, seed) for seed in range(20)]
    for split in splits:
        assert {name: len(rows) for name, rows in split.items()} == {"train": 8, "valid": 1, "test": 1}
        assert {1, 3, 4, 5, 6, 7, 8} < set(split["train"].tolist())
    assert {split["test"].item() for split in splits} == {0, 2, 9}  # which single is not up to the file's order


def test_splits_as_numbers_and_back():
    splits = {"train": np.array([4, 1]), "test-dev": np.array([2])}
    numbers = number_splits(splits, 6)
    assert numbers.dtype == np.int8 and numbers.tolist() == [-1, 0, 3, -1, 0, -1]
    usable = np.array([True, False, True, True, True, True])
    found = {split: rows.tolist() for split, rows in name_splits(numbers, usable, ["train", "test-dev"]).items()}
    assert found == {"train": [4], "test-dev": [2]}


def test_no_splits_as_numbers():
    assert number_splits(None, 2).tolist() == [NO_SPLIT, NO_SPLIT]
