"""Encodings compared with sums over the shortest paths of networkx, atom by atom and pair by pair."""

import itertools

import networkx as nx
import numpy as np
import pytest
import torch

from graphslice import smiles_to_graph
from graphslice.data.batches import collate
from graphslice.nn.encodings import AtomEncoder, PairEncoder

SMILES = ["c1ccc2c(c1)ccc1ccccc12", "C", "C/C=C/C#N.[Na+].[Cl-]", "C12C3C4C1C5C2C3C45", "C" * 14, "OC1CCC(=O)CC1"]
HEADS, DIM = 3, 8
#: First row of each feature: consecutive for OGB, 512 rows per feature in the original layout.
ATOM_STARTS = {"ogb": np.cumsum([0, 119, 5, 12, 12, 10, 6, 6, 2]), "graphormer": 2 + 512 * np.arange(9)}
BOND_STARTS = {"ogb": np.array([0, 5, 11]), "graphormer": 3 + 512 * np.arange(3)}


def graphs():
    return [smiles_to_graph(smiles, atom_order="input") for smiles in SMILES]


def pair_encoder(embedding_layout="ogb", num_distances=64, num_path_positions=6, max_path=5):
    torch.manual_seed(0)
    encoder = PairEncoder(HEADS, embedding_layout, num_distances, num_path_positions, max_path, False).double()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter)
    return encoder


def slow_bias(graph, encoder, embedding_layout, num_distances, max_path):
    """Compute the bias ``[H, n + 1, n + 1]`` from all shortest paths of all pairs."""
    bond_table, maps, spatial, token = (
        encoder.get_parameter(f"{name}.weight").detach().numpy() for name in ("bond", "position", "spatial", "token")
    )
    maps = maps.reshape(-1, HEADS, HEADS)
    molecule = nx.Graph()
    molecule.add_nodes_from(range(graph.num_atoms))
    for (a, b), features in zip(graph.bonds.tolist(), graph.bond_features, strict=True):
        molecule.add_edge(a, b, vector=bond_table[BOND_STARTS[embedding_layout] + features].mean(axis=0))
    bias = np.empty((HEADS, graph.num_atoms + 1, graph.num_atoms + 1))
    bias[:, 0, :] = bias[:, :, 0] = token[0][:, None]
    for i, j in itertools.product(molecule, repeat=2):
        if not nx.has_path(molecule, i, j):
            bias[:, i + 1, j + 1] = spatial[num_distances - 1]
            continue
        paths = list(nx.all_shortest_paths(molecule, i, j))
        distance = len(paths[0]) - 1
        edges = np.zeros(HEADS)
        for path in paths:
            for position, (a, b) in enumerate(list(itertools.pairwise(path))[:max_path]):
                edges += molecule.edges[a, b]["vector"] @ maps[position] / len(paths)
        # Rows: 0 unused, s + 1 for a distance s, the last for unconnected pairs.
        row = min(distance + 1, num_distances - 2)
        bias[:, i + 1, j + 1] = spatial[row] + edges / max(1, min(distance, max_path))
    return bias


@pytest.mark.parametrize(
    ("embedding_layout", "num_distances", "max_path"),
    [("ogb", 64, 5), ("ogb", 8, 5), ("ogb", 64, 1), ("ogb", 64, 6), ("graphormer", 512, 5)],
)
def test_bias_matches_slow_computation(embedding_layout, num_distances, max_path):
    encoder = pair_encoder(embedding_layout, num_distances, max_path=max_path)
    bias = encoder(collate(graphs(), max_path=max_path)).attn_bias.detach().numpy()
    assert bias.shape == (len(SMILES), HEADS, 15, 15)
    for graph, graph_bias in zip(graphs(), bias, strict=True):
        n = graph.num_atoms + 1
        expected = slow_bias(graph, encoder, embedding_layout, num_distances, max_path)
        np.testing.assert_allclose(graph_bias[:, :n, :n], expected, atol=2e-5)


def test_autocast_rounds_only_the_results():
    encoder, batch = pair_encoder().float(), collate(graphs())
    full = encoder(batch)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = encoder(batch)
    assert torch.equal(mixed.attn_bias, full.attn_bias.bfloat16())
    assert torch.equal(mixed.attn_weights, full.attn_weights.bfloat16())


def test_weights_are_the_softmax_of_the_bias():
    context = pair_encoder()(collate(graphs()))
    expected = torch.softmax(context.attn_bias, dim=-1) * context.mask[:, None, :, None]
    torch.testing.assert_close(context.attn_weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("embedding_layout", ["ogb", "graphormer"])
def test_atom_embedding_is_the_sum_of_its_rows(embedding_layout):
    torch.manual_seed(0)
    encoder = AtomEncoder(DIM, embedding_layout, num_degrees=4).double()
    embeddings = encoder(collate(graphs())).detach().numpy()
    table, into, out, token = (
        encoder.get_parameter(f"{name}.weight").detach().numpy()
        for name in ("atom", "in_degree", "out_degree", "token")
    )
    assert embeddings.shape == (len(SMILES), 15, DIM)
    for graph, rows in zip(graphs(), embeddings, strict=True):
        expected = [token[0]]
        for atom, features in enumerate(graph.atoms):
            degree = min((graph.bonds == atom).sum() + 1, 3)
            expected.append(table[ATOM_STARTS[embedding_layout] + features].sum(axis=0) + into[degree] + out[degree])
        np.testing.assert_allclose(rows[: graph.num_atoms + 1], expected, atol=1e-12)
