"""``gs.collate_molecules``: batches for a training loop of the user's own, with PyG and with Lightning."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader

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


def test_batch_of_another_level_has_no_targets(graphs, make_predictor):
    assert gs.collate_molecules(graphs, make_predictor(level="atom").config).targets is None


@pytest.mark.parametrize(
    ("molecules", "reason"), [(["C", "C[N"], "row 1 .*: not a valid SMILES"), ([], "there are no")]
)
def test_invalid_molecules_are_named(molecules, reason, predictor):
    with pytest.raises(gs.InputError, match=reason):
        gs.collate_molecules(molecules, predictor.config)


def test_lightning_and_a_loop_of_pyg_train_alike(graphs, make_predictor):
    """Same batches, same optimiser: the same weights."""
    import pytorch_lightning as pl

    class Regression(pl.LightningModule):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def training_step(self, batch, index):
            return torch.nn.functional.l1_loss(self.network(batch), batch.targets)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    predictor = make_predictor(dropout=0.0, input_dropout=0.0, attention_dropout=0.0)
    collate = partial(gs.collate_molecules, config=predictor.config)
    plain = copy.deepcopy(predictor.model).train()
    module = Regression(copy.deepcopy(plain))
    optimizer = torch.optim.SGD(plain.parameters(), 0.01)
    for batch in DataLoader(graphs, batch_size=4):
        loss = (plain(collate(batch))[:, 0] - batch.y).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    loader = torch.utils.data.DataLoader(graphs, batch_size=4, collate_fn=collate)
    pl.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(module, loader)
    trained = module.network.state_dict()
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(trained[name], weight, msg=name)
    assert not torch.equal(plain.head.weight, predictor.model.head.weight)
