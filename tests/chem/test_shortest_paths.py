"""Shortest paths against networkx, scipy and a plain Floyd-Warshall."""

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice import smiles_to_graph
from graphslice.chem import paths
from graphslice.chem.molecule import bond_type_ids

APART = 510
#: (number of atoms, {(a, b): its bond type})
Graph = tuple[int, dict[tuple[int, int], int]]


def path_types(graphs: list[Graph], rule: int = paths.MEAN, max_path: int = 5, width: int | None = None):
    """Run :func:`shortest_path_types`; return for every pair its distance and {(position, bond type): weight}."""
    bonds = [np.array(list(bonds), np.int32).reshape(-1, 2) for _, bonds in graphs]
    atom_ptr = np.cumsum([0, *(n for n, _ in graphs)])
    bond_ptr = np.cumsum([0, *map(len, bonds)])
    bond_types = np.array([number for _, bonds in graphs for number in bonds.values()], np.uint8)
    width = width or max(n for n, _ in graphs)
    pairs, distances, ptr, codes, weights = paths.shortest_path_types(
        atom_ptr, bond_ptr, np.concatenate(bonds), bond_types, rule, max_path, width
    )
    assert pairs.shape == (len(graphs), width, width)
    contents = [
        {divmod(int(c), 60): float(w) for c, w in zip(codes[a:b], weights[a:b], strict=True)}
        for a, b in itertools.pairwise(ptr)
    ]
    assert [len(c) for c in contents] == np.diff(ptr).tolist()  # no duplicate entries
    result = []
    for graph, (n, _) in zip(pairs, graphs, strict=True):
        assert (graph[n:] == -1).all() and (graph[:, n:] == -1).all()
        result.append({(i, j): (int(distances[w]), contents[w]) for (i, j), w in np.ndenumerate(graph[:n, :n])})
    return result


def bond_type_of(bonds, a, b):
    return bonds[(a, b)] if (a, b) in bonds else bonds[(b, a)]


def mean_of_all_paths(graph: Graph, i: int, j: int, max_path: int = 5):
    """Average over all shortest paths, one by one."""
    n, bonds = graph
    networkx_graph = nx.Graph(list(bonds))
    networkx_graph.add_nodes_from(range(n))
    if i == j or not nx.has_path(networkx_graph, i, j):
        return (0 if i == j else APART), {}
    all_paths = list(nx.all_shortest_paths(networkx_graph, i, j))
    length, weights = min(len(all_paths[0]) - 1, max_path), {}
    for path in all_paths:
        for position, (a, b) in enumerate(itertools.islice(itertools.pairwise(path), max_path)):
            key = position, bond_type_of(bonds, a, b)
            weights[key] = weights.get(key, 0) + 1 / length / len(all_paths)
    return len(all_paths[0]) - 1, weights


def original_floyd_warshall(graph: Graph, max_path: int = 5):
    """Floyd-Warshall of the original code: ascending k, strict improvements, recursive reconstruction of paths."""
    n, bonds = graph
    far = 10**6
    distance = [[0 if i == j else far for j in range(n)] for i in range(n)]
    via = [[None] * n for _ in range(n)]
    for a, b in bonds:
        distance[a][b] = distance[b][a] = 1
    for k, i, j in itertools.product(range(n), repeat=3):
        if distance[i][k] + distance[k][j] < distance[i][j]:
            distance[i][j] = distance[i][k] + distance[k][j]
            via[i][j] = k

    def between(i, j):
        k = via[i][j]
        return [] if k is None else [*between(i, k), k, *between(k, j)]

    result = {}
    for i, j in itertools.product(range(n), repeat=2):
        if i == j or distance[i][j] >= far:
            result[i, j] = (0 if i == j else APART), {}
            continue
        path = [i, *between(i, j), j]
        steps = list(itertools.pairwise(path))[:max_path]
        weights = {(at, bond_type_of(bonds, a, b)): 1 / len(steps) for at, (a, b) in enumerate(steps)}
        result[i, j] = distance[i][j], weights
    return result


def assert_same(found: dict, expected: dict):
    assert found.keys() == expected.keys()
    for pair, (distance, weights) in expected.items():
        assert found[pair][0] == distance, pair
        assert found[pair][1] == pytest.approx(weights, abs=1e-5), pair


@st.composite
def graphs(draw, max_atoms=9, bond_types=4):
    """Draw arbitrary graphs, many with several fragments, rings and ties."""
    n = draw(st.integers(1, max_atoms))
    possible = list(itertools.combinations(range(n), 2))
    chosen = draw(st.lists(st.sampled_from(possible), unique=True, max_size=2 * n)) if possible else []
    turned = [(b, a) if draw(st.booleans()) else (a, b) for a, b in chosen]
    return n, {bond: draw(st.integers(0, bond_types - 1)) for bond in turned}


def grid(rows: int, columns: int, seed: int, bond_types: int) -> Graph:
    """Grid graph, in which almost every pair of atoms has many shortest paths."""
    lattice = nx.convert_node_labels_to_integers(nx.grid_2d_graph(rows, columns))
    rng = np.random.default_rng(seed)
    return rows * columns, {edge: int(rng.integers(bond_types)) for edge in lattice.edges}


def molecule(smiles: str) -> Graph:
    graph = smiles_to_graph(smiles, atom_order="input")
    bond_types = bond_type_ids(graph.bond_features)
    return graph.num_atoms, dict(zip(map(tuple, graph.bonds.tolist()), bond_types.tolist(), strict=True))


@settings(max_examples=60)
@given(st.lists(graphs(), min_size=1, max_size=3), st.integers(1, 6))
def test_mean_path_types_are_the_mean_over_all_shortest_paths(batch, max_path):
    for graph, found in zip(batch, path_types(batch, max_path=max_path, width=10), strict=True):
        everything = itertools.product(range(graph[0]), repeat=2)
        assert_same(found, {pair: mean_of_all_paths(graph, *pair, max_path) for pair in everything})


@settings(max_examples=60)
@given(st.lists(graphs(), min_size=1, max_size=3), st.integers(1, 6))
def test_floyd_warshall_path_types_match_the_original(batch, max_path):
    for graph, found in zip(batch, path_types(batch, paths.FLOYD_WARSHALL, max_path), strict=True):
        assert_same(found, original_floyd_warshall(graph, max_path))


@pytest.mark.parametrize("rule", [paths.MEAN, paths.FLOYD_WARSHALL])
def test_path_types_are_correct_after_growing_the_table(rule):
    rng = np.random.default_rng(3)
    trees = [
        (n, {(int(rng.integers(a)), a): int(rng.integers(60)) for a in range(1, n)}) for n in (70, 1, 45, 60, 55, 65)
    ]
    batch = [*trees, grid(6, 7, seed=1, bond_types=60), *trees[:2]]
    all_found = path_types(batch, rule)
    different = {(d, tuple(sorted(weights.items()))) for found in all_found for d, weights in found.values()}
    assert len(different) > 8000
    for graph, found in zip(batch, all_found, strict=True):
        if rule == paths.FLOYD_WARSHALL:
            expected = original_floyd_warshall(graph)
        else:
            pairs = [tuple(pair) for pair in rng.integers(graph[0], size=(150, 2)).tolist()]
            expected, found = {pair: mean_of_all_paths(graph, *pair) for pair in pairs}, {p: found[p] for p in pairs}
        assert_same(found, expected)


@pytest.mark.parametrize("rule", [paths.MEAN, paths.FLOYD_WARSHALL])
def test_distances_stay_below_the_unreachable_mark(rule):
    n = 514
    chain = n, dict.fromkeys(itertools.pairwise(range(n)), 7)
    (found,) = path_types([chain], rule)
    assert [found[0, j][0] for j in range(505, n)] == [505, 506, 507, 508, 509, 509, 509, 509, 509]
    assert found[0, n - 1][1] == pytest.approx({(position, 7): 0.2 for position in range(5)})


def test_shares_too_small_for_an_entry_leave_no_duplicates():
    """2^22 paths of single bonds and one that begins with a double bond lead to an atom, and then on over rings."""
    bonds, last, atoms = {}, 0, 1

    def add_rings(count):
        nonlocal last, atoms
        for _ in range(count):
            bonds.update(
                dict.fromkeys([(last, atoms), (last, atoms + 1), (atoms, atoms + 2), (atoms + 1, atoms + 2)], 7)
            )
            last, atoms = atoms + 2, atoms + 3

    add_rings(22)
    chain = [0, *range(atoms, atoms + 43), last]
    bonds.update(dict.fromkeys(itertools.pairwise(chain), 7))
    bonds[(0, atoms)] = 8
    atoms += 43
    add_rings(12)
    (found,) = path_types([(atoms, bonds)])  # which checks that no entry is there twice
    assert found[0, last] == (68, pytest.approx({(position, 7): 0.2 for position in range(5)}))
