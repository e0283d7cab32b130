"""Bond matrices (bond type and smallest ring) against networkx."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.chem.molecule import MolArrays, smiles_to_graph
from graphslice.chem.paths import bond_matrices

SMILES = [
    "C",
    "[Na+].[Cl-]",
    "C1CC1CC",
    "c1ccc2c(c1)ccc1ccccc12",
    "C12C3C4C1C5C2C3C45",
    "C1CC2CCC1CC2",
    "C1CCCCCCCCCCC1OC1CCCCCCC1",
    "C1CCC2(CC1)CCC2.c1ccccc1",
    "C#N",
]


def expected_matrix(graph, width):
    """Compute ring sizes by removing each bond and searching for the shortest path between its ends."""
    complete = nx.Graph(graph.bonds.tolist())
    matrix = np.zeros((width + 1, width + 1), int)
    for (i, j), (kind, stereo, conjugated) in zip(graph.bonds.tolist(), graph.bond_features.tolist(), strict=True):
        without_bond = complete.copy()
        without_bond.remove_edge(i, j)
        size = nx.shortest_path_length(without_bond, i, j) + 1 if nx.has_path(without_bond, i, j) else 0
        ring = 0 if not size else size - 2 if size <= 8 else 7
        matrix[i + 1, j + 1] = matrix[j + 1, i + 1] = 1 + (kind * 6 + stereo) * 2 + conjugated + 60 * ring
    return matrix


def matrices_of(graphs, width):
    arrays = MolArrays.from_graphs(graphs)
    return bond_matrices(arrays.atom_ptr, arrays.bond_ptr, arrays.bonds, arrays.bond_type_ids, width)


@pytest.mark.parametrize("order", ["canonical", "input"])
def test_bond_types_and_ring_sizes_match_networkx(order):
    graphs = [smiles_to_graph(smiles, atom_order=order) for smiles in SMILES]
    width = max(graph.num_atoms for graph in graphs) + 2
    matrices = matrices_of(graphs, width)
    assert matrices.dtype == np.int16 and matrices.shape == (len(graphs), width + 1, width + 1)
    for matrix, graph in zip(matrices, graphs, strict=True):
        np.testing.assert_array_equal(matrix, expected_matrix(graph, width))
    assert {0, 1, 2, 4, 6, 7} <= set(((matrices[matrices > 0] - 1) // 60).tolist())


@settings(max_examples=40)
@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20))
def test_arbitrary_graphs_match_networkx(atoms, pairs):
    """Also graphs that are not molecules: many rings through one bond, and several fragments."""
    bonds = sorted({(min(p), max(p)) for p in pairs if p[0] != p[1] and max(p) < atoms})
    graph = smiles_to_graph("C" * atoms, atom_order="input")
    features = np.zeros((len(bonds), 3), np.uint8)
    modified = type(graph)(graph.atoms, np.array(bonds, np.int32).reshape(-1, 2), features)
    np.testing.assert_array_equal(matrices_of([modified], atoms)[0], expected_matrix(modified, atoms))
