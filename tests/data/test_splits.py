from __future__ import annotations

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem.Scaffolds import MurckoScaffold

from graphslice.data.splits import column_split, random_split, scaffold_split
from graphslice.errors import InputError


def assert_partition(split, rows) -> None:
    assert set(split) == {"train", "valid", "test"}
    together = np.concatenate(list(split.values()))
    assert sorted(together.tolist()) == sorted(rows.tolist()) and together.dtype == np.int64
    assert all((np.diff(part) > 0).all() for part in split.values())


@pytest.mark.parametrize(("rows", "sizes"), [(100, (80, 10, 10)), (57, (47, 5, 5)), (9, (7, 1, 1)), (3, (1, 1, 1))])
def test_random_split(rows, sizes):
    names = np.arange(rows) * 3 + 1  # rows that were rejected leave gaps
    split = random_split(names, seed=0)
    assert_partition(split, names)
    assert tuple(len(split[part]) for part in ("train", "valid", "test")) == sizes


def test_the_seed_decides_the_random_split():
    rows = np.arange(50)
    first, again, other = random_split(rows, 1), random_split(rows, 1), random_split(rows, 2)
    assert all(np.array_equal(first[part], again[part]) for part in first)
    assert not np.array_equal(first["test"], other["test"])


@pytest.mark.parametrize("rows", [1, 2])
def test_too_few_rows_all_train(rows):
    assert {part: len(members) for part, members in random_split(np.arange(rows), 0).items()} == {
        "train": rows,
        "valid": 0,
        "test": 0,
    }


def test_scaffold_split(demo_smiles):
    rows = np.arange(0, 900, 3)
    split = scaffold_split(rows, demo_smiles)
    assert_partition(split, rows)
    assert len(split["train"]) <= 240 and len(split["valid"]) <= 30 and len(split["test"]) >= 30

    def scaffolds(part: str) -> set[str]:
        molecules = (Chem.MolFromSmiles(demo_smiles[row]) for row in split[part])
        return {MurckoScaffold.MurckoScaffoldSmiles(mol=m, includeChirality=False) for m in molecules}

    parts = [scaffolds(part) for part in ("train", "valid", "test")]
    assert all(parts) and not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
    again = scaffold_split(rows, demo_smiles)
    assert all(np.array_equal(split[part], again[part]) for part in split)


def test_scaffold_split_by_hand():
    """Benzenes (7) and one single fit in training; the other two singles are validation and test."""
    smiles = ["C1CCCCC1", "Cc1ccccc1", "c1ccncc1", *["C" * n + "c1ccccc1" for n in range(6)], "CCO"]
    splits = [scaffold_split(np.arange(10), smiles, seed) for seed in range(20)]
    for split in splits:
        assert {part: len(rows) for part, rows in split.items()} == {"train": 8, "valid": 1, "test": 1}
        assert {1, 3, 4, 5, 6, 7, 8} < set(split["train"].tolist())
    assert {split["test"].item() for split in splits} == {0, 2, 9}  # which single is not up to the file's order


def test_column_split():
    words = ["train", "VAL", "nonsense", " test", "dev", "Training"]
    split = column_split(np.array([0, 1, 3, 4, 5]), words, "fold")  # row 2 is not asked for
    assert {part: rows.tolist() for part, rows in split.items()} == {"train": [0, 5], "valid": [1, 4], "test": [3]}
    with pytest.raises(InputError, match="row 3: 'fold' is 'nonsense'; it must be train, valid or test"):
        column_split(np.arange(6), words, "fold")
