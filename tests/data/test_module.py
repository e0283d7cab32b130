from __future__ import annotations

from itertools import chain

import numpy as np
import pandas as pd
import pytest
import torch

import graphslice as gs
from graphslice.config import DataConfig, RunConfig
from graphslice.data.module import EvalBatches, MoleculeData, TrainBatches
from graphslice.data.sources import pyg_source, table_source
from graphslice.errors import InputError

SIZES = np.random.default_rng(0).integers(1, 60, size=103)


def batches(size: int = 8, step: int = 0, rank: int = 0, world: int = 1, seed: int = 0, sizes=SIZES):
    return list(TrainBatches(sizes, size, seed, rank, world, lambda: step))


@pytest.mark.parametrize(
    ("rows", "size", "world", "steps"), [(103, 8, 1, 13), (104, 8, 2, 13), (97, 8, 2, 12), (3, 8, 2, 1)]
)
def test_number_of_steps(rows, size, world, steps):
    assert len(TrainBatches(SIZES[:1].repeat(rows), size, 0, world=world)) == steps
    for rank in range(world):
        assert len(batches(size, rank=rank, world=world, sizes=SIZES[:1].repeat(rows))) == steps


def test_an_epoch_has_every_molecule_once():
    epoch = batches()
    assert sorted(chain(*epoch)) == list(range(103)) and sorted(map(len, epoch)) == [7] + [8] * 12


def test_every_epoch_and_seed_has_its_own_order():
    assert batches() == batches() and batches(step=13) != batches() and batches(seed=1) != batches()


def test_batches_hold_similar_sizes():
    spread = np.mean([np.ptp(SIZES[rows]) for rows in batches()])
    assert spread < 0.3 * np.ptp(SIZES)


@pytest.mark.parametrize("step", [1, 5, 12, 14, 25])
def test_from_any_step_onwards(step):
    epoch = batches(step=step // 13 * 13)
    assert batches(step=step) == epoch[step % 13 :]


@pytest.mark.parametrize("world", [2, 3])
def test_devices_share_the_batches_of_one(world):
    ranks = [batches(rank=rank, world=world) for rank in range(world)]
    for alone, *shares in zip(batches(), *ranks, strict=True):
        assert sorted(chain(*shares)) == sorted(alone) and all(shares)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(("rows", "size", "world"), [(1, 8, 2), (0, 8, 1), (100, 1, 2)])
def test_too_few_molecules_for_the_devices(rows, size, world):
    """No device may be left without a molecule."""
    with pytest.raises(InputError, match="devices"):
        TrainBatches(np.ones(rows, np.int64), size, 0, world=world)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_batches(world):
    ranks = [list(EvalBatches(SIZES, 8, rank, world)) for rank in range(world)]
    assert sorted(chain(*chain(*ranks))) == list(range(103))
    for rows in chain(*ranks):
        assert len(rows) <= 8 and (len(rows) == 1 or len(rows) * (SIZES[rows].max() + 1) ** 2 <= 8 * 33**2)
    assert [len(EvalBatches(SIZES, 8, rank, world)) for rank in range(world)] == list(map(len, ranks))


def test_evaluation_batches_of_giants_and_of_nothing():
    assert list(EvalBatches(np.array([500, 500]), 4)) == [[0], [1]]
    assert list(EvalBatches(np.array([], np.int64), 4)) == []


# --- the data module ----------------------------------------------------------------------------


def config(split: str | None = None, max_atoms: int = 512) -> RunConfig:
    return RunConfig.from_dict({"data": {"split": split}, "graph": {"max_atoms": max_atoms}})


def table(**columns):
    split = columns.pop("split_by", None)
    return table_source(pd.DataFrame(columns), DataConfig(targets="y" + ",z" * ("z" in columns), split=split), "t.csv")


def test_rejected_rows_leave_the_split():
    smiles = ["CCO", "oops", "CCN", "CCF", "C" * 9, "CO", "CN", "CF"]
    words = ["train", "train", "train", "valid", "test", "test", "train", "valid"]
    data = MoleculeData(table(smiles=smiles, y=[1, 2, 3, 4, 5, 6, "?", 8], split=words), config(max_atoms=8))
    assert set(data.rejected) == {1, 4, 6} and "9 atoms" in data.rejected[4] and "'y'" in data.rejected[6]
    assert {part: rows.tolist() for part, rows in data.split.items()} == {"train": [0, 2], "valid": [3, 7], "test": [5]}
    assert data.kept.tolist() == [0, 2, 3, 5, 7] and data.positions.tolist() == [0, -1, 1, 2, -1, 3, -1, 4]
    np.testing.assert_allclose([data.target_mean, data.target_std], [[2.0], [1.0]])


def test_batches_carry_the_labels_of_their_rows():
    smiles = ["C" * (n % 5 + 1) for n in range(30)]
    data = MoleculeData(table(smiles=smiles, y=np.arange(30.0)), config("random"))
    for part in ("train", "valid", "test"):
        found = list(data.eval_dataloader(part))
        rows = torch.cat([batch.rows for batch in found])
        assert sorted(rows.tolist()) == data.split[part].tolist()
        for batch in found:
            assert batch.targets[:, 0].tolist() == batch.rows.tolist()
            assert batch.lengths.tolist() == [row % 5 + 1 for row in batch.rows.tolist()]


def test_standardisation_ignores_gaps_and_constant_targets():
    words = ["train"] * 3 + ["valid"]
    data = MoleculeData(table(smiles=list("CNOF"), y=[1, None, 3, 100], z=[5, 5, 5, 7], split=words), config())
    np.testing.assert_allclose(data.target_mean, [2, 5])
    np.testing.assert_allclose(data.target_std, [1, 1])


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
def test_data_of_no_use(columns, split, reason):
    with pytest.raises(InputError, match=reason):
        MoleculeData(table(**columns), config(split))


def test_pyg_graphs():
    items = []
    for n in range(1, 13):
        items.append(gs.smiles_to_graph("C" * n).to_pyg())
        items[-1].y = torch.tensor([float(n)])
    data = MoleculeData(pyg_source(items), config(max_atoms=10))
    assert set(data.rejected) == {10, 11} and "11 atoms" in data.rejected[10]
    assert [data.store[int(i)].num_atoms for i in data.positions[data.kept]] == list(range(1, 11))
    with pytest.raises(InputError, match="a scaffold split needs SMILES"):
        MoleculeData(pyg_source(items), config("scaffold"))
