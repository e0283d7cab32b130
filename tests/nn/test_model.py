"""The complete model: size, invariances, readouts, initialisation and settings."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from mixer_samples import SMILES

from graphslice import GraphTransformer, InputError, ModelConfig, MolGraph, smiles_to_graph
from graphslice.data.batches import collate
from graphslice.nn.mixers import MIXERS
from graphslice.system.machine import CONFIGS

#: Settings of the second version of Graphormer, and of its pre-norm variant.
POST = {"norm": "post", "embedding_norm": True, "head": "mlp"}
OPEN = {"norm": "pre", "head": "mlp"}
TWO = ["slice-quantile", "softmax"]


def model_of(mixer="slice-max", seed=0, **settings) -> GraphTransformer:
    """Create a model with large weights, so that differences exceed the tolerances."""
    torch.manual_seed(seed)
    readout = "token+mean+sum+max+quantiles+atomwise"
    settings = {"layers": 2, "dim": 16, "heads": 4, "ffn_dim": 24, "readout": readout} | settings
    model = GraphTransformer(ModelConfig(mixer=mixer, **settings)).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.4)
    return model


def shuffled(graph: MolGraph, seed: int) -> MolGraph:
    rng = np.random.default_rng(seed)
    new, bond_order = rng.permutation(graph.num_atoms), rng.permutation(graph.num_bonds)
    atoms = np.empty_like(graph.atoms)
    atoms[new] = graph.atoms
    return MolGraph(
        atoms, new[graph.bonds[bond_order]].astype(np.int32)[:, ::-1].copy(), graph.bond_features[bond_order]
    )


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("pcqm4m-graphormer", 47_085_377),
        ("pcqm4m-slice", 32_911_169),
        ("pcqm4m-slice-interleave", 32_911_169),
        ("pcqm4m-slice-max", 32_911_169),
        ("pcqm4m-slice-released-interleave", 32_911_169),
        # Hugging Face's file holds 191 MB of float32.
        ("pcqm4mv2-graphormer", 47_677_505),
    ],
)
def test_published_models_have_the_published_sizes(preset, parameters):
    with torch.device("meta"):
        assert GraphTransformer(ModelConfig.preset(preset)).num_parameters == parameters


def test_every_preset_builds():
    for path in CONFIGS.glob("*.yaml"):
        with torch.device("meta"):
            model = GraphTransformer(ModelConfig.preset(path.stem))
        if path.stem.startswith("zinc12k"):
            assert 400_000 < model.num_parameters <= 500_000


@pytest.mark.parametrize(
    ("mixer", "settings"),
    [*((mixer, {}) for mixer in sorted(MIXERS)), *((mixer, settings) for mixer in TWO for settings in (POST, OPEN))],
)
def test_prediction_does_not_depend_on_the_batch(mixer, settings):
    model, graphs = model_of(mixer, **settings), [smiles_to_graph(smiles) for smiles in SMILES]
    batch_predictions = model(collate(graphs))
    assert batch_predictions.shape == (len(SMILES), 1)
    assert batch_predictions.std() > 0.1
    alone = torch.cat([model(collate([graph])) for graph in graphs])
    torch.testing.assert_close(batch_predictions, alone, rtol=1e-6, atol=1e-6)
    back = model(collate(graphs[::-1])).flip(0)
    torch.testing.assert_close(batch_predictions, back, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mixer", TWO)
def test_atom_order_does_not_change_predictions_of_equivariant_mixers(mixer):
    model, graphs = model_of(mixer), [smiles_to_graph(smiles, atom_order="input") for smiles in SMILES]
    before = model(collate(graphs))
    change = max((model(collate([shuffled(g, seed) for g in graphs])) - before).abs().max().item() for seed in range(3))
    assert change < 1e-4 * before.abs().max()  # the weights of the paths in the edge encoding are float32


@pytest.mark.parametrize("settings", [{}, POST], ids=["pre", "post"])
def test_bond_messages(settings):
    model = model_of(bond_messages=True, **settings)
    graphs = [smiles_to_graph(smiles, atom_order="input") for smiles in SMILES]
    batch_predictions = model(collate(graphs, bonds=True))
    alone = torch.cat([model(collate([graph], bonds=True)) for graph in graphs])
    torch.testing.assert_close(batch_predictions, alone, rtol=1e-6, atol=1e-6)
    permuted = model(collate([shuffled(graph, 1) for graph in graphs], bonds=True))
    torch.testing.assert_close(batch_predictions, permuted, rtol=1e-4, atol=1e-4 * batch_predictions.abs().max().item())
    with torch.no_grad():
        for block in model.blocks:
            block.messages.output.weight.zero_()
            block.messages.output.bias.zero_()
    plain = model_of(**settings)
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "messages" not in name})
    torch.testing.assert_close(
        model(collate(graphs, bonds=True)), plain(collate(graphs, bonds=True)), rtol=1e-9, atol=1e-9
    )
    assert (model(collate(graphs, bonds=True)) - batch_predictions).abs().min() > 1e-4
    with pytest.raises(ValueError, match="the model expects bonds, but the batch has none"):
        model(collate(graphs))


def test_stereo_changes_the_prediction():
    left, right = model_of()(collate([smiles_to_graph(s) for s in ("N[C@@H](C)C(=O)O", "N[C@H](C)C(=O)O")]))
    assert (left - right).abs() > 1e-3


@pytest.mark.parametrize("settings", [{"bond_messages": True}, POST, OPEN], ids=["pre", "post", "open"])
@pytest.mark.parametrize("mixer", TWO)
def test_every_parameter_has_a_gradient(mixer, settings):
    model = model_of(mixer, num_distances=33, attention_dropout=0.1, **settings).train()
    model(collate([smiles_to_graph(smiles) for smiles in SMILES], bonds=True)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        if not name.endswith("mixer.key.bias"):
            assert parameter.grad.abs().max() > 0, name


def test_distance_start_initialises_heads_by_distance():
    chain = collate([smiles_to_graph("C" * 9, atom_order="input")])
    biases = []
    for start in (True, False):
        torch.manual_seed(0)
        biases.append(GraphTransformer(ModelConfig(heads=8, dim=16, distance_start=start)).pairs(chain).attn_bias[0])
    difference = (biases[0] - biases[1])[:, 1:, 1:]
    distances = (torch.arange(9)[:, None] - torch.arange(9)).abs()
    expected = torch.stack([4.0 * (distances == head % 6) for head in range(8)])
    torch.testing.assert_close(difference, expected, atol=1e-5, rtol=0)


def test_predictions_are_in_the_unit_of_the_targets():
    model, batch = model_of(tasks=2), collate([smiles_to_graph("CCO"), smiles_to_graph("CC")])
    plain = model(batch)
    model.target_mean.copy_(torch.tensor([10.0, -3.0]))
    model.target_std.copy_(torch.tensor([2.0, 0.5]))
    torch.testing.assert_close(model(batch), torch.stack([plain[:, 0] * 2 + 10, plain[:, 1] * 0.5 - 3], dim=1))
    torch.testing.assert_close(model.standardised(batch), plain)


def test_new_model_has_the_original_initialisation():
    torch.manual_seed(0)
    model = GraphTransformer(ModelConfig(mixer="softmax", layers=4, dim=256, ffn_dim=256))
    assert model.blocks[0].mixer.query.weight.std().item() == pytest.approx(0.02 / 2, rel=0.05)
    assert model.blocks[3].ffn.contract.weight.std().item() == pytest.approx(0.02 / 2, rel=0.05)
    assert model.atoms.atom.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks[0].ffn.expand.bias.abs().max() == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"readout": "token+maen"}, r"did you mean 'mean'"),
        ({"readout": "mean+atomwise", "level": "atom"}, r"data.level atom needs another readout than atomwise"),
        ({"embedding_layout": "zinc"}, "embedding_layout must be ogb or graphormer"),
        ({"dim": 10, "heads": 4}, r"model.heads \(4\) must divide model.dim \(10\)"),
        ({"max_path": 6}, r"model.max_path must be from 1 to 5, not 6"),
    ],
    ids=repr,
)
def test_invalid_settings_are_rejected_with_a_message(settings, message):
    with pytest.raises(InputError, match=message):
        GraphTransformer(ModelConfig(**settings))


@pytest.mark.parametrize("mixer", ["slice-max", "slice-quantile"])
def test_balanced_initialisation_preserves_the_scale_of_the_rows(mixer):
    """The standard deviation is between 1 and 5 before the first block and at most doubles until the last."""
    torch.manual_seed(0)
    model = GraphTransformer(ModelConfig(mixer=mixer, layers=8, dim=256, ffn_dim=256, init="balanced")).eval()
    stds = []
    norms = [block.mixer_norm for block in model.blocks] + [model.norm]  # inputs of the blocks, and the final output
    for norm in norms:
        norm.register_forward_hook(lambda _, inputs, outputs: stds.append(outputs[0].std().item()))
    with torch.no_grad():
        model(collate([smiles_to_graph(smiles) for smiles in SMILES]))
    pairs = list(pairwise(stds))
    assert 1 < pairs[0][0] < 5
    assert all(0.95 * before < after < 1.3 * before for before, after in pairs), pairs
    assert pairs[-1][1] < 2 * pairs[0][0]
    assert model.blocks[0].mixer.output.weight.std().item() == pytest.approx(256**-0.5 / 4, rel=0.05)
    assert model.blocks[0].mixer.value.weight.std().item() == pytest.approx(256**-0.5, rel=0.05)
    assert model.pairs.bond.weight.std().item() == pytest.approx(0.02, rel=0.2)
