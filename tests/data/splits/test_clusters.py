from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdkit.ML.Cluster import Butina

from graphslice.chem.fingerprints import morgan_fingerprints
from graphslice.chem.molecule import read_smiles
from graphslice.data.splits import clusters
from graphslice.data.splits.clusters import butina_clusters


def rdkit_clusters(bits: np.ndarray, distance: float) -> set[frozenset[int]]:
    """By RDKit, from all distances, of the same fingerprints."""
    bits = bits.astype(np.float64)
    both = bits @ bits.T
    either = bits.sum(1)[:, None] + bits.sum(1) - both
    distances = 1 - np.divide(both, either, out=np.ones_like(both), where=either > 0)
    below = [distances[i, j] for i in range(len(bits)) for j in range(i)]
    return {frozenset(c) for c in Butina.ClusterData(below, len(bits), distance + 1e-9, isDistData=True)}


def as_sets(numbers: np.ndarray) -> set[frozenset[int]]:
    found = defaultdict(set)
    for row, number in enumerate(numbers.tolist()):
        found[number].add(row)
    return {frozenset(members) for members in found.values()}


@pytest.mark.parametrize("distance", [0.3, 0.6, 0.8])
def test_clusters_of_molecules_are_those_of_rdkit(distance, demo_smiles, monkeypatch):
    monkeypatch.setattr(clusters, "_BLOCK_ROWS", 64)
    bits = morgan_fingerprints(read_smiles(demo_smiles[:500])[0])
    found = butina_clusters(bits, distance)
    assert as_sets(found) == rdkit_clusters(bits, distance)
    assert sorted(set(found.tolist())) == list(range(found.max() + 1))


@given(st.lists(st.integers(0, 255), min_size=1, max_size=40), st.sampled_from([0.0, 0.25, 0.5, 0.6, 1.0]))
def test_clusters_of_any_bits_are_those_of_rdkit(numbers, distance):
    """Many ties, no bits at all, distances right at the limit."""
    bits = (np.array(numbers)[:, None] >> np.arange(8) & 1).astype(bool)
    assert as_sets(butina_clusters(bits, distance)) == rdkit_clusters(bits, distance)


def test_nothing_to_cluster():
    assert butina_clusters(np.empty((0, 8), bool)).tolist() == []
