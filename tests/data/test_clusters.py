from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdkit.ML.Cluster import Butina

from graphslice.chem.fingerprints import morgan_fingerprints
from graphslice.chem.molecule import read_smiles
from graphslice.data import split_maker as clusters
from graphslice.data.split_maker import butina_clusters


def rdkit_clusters(bits: np.ndarray, distance: float) -> set[frozenset[int]]:
    """Cluster the same fingerprints with RDKit, from all distances."""
    bits = bits.astype(np.float64)
    both = bits @ bits.T
    either = bits.sum(1)[:, None] + bits.sum(1) - both
    distances = 1 - np.divide(both, either, out=np.ones_like(both), where=either > 0)
    below = [distances[i, j] for i in range(len(bits)) for j in range(i)]
    return {frozenset(c) for c in Butina.ClusterData(below, len(bits), distance + 1e-9, isDistData=True)}


def as_sets(numbers: np.ndarray) -> set[frozenset[int]]:
    rows_by_cluster = defaultdict(set)
    for row, number in enumerate(numbers.tolist()):
        rows_by_cluster[number].add(row)
    return {frozenset(members) for members in rows_by_cluster.values()}


@pytest.mark.parametrize("distance", [0.3, 0.6, 0.8])
def test_clusters_of_molecules_match_rdkit(distance, demo_smiles, monkeypatch):
    monkeypatch.setattr(clusters, "_BLOCK_ROWS", 64)
    bits = morgan_fingerprints(read_smiles(demo_smiles[:500])[0])
    numbers = butina_clusters(bits, distance)
    assert as_sets(numbers) == rdkit_clusters(bits, distance)
    assert sorted(set(numbers.tolist())) == list(range(numbers.max() + 1))


@given(st.lists(st.integers(0, 255), min_size=1, max_size=40), st.sampled_from([0.0, 0.25, 0.5, 0.6, 1.0]))
def test_clusters_of_any_fingerprints_match_rdkit(numbers, distance):
    """Includes many ties, empty fingerprints and distances equal to the limit."""
    bits = (np.array(numbers)[:, None] >> np.arange(8) & 1).astype(bool)
    assert as_sets(butina_clusters(bits, distance)) == rdkit_clusters(bits, distance)
