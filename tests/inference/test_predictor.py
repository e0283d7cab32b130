"""Predictor: invariance, inputs of every kind, and invalid molecules."""

import dataclasses

import numpy as np
import pytest
from invariance import check_batch_independence

import graphslice as gs
from graphslice.data.featurize import parse
from graphslice.data.store import GraphStore

# Symmetric, charged, several fragments, one atom, stereo, long.
MOLECULES = [
    "CCO", "c1ccccc1O", "[Na+].[Cl-]", "C", "[NH4+]", "C[C@H](N)C(=O)O", "C/C=C\\C", "CC(C)(C)c1ccc(cc1)S(=O)(=O)N",
    "C1CC2CCC1CC2", "O=C([O-])c1ccccc1.[K+]", "CCCCCCCCCCCCCCCC", "FC(F)(F)c1cc(ccc1Cl)NC(=O)Nc2ccncc2",
    "N#Cc1cc(C#N)cc(C#N)c1",
]  # fmt: skip


@pytest.mark.parametrize("mixer", ["slice-quantile", "softmax"])
def test_predictions_do_not_depend_on_batch_or_notation(mixer, make_predictor, demo_smiles):
    model = make_predictor(8.0, mixer=mixer, layers=2)
    check_batch_independence(lambda smiles: model.predict(smiles)[:, 0], MOLECULES + demo_smiles[:12])


def test_predict_accepts_graphs_and_iterators(predictor):
    graphs = [gs.smiles_to_graph("CCO"), gs.smiles_to_graph("C")]
    for molecules in (graphs, [graphs[0].to_pyg(), "C"], iter(graphs), (smiles for smiles in ["CCO", "C"])):
        np.testing.assert_allclose(predictor.predict(molecules), predictor.predict(["CCO", "C"]), rtol=1e-6)


@pytest.mark.parametrize("one", ["CCO", gs.smiles_to_graph("CCO"), gs.smiles_to_graph("CCO").to_pyg()], ids=type)
def test_predict_accepts_one_molecule(one, predictor):
    assert predictor.predict(one).shape == (1, 1)
    np.testing.assert_allclose(predictor.predict(one), predictor.predict(["CCO"]), rtol=1e-6)


def test_invalid_graphs_get_an_error_message(predictor):
    broken = gs.smiles_to_graph("CCO").to_pyg()
    broken.edge_attr = None
    result = predictor.predict([broken, gs.smiles_to_graph("C" * 600, max_atoms=600), "C"], details=True)
    assert "edge_attr" in result.errors[0] and "600 atoms" in result.errors[1] and result.errors[2] is None
    assert np.isnan(result.values[:2]).all() and np.isfinite(result.values[2]).all()


INCONSISTENT = (
    {"bonds": [[0, 1], [1, 3]]},
    {"bonds": [[0, 1], [1, 0]]},
    {"atoms": np.full((3, 9), 200, np.uint8)},
    {"atoms": np.zeros((3, 8), np.uint8)},
    {"bonds": [[0, 1], [1]]},
)


def test_inconsistent_graphs_get_an_error_message(predictor):
    """The other molecules are still predicted."""
    graph = gs.smiles_to_graph("CCO")
    bad = [dataclasses.replace(graph, **arrays) for arrays in INCONSISTENT]
    result = predictor.predict([graph, *bad, "CCO", graph], details=True)
    assert all(error.startswith("the graph has ") for error in result.errors[1:-2])
    assert result.errors[0] is None and result.errors[-2:] == [None, None]
    assert np.isnan(result.values[1:-2]).all() and len(np.unique(result.values[[0, -2, -1]].round(5))) == 1


def test_molecules_up_to_the_size_limit_are_predicted(predictor):
    """Also in a batch with a small molecule; one atom more than the limit gives an error message."""
    limit = predictor.config.graph.max_atoms
    result = predictor.predict(["C" * 500, "C", "C" * (limit + 1), "C" * limit], details=True)
    assert np.isfinite(result.values[[0, 1, 3]]).all() and np.isnan(result.values[2]).all()
    assert result.errors[2].startswith(f"{limit + 1} atoms, more than the limit of {limit}")
    assert result.values[0] == pytest.approx(predictor.predict("C" * 500)[0], rel=1e-4)


def test_predictions_that_are_not_finite_are_errors(make_predictor):
    model = make_predictor(scale=1e30)
    result = model.predict(["CCO"], details=True)
    assert np.isnan(result.values).all() and result.errors == ["the prediction is not a finite number"]


def test_store_rows_match_smiles(predictor):
    smiles = [*MOLECULES, "oops", *MOLECULES[::-1]]
    arrays, messages, *_ = parse(smiles, predictor.config.graph)
    store = GraphStore.from_arrays(arrays, messages)
    rows = np.array([3, 13, 0, 26, 3])
    predictions = predictor.predict_store_rows(store, rows)
    expected = predictor.predict([smiles[i] for i in rows], details=True)
    np.testing.assert_allclose(predictions.values, expected.values, rtol=1e-6)
    assert predictions.errors == expected.errors == [None, messages[13], None, None, None] and messages[13]


def test_pyg_dataset_counts_as_its_graphs(predictor):
    """Although it has an attribute edge_index, that of all graphs in one."""
    from torch_geometric.data import InMemoryDataset

    dataset = InMemoryDataset()
    dataset.data, dataset.slices = dataset.collate([gs.smiles_to_graph(one).to_pyg() for one in ("CCO", "C", "CN")])
    np.testing.assert_array_equal(predictor.predict(dataset), predictor.predict(["CCO", "C", "CN"]))


def test_pyg_batch_counts_as_its_graphs(predictor):
    """A batch of a DataLoader holds several molecules, not one."""
    from torch_geometric.data import Batch
    from torch_geometric.loader import DataLoader

    smiles = ["CCO", "c1ccccc1", "C", "[Na+].[Cl-]", "CC(=O)O"]
    graphs = [gs.smiles_to_graph(one).to_pyg() for one in smiles]
    expected = predictor.predict(smiles)
    batch = Batch.from_data_list(graphs)
    for molecules in (batch, [batch], DataLoader(graphs, batch_size=2)):
        np.testing.assert_allclose(predictor.predict(molecules), expected, atol=1e-5)
