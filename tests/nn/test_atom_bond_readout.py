"""Models with atom-level and bond-level targets."""

import pytest
import torch
from tiny import TINY

from graphslice.batch import GraphBatch
from graphslice.chem.molecule import smiles_to_graph
from graphslice.config import ModelConfig
from graphslice.data.batches import collate
from graphslice.errors import InputError
from graphslice.nn import GraphTransformer
from graphslice.nn.mixers import MIXERS
from graphslice.nn.traced_model import run_as_program
from graphslice.program.run import programs_disabled

MOLECULES = ["OCC", "C", "[Na+].[Cl-]", "CC(=O)Nc1ccc(O)cc1", "N->[Pt](Cl)(Cl)<-N"]


def model_of(level: str, **settings) -> GraphTransformer:
    torch.manual_seed(0)
    model = GraphTransformer(ModelConfig(**{**TINY, "level": level, "layers": 2, **settings})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return model


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize("level", ["atom", "bond"])
def test_predictions_match_the_formula(level, head):
    model, graphs = model_of(level, head=head, tasks=3), [smiles_to_graph(smiles) for smiles in MOLECULES]
    predictions, rows = model(collate(graphs, level=level)), []
    for graph in graphs:
        batch = collate([graph], level=level)
        x = model.run_blocks(model.embed(batch), model.context(batch).tensors())[0, 1:]
        if level == "atom":
            rows.append(model.head(x))
            continue
        kinds = collate([graph], level=level).atom_bond_index[:, 3]
        for (a, b), kind in zip(graph.bonds.tolist(), kinds, strict=True):
            features = (
                model.atom_bond_readout.pair(torch.cat([x[a] + x[b], (x[a] - x[b]).abs()]))
                + model.atom_bond_readout.kind.weight[kind]
            )
            rows.append(model.head(torch.nn.functional.gelu(features))[None])
    torch.testing.assert_close(predictions, torch.cat(rows), rtol=1e-4, atol=1e-5)
    assert predictions.std(dim=0).min() > 1e-3


@pytest.mark.parametrize("level", ["atom", "bond"])
def test_traced_program_matches_modules(level):
    batch = collate([smiles_to_graph(smiles) for smiles in MOLECULES], level=level)
    model = model_of(level)
    rows = run_as_program(model, GraphTransformer._encode.__wrapped__, batch)
    assert rows is not None and rows.shape == (5, 12, 16)
    results = [_with_gradients(model, batch)]
    with programs_disabled():
        results.append(_with_gradients(model_of(level), batch))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)


def _with_gradients(model: GraphTransformer, batch: GraphBatch) -> list[torch.Tensor]:
    out = model(batch)
    out.square().sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def test_atom_level_model_still_computes_molecule_embeddings():
    batch = collate([smiles_to_graph(smiles) for smiles in MOLECULES], level="atom")
    model = model_of("atom", readout="mean+max")
    assert model.compute_embeddings(batch).shape == (5, 32) and model(batch).shape == (22, 1)
    with pytest.raises(ValueError, match="has no atom_bond_index"):
        model(collate([smiles_to_graph("C")]))


def test_molecule_without_bonds_gives_no_predictions():
    model, batch = model_of("bond"), collate([smiles_to_graph("C")], level="bond")
    assert model(batch).shape == (0, 1)
    model(batch).sum().backward()


def test_mixers_that_are_not_equivariant_are_rejected():
    rejected = set()
    for mixer in MIXERS:
        try:
            GraphTransformer(ModelConfig(**{**TINY, "mixer": mixer, "level": "atom"}))
        except InputError as error:
            assert "not permutation-equivariant" in str(error)
            rejected.add(mixer)
    assert rejected == {"slice-ascend", "slice-interleave", "slice-released"}
    with pytest.raises(InputError, match="symmetric bonds would get different predictions"):
        GraphTransformer(ModelConfig(mixer="csp", mixer_settings={"groups": 2}, level="bond"))
