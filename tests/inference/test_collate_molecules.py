"""``gs.collate_molecules``: batches for a training loop of the user's own, with PyG and with Lightning."""

from functools import partial

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch

import graphslice as gs

SMILES = ["CCO", "c1ccccc1O", "C", "[Na+].[Cl-]", "CC(=O)N", "C#N"]


@pytest.fixture
def graphs() -> list:
    data = [gs.smiles_to_graph(smiles).to_pyg() for smiles in SMILES]
    for number, graph in enumerate(data):
        graph.y = torch.tensor([float(number)])
    return data


@pytest.mark.parametrize("kind", ["smiles", "graphs", "pyg", "batch"])
def test_network_of_a_batch_predicts_what_the_model_does(kind, graphs, predictor):
    molecules = {
        "smiles": SMILES,
        "graphs": [gs.smiles_to_graph(smiles) for smiles in SMILES],
        "pyg": graphs,
        "batch": Batch.from_data_list(graphs),
    }[kind]
    batch = gs.collate_molecules(molecules, predictor.config)
    with torch.inference_mode():
        np.testing.assert_allclose(predictor.model(batch), predictor.predict(SMILES), rtol=1e-5, atol=1e-6)


def test_labels_of_graphs_are_targets(graphs, predictor):
    collate = partial(gs.collate_molecules, config=predictor.config)
    graphs[1].y = torch.tensor([float("nan")])
    expected = torch.tensor([[0.0], [torch.nan], [2.0], [3.0], [4.0], [5.0]])
    torch.testing.assert_close(collate(graphs).targets, expected, equal_nan=True)
    torch.testing.assert_close(collate(Batch.from_data_list(graphs)).targets, expected, equal_nan=True)
    assert collate([*graphs, "C"]).targets is None is collate(SMILES).targets


@pytest.mark.parametrize("level", ["atom", "bond"])
def test_batch_of_atoms_or_bonds_is_in_the_order_of_the_smiles(level, graphs, make_predictor):
    model = make_predictor(8.0, level=level, layers=2)
    batch = gs.collate_molecules(molecules := ["OCC", *graphs, "NC(C)=O"], model.config)
    expected = np.concatenate(model.predict(molecules))
    with torch.inference_mode():
        np.testing.assert_allclose(model.model(batch), expected, rtol=1e-4, atol=1e-5)
    assert batch.targets is None


@pytest.mark.parametrize(
    ("molecules", "reason"), [(["C", "C[N"], "row 1 .*: not a valid SMILES"), ([], "there are no")]
)
def test_invalid_molecules_are_named(molecules, reason, predictor):
    with pytest.raises(gs.InputError, match=reason):
        gs.collate_molecules(molecules, predictor.config)
