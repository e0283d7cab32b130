from __future__ import annotations

import numpy as np
import pytest

from graphslice.chem import smiles_to_graph
from graphslice.config import GraphConfig
from graphslice.data.store import GraphStore, featurize, featurizers

SMILES = ["CCO", "c1ccccc1", "[Na+].[Cl-]", "C", "CC(C)(C)O"]


def same(one, other) -> bool:
    return all(np.array_equal(getattr(one, n), getattr(other, n)) for n in ("atoms", "bonds", "bond_features"))


@pytest.fixture
def graphs():
    return [smiles_to_graph(text) for text in SMILES]


def test_every_molecule_comes_back(graphs):
    store = GraphStore.from_graphs(graphs)
    assert len(store) == 5 and store.sizes.tolist() == [3, 6, 2, 1, 5]
    assert all(same(store[i], graph) for i, graph in enumerate(graphs))
    assert same(store[-1], graphs[-1]) and same(store[np.int64(1)], graphs[1])
    assert [g.num_atoms for g in store[1:4]] == [6, 2, 1]
    assert [g.num_bonds for g in store] == [2, 6, 0, 0, 4]
    assert np.shares_memory(store[1].atoms, store.atoms)


@pytest.mark.parametrize("index", [5, -6])
def test_no_such_molecule(graphs, index):
    with pytest.raises(IndexError):
        GraphStore.from_graphs(graphs)[index]


def test_join(graphs):
    parts = [GraphStore.from_graphs(part) for part in ([], graphs[:2], [], graphs[2:])]
    store, whole = GraphStore.join(parts), GraphStore.from_graphs(graphs)
    assert len(store) == 5 and all(same(a, b) for a, b in zip(store, whole, strict=True))
    for name in ("atom_ptr", "bond_ptr", "atoms", "bonds", "bond_features"):
        assert getattr(store, name).dtype == getattr(whole, name).dtype
    assert len(GraphStore.from_graphs([])) == 0


def test_featurize_says_why_not(graphs):
    store, reasons = featurize(["CCO", "oops", "", "c1ccccc1", None, "C" * 13], GraphConfig(max_atoms=12))
    assert len(store) == 2 and same(store[0], graphs[0]) and same(store[1], graphs[1])
    assert [reason is None for reason in reasons] == [True, False, False, True, False, False]
    assert reasons[2] == reasons[4] == "empty SMILES" and "13 atoms" in reasons[5]


@pytest.mark.parametrize("order", ["canonical", "input"])
def test_featurize_takes_the_atom_order(order):
    store, _ = featurize(["OCC"], GraphConfig(atom_order=order))
    assert same(store[0], smiles_to_graph("OCC", atom_order=order))


def test_featurize_nothing():
    store, reasons = featurize([], GraphConfig())
    assert len(store) == 0 and reasons == []


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_keep_the_order(workers):
    smiles = ["C" * (1 + i % 7) if i % 50 else "oops" for i in range(1300)]
    done = []
    with featurizers(workers=workers) as pool:
        assert (pool is None) == (workers == 1)
        store, reasons = featurize(smiles, GraphConfig(), pool=pool, progress=done.append)
    assert [i for i, reason in enumerate(reasons) if reason] == list(range(0, 1300, 50))
    assert store.sizes.tolist() == [1 + i % 7 for i in range(1300) if i % 50]
    assert sum(done) == 1300 and len(done) > 1


def test_few_rows_need_no_processes():
    with featurizers(100, workers=8) as pool:
        assert pool is None
