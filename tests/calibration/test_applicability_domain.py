from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator

from graphslice.calibration import ApplicabilityDomain
from graphslice.calibration.domain import DOMAIN_BITS
from graphslice.chem.fingerprints import morgan_fingerprints
from graphslice.chem.molecule import read_smiles
from graphslice.errors import InputError


@given(st.integers(1, 80), st.integers(0, 40), st.integers(0, 10**6), st.floats(0, 0.6))
def test_nearest_matches_brute_force(num_training, num_queries, seed, density):
    random = np.random.default_rng(seed)
    bits, queries = (random.random((count, DOMAIN_BITS)) < density for count in (num_training, num_queries))
    domain = ApplicabilityDomain.from_fingerprints(bits, np.arange(num_training), 0)
    similarity, index = domain.nearest(queries)
    common = queries.astype(int) @ bits.T.astype(int)
    union = queries.sum(axis=1)[:, None] + bits.sum(axis=1) - common
    expected = np.where(union > 0, common / np.maximum(union, 1), 1.0)
    np.testing.assert_allclose(similarity, expected.max(axis=1) if num_queries else [], rtol=1e-6)
    assert index.tolist() == expected.argmax(axis=1).tolist()
    np.testing.assert_array_equal(domain.nearest(bits)[0], np.ones(num_training))


def test_similarities_match_rdkit(demo_smiles):
    """RDKit's fingerprints have different bits; collisions and isotopes cause small differences."""
    generator = rdFingerprintGenerator.GetMorganGenerator(
        radius=2, fpSize=DOMAIN_BITS, includeRedundantEnvironments=True
    )
    rdkit = [generator.GetFingerprint(Chem.MolFromSmiles(smiles)) for smiles in demo_smiles[:60]]
    arrays, *_ = read_smiles(demo_smiles[:60], atom_order="canonical", max_atoms=500)
    fingerprints = morgan_fingerprints(arrays, DOMAIN_BITS)
    domain = ApplicabilityDomain.from_fingerprints(fingerprints[:40], np.arange(40), 0)
    similarity, _ = domain.nearest(fingerprints[40:])
    expected = [max(DataStructs.BulkTanimotoSimilarity(one, rdkit[:40])) for one in rdkit[40:]]
    assert np.abs(similarity - expected).max() < 0.05


def test_threshold_excludes_five_percent():
    random = np.random.default_rng(0)
    centres = random.random((20, DOMAIN_BITS)) < 0.1
    bits = np.concatenate([centres[i % 20][None] ^ (random.random((1, DOMAIN_BITS)) < 0.005) for i in range(400)])
    isolated = random.random((8, DOMAIN_BITS)) < 0.1
    domain = ApplicabilityDomain.from_fingerprints(np.concatenate([bits, isolated]), np.arange(408), 0)
    assert (domain.nearest(bits)[0] >= domain.threshold).all()
    assert (domain.nearest(random.random((9, DOMAIN_BITS)) < 0.1)[0] < domain.threshold).all()
    assert ApplicabilityDomain.from_fingerprints(bits[:1], np.array([5]), 0).threshold == 0
    twice = np.repeat(np.concatenate([bits, isolated]), 2, axis=0)  # molecules with several rows
    assert ApplicabilityDomain.from_fingerprints(twice, np.arange(816), 0).threshold == domain.threshold


def test_much_larger_molecules_are_outside():
    """A chain has the same binary fingerprint as a shorter one."""
    bits = np.ones((2, DOMAIN_BITS), bool)
    bits[1, ::2] = False
    domain = ApplicabilityDomain.from_fingerprints(bits, np.arange(2), 0, max_training_atoms=20)
    similarity = np.array([1, 1, 1, 0.2, np.nan], np.float32)
    inside = [True, True, False, False, False]
    assert domain.contains(similarity, np.array([2, 30, 31, 8, 0])).tolist() == inside


def test_invalid_domain_is_rejected():
    domain = ApplicabilityDomain.from_fingerprints(np.ones((2, DOMAIN_BITS), bool), np.array([7, 9]), 0)
    for change in ({"bits": domain.bits[:, :3].copy()}, {"rows": np.arange(5)}, {"bits": np.ones((2, 16), np.float32)}):
        with pytest.raises(InputError, match=next(iter(change))):
            replace(domain, **change)
    with pytest.raises(ValueError):
        domain.nearest(np.ones((2, 7), bool))
