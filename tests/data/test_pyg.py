"""Conversion of graphs to and from PyG, compared with OGB's own."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graphslice import MoleculeError, smiles_to_graph
from graphslice.data.loaders import from_pyg

SMILES = ["c1ccccc1O", "C", "[Na+].[Cl-]", "C/C=C/[C@H](F)Cl", "C1" + "C" * 20 + "C1"]


@pytest.fixture
def data() -> Data:
    return smiles_to_graph("CC(=O)O", atom_order="input").to_pyg()


@pytest.mark.parametrize("smiles", SMILES)
def test_to_pyg_matches_ogb(smiles, smiles2graph):
    ogb, converted = smiles2graph(smiles), smiles_to_graph(smiles, atom_order="input").to_pyg()
    assert converted.num_nodes == ogb["num_nodes"]
    for name, key in {"x": "node_feat", "edge_index": "edge_index", "edge_attr": "edge_feat"}.items():
        value = getattr(converted, name)
        assert value.dtype == torch.int64
        np.testing.assert_array_equal(value.numpy(), ogb[key])
    assert converted.validate()


@pytest.mark.parametrize("smiles", SMILES)
def test_round_trip_preserves_graph(smiles):
    graph = smiles_to_graph(smiles)
    back = from_pyg(graph.to_pyg())
    for name in ("atoms", "bonds", "bond_features"):
        np.testing.assert_array_equal(getattr(back, name), getattr(graph, name), strict=True)


def test_order_of_edges_does_not_matter(data):
    order = torch.tensor([4, 1, 5, 0, 3, 2])
    moved = from_pyg(Data(x=data.x, edge_index=data.edge_index[:, order], edge_attr=data.edge_attr[order]))
    expected = from_pyg(data)

    def as_set(graph):
        return {(*ends, *features) for ends, features in zip(graph.bonds, graph.bond_features, strict=True)}

    assert as_set(moved) == as_set(expected)
    assert len(as_set(moved)) == 3


def test_integral_floats_and_missing_bonds_are_accepted(data):
    data.x = data.x.float()
    assert from_pyg(data).atoms.dtype == np.uint8
    single = from_pyg(Data(x=data.x[:1]))
    assert (single.num_atoms, single.bonds.shape, single.bond_features.shape) == (1, (0, 2), (0, 3))


def changed(name, index, value):
    def change(data):
        tensor = getattr(data, name).clone().to(torch.float64 if isinstance(value, float) else torch.int64)
        tensor[index] = value
        setattr(data, name, tensor)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: setattr(data, "x", None), "not OGB's"),
        (lambda data: setattr(data, "x", data.x[:, :8]), "atoms that are not integers"),
        (lambda data: setattr(data, "edge_attr", data.edge_attr[:, :2]), "bond_features that are not integers"),
        (changed("x", (0, 0), 119), "out of range"),
        (changed("edge_index", (0, 0), 4), "once in each direction"),
        (changed("edge_index", (1, 0), 4), "out of range"),
        (changed("edge_attr", (0, 0), 2), "same features"),
    ],
)
def test_invalid_data_is_rejected_with_reason(data, change, message):
    change(data)
    with pytest.raises(MoleculeError, match=message):
        from_pyg(data)


def test_one_way_and_repeated_bonds_are_rejected(data):
    half = Data(x=data.x, edge_index=data.edge_index[:, ::2], edge_attr=data.edge_attr[::2])
    with pytest.raises(MoleculeError, match="once in each direction"):
        from_pyg(half)
    twice = Data(x=data.x, edge_index=data.edge_index.repeat(1, 2), edge_attr=data.edge_attr.repeat(2, 1))
    with pytest.raises(MoleculeError, match="repeated"):
        from_pyg(twice)


def test_features_of_pyg_from_smiles_are_rejected():
    from torch_geometric.utils import from_smiles

    with pytest.raises(MoleculeError, match="not OGB's"):
        from_pyg(from_smiles("CCO"))
    data = smiles_to_graph("CCO").to_pyg()
    data.smiles = "OCC"
    assert from_pyg(data).num_atoms == 3
