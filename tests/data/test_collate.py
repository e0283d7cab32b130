"""Contents and padding of collated batches, independent of the other molecules of the batch."""

import dataclasses

import networkx as nx
import numpy as np
import pytest
import torch

from graphslice import InputError, MoleculeError, smiles_to_graph
from graphslice.batch import GraphBatch
from graphslice.chem.molecule import MolArrays, read_smiles
from graphslice.data.batches import collate, collate_rows
from graphslice.data.labels import Labels
from graphslice.data.store import GraphStore

SMILES = ["c1ccccc1O", "C", "CC(=O)[O-].[Na+]", "C" * 20, "C12C3C4C1C5C2C3C45", "[H+]"]


@pytest.fixture(scope="module")
def graphs():
    return [smiles_to_graph(smiles) for smiles in SMILES]


def pair_contents(batch: GraphBatch, row: int) -> dict:
    """{(i, j): (distance, {code: weight})} of one molecule."""
    ends = [*batch.path_ptr[1:].tolist(), len(batch.path_codes)]
    contents = [
        (distance, dict(zip(batch.path_codes[a:b].tolist(), batch.path_weights[a:b].tolist(), strict=True)))
        for distance, a, b in zip(batch.path_distances.tolist(), batch.path_ptr.tolist(), ends, strict=True)
    ]
    n = int(batch.lengths[row])
    return {(i, j): contents[batch.path_types[row, i, j]] for i in range(n) for j in range(n)}


def test_atoms_are_padded(graphs):
    batch = collate(graphs)
    assert len(batch) == len(SMILES)
    assert batch.lengths.tolist() == [7, 1, 5, 20, 8, 1]
    assert (batch.atoms.shape, batch.atoms.dtype) == ((6, 20, 9), torch.uint8)
    assert batch.lengths.dtype == torch.int64
    for row, graph in enumerate(graphs):
        n = graph.num_atoms
        np.testing.assert_array_equal(batch.atoms[row, :n], graph.atoms)
        reference = nx.Graph(graph.bonds.tolist())
        assert batch.degrees[row, :n].tolist() == [reference.degree(i) if i in reference else 0 for i in range(n)]
        assert not batch.atoms[row, n:].any()
        assert not batch.degrees[row, n:].any()
        assert (batch.path_types[row, :n, :n] >= 0).all()
        assert (batch.path_types[row, n:] == -1).all()
        assert (batch.path_types[row, :, n:] == -1).all()


@pytest.mark.parametrize("ties", ["mean", "floyd-warshall"])
def test_collated_molecule_does_not_depend_on_the_batch(graphs, ties):
    batch = collate(graphs, path_ties=ties)
    for row, graph in enumerate(graphs):
        single = collate([graph], path_ties=ties)
        n = graph.num_atoms
        for name in ("atoms", "degrees"):
            assert torch.equal(getattr(batch, name)[row, :n], getattr(single, name)[0])
        assert pair_contents(batch, row) == pair_contents(single, 0)


@pytest.mark.parametrize("max_path", [1, 3, 5])
def test_only_the_first_bonds_are_encoded_and_weights_sum_to_one(graphs, max_path):
    batch = collate(graphs, max_path=max_path)
    for row in range(len(graphs)):
        for (i, j), (distance, weights) in pair_contents(batch, row).items():
            connected = i != j and distance < 510
            assert sum(weights.values()) == pytest.approx(int(connected), abs=1e-5)
            assert {code // 60 for code in weights} == set(range(min(distance, max_path) if connected else 0))


def test_path_ties_rules_differ_in_rings_only():
    ring, chain = ([smiles_to_graph(smiles)] for smiles in ("C1CC=CC=N1", "CC=CC=N"))
    assert pair_contents(collate(ring), 0) != pair_contents(collate(ring, path_ties="floyd-warshall"), 0)
    assert pair_contents(collate(chain), 0) == pair_contents(collate(chain, path_ties="floyd-warshall"), 0)


def test_batch_has_targets_and_rows(graphs):
    targets = np.array([[1.5, np.nan]] * len(graphs))
    store = GraphStore.from_arrays(MolArrays.from_graphs(graphs))
    batch = collate_rows(store, np.arange(6)[::-1], targets=Labels.of_molecules(targets))
    assert (batch.targets.dtype, batch.rows.dtype) == (torch.float32, torch.int64)
    np.testing.assert_array_equal(batch.targets.numpy(), targets.astype(np.float32))
    assert batch.rows.tolist() == [5, 4, 3, 2, 1, 0]
    plain = collate(graphs)
    assert plain.targets is None and plain.rows.tolist() == [0, 1, 2, 3, 4, 5]


def test_moving_to_another_device_keeps_every_field(graphs):
    batch = collate(graphs, targets=Labels.of_molecules(np.zeros((6, 1))))
    moved = batch.to("meta")
    for field in dataclasses.fields(batch):
        value, moved_value = getattr(batch, field.name), getattr(moved, field.name)
        assert (value is None) == (moved_value is None)
        if value is not None:
            assert (moved_value.device.type, moved_value.shape, moved_value.dtype) == ("meta", value.shape, value.dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_pinned_batch_moves_to_the_gpu(graphs):
    batch = collate(graphs).pin_memory()
    assert batch.atoms.is_pinned()
    moved = batch.to("cuda", non_blocking=True)
    assert torch.equal(moved.path_types.cpu(), batch.path_types)


def test_unusable_settings_and_molecules_raise(graphs):
    with pytest.raises(InputError, match="max_path must be from 1 to 509, not 0"):
        collate(graphs, max_path=0)
    bad = dataclasses.replace(graphs[0], bonds=graphs[0].bonds + 1)
    with pytest.raises(InputError, match="the molecule at index 6 has"):
        collate([*graphs, bad])
    store = GraphStore.from_arrays(*read_smiles(["C", "oops", "CC"])[:2])
    with pytest.raises(MoleculeError, match="row 1 of the store has no molecule"):
        collate_rows(store, [0, 2, 1])
