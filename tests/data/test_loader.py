from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from graphslice.data.loader import EvalBatches, TrainBatches
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
