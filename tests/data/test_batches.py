import threading
from itertools import chain

import numpy as np
import pytest
import torch

from graphslice import smiles_to_graph
from graphslice.chem.molecule import MolArrays
from graphslice.data.batches import BatchLoader, TrainBatches, batches_per_epoch, collate_rows, eval_batches
from graphslice.data.labels import Labels
from graphslice.data.store import GraphStore
from graphslice.errors import InputError

SIZES = np.random.default_rng(0).integers(1, 60, size=103)


def batches(size: int = 8, step: int = 0, rank: int = 0, world: int = 1, seed: int = 0, sizes=SIZES):
    return list(TrainBatches(sizes, size, seed, rank, world, lambda: step))


@pytest.mark.parametrize(
    ("rows", "size", "world", "steps"), [(103, 8, 1, 13), (104, 8, 2, 13), (97, 8, 2, 12), (3, 8, 2, 1)]
)
def test_number_of_batches_per_epoch(rows, size, world, steps):
    assert batches_per_epoch(rows, size, world) == steps
    assert len(TrainBatches(SIZES[:1].repeat(rows), size, 0, world=world)) == steps
    for rank in range(world):
        assert len(batches(size, rank=rank, world=world, sizes=SIZES[:1].repeat(rows))) == steps


def test_epoch_has_every_molecule_once():
    epoch = batches()
    assert sorted(chain(*epoch)) == list(range(103)) and sorted(map(len, epoch)) == [7] + [8] * 12


def test_order_depends_on_epoch_and_seed():
    assert batches() == batches() and batches(step=13) != batches() and batches(seed=1) != batches()


def test_batches_hold_similar_sizes():
    spread = np.mean([np.ptp(SIZES[rows]) for rows in batches()])
    assert spread < 0.3 * np.ptp(SIZES)


@pytest.mark.parametrize("step", [1, 5, 12, 14, 25])
def test_train_batches_resume_at_any_step(step):
    epoch = batches(step=step // 13 * 13)
    assert batches(step=step) == epoch[step % 13 :]


@pytest.mark.parametrize("world", [2, 3])
def test_devices_share_the_batches_of_a_single_device(world):
    ranks = [batches(rank=rank, world=world) for rank in range(world)]
    for single, *shares in zip(batches(), *ranks, strict=True):
        assert sorted(chain(*shares)) == sorted(single) and all(shares)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(("rank", "world"), [(0, 1), (1, 2)])
def test_widths_are_those_of_full_batches(rank, world):
    """The last, incomplete batch is not counted."""
    order = TrainBatches(SIZES, 8, 0, rank, world)
    full_batches = [rows for rows in order if len(rows) == 8 // world]
    assert len(full_batches) == 12
    assert order.widths(1) == {int(SIZES[rows].max()) + 1 for rows in full_batches}
    assert order.widths(4) == {width + -width % 4 for width in order.widths(1)}


@pytest.mark.parametrize(("rows", "size", "world"), [(1, 8, 2), (0, 8, 1), (100, 1, 2)])
def test_too_few_molecules_for_the_devices_raise(rows, size, world):
    """Every device needs a molecule."""
    with pytest.raises(InputError, match="devices"):
        TrainBatches(np.ones(rows, np.int64), size, 0, world=world)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_batches_have_every_molecule_once_within_the_size_limit(world):
    ranks = [eval_batches(SIZES, 8, rank, world) for rank in range(world)]
    assert sorted(chain(*chain(*ranks))) == list(range(103))
    for rows in chain(*ranks):
        assert len(rows) <= 8 and (len(rows) == 1 or len(rows) * (SIZES[rows].max() + 1) ** 2 <= 8 * 33**2)


def test_evaluation_batches_of_large_molecules_and_of_none():
    assert eval_batches(np.array([500, 500]), 4) == [[0], [1]]
    assert eval_batches(np.array([], np.int64), 4) == []
    assert list(BatchLoader(GraphStore.from_arrays(MolArrays.from_graphs([])), np.arange(0), [], {}, threads=2)) == []


SETTINGS = {"path_ties": "mean", "max_path": 5}


@pytest.fixture(scope="module")
def store():
    return GraphStore.from_arrays(
        MolArrays.from_graphs([smiles_to_graph("C" * (1 + n % 7) + "O" * (n % 2)) for n in range(40)])
    )


def loader(store, threads: int = 0, step: int = 0, seed: int = 0) -> BatchLoader:
    rows = np.arange(39, 3, -1)
    order = TrainBatches(store.sizes[rows], 4, seed, step=lambda: step)
    targets = np.arange(40.0)[:, None]
    return BatchLoader(store, rows, order, SETTINGS | {"targets": Labels.of_molecules(targets)}, threads=threads)


def threads_of_loaders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_loader_returns_the_requested_rows(store):
    loaded = list(loader(store))
    assert len(loaded) == len(loader(store)) == 9
    for batch, indices in zip(loaded, loader(store).batches, strict=True):
        assert batch.rows.tolist() == [39 - index for index in indices]
        assert batch.targets[:, 0].tolist() == batch.rows.tolist()
        assert batch.lengths.tolist() == store.sizes[batch.rows].tolist()


@pytest.mark.parametrize("threads", [1, 20])
@pytest.mark.parametrize("step", [0, 4, 9])
def test_threads_match_serial_loading(threads, step, store):
    serial, threaded = list(loader(store, 0, step)), list(loader(store, threads, step))
    assert len(serial) == len(threaded) == 9 - step % 9
    if step < 9:  # a resumed run continues with the batches that it had not seen
        epoch = [batch.rows.tolist() for batch in loader(store, threads)]
        assert [batch.rows.tolist() for batch in threaded] == epoch[step:]
    for expected, batch in zip(serial, threaded, strict=True):
        tensors = {name: value for name, value in vars(expected).items() if value is not None}
        assert all(torch.equal(value, getattr(batch, name)) for name, value in tensors.items())
    assert threads_of_loaders() == []


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_error_of_a_thread_is_raised(threads, store, monkeypatch):
    """It is raised in place of its batch, after the earlier batches."""

    def fails(store, rows, **settings):
        if rows[0] == wrong:
            raise RuntimeError("no batch")
        return collate_rows(store, rows, **settings)

    wrong = next(batch.rows[0] for n, batch in enumerate(loader(store)) if n == 5)
    monkeypatch.setattr("graphslice.data.batches.collate_rows", fails)
    batches = iter(loader(store, threads))
    assert len([next(batches) for _ in range(5)]) == 5
    with pytest.raises(RuntimeError, match="no batch"):
        next(batches)
    assert threads_of_loaders() == []


@pytest.mark.parametrize("threads", [1, 3])
def test_leaving_the_loop_early_stops_the_threads(threads, store, monkeypatch):
    collated = []

    def counted(store, rows, **settings):
        collated.append(rows)
        return collate_rows(store, rows, **settings)

    monkeypatch.setattr("graphslice.data.batches.collate_rows", counted)
    large = loader(store, threads)
    large.batches = [[n % 36] for n in range(500)]
    for _ in large:
        break
    assert threads_of_loaders() == [] and len(collated) <= 1 + BatchLoader.PREFETCH * threads + threads
    with pytest.raises(KeyboardInterrupt):
        for _ in large:
            raise KeyboardInterrupt
    assert threads_of_loaders() == []
