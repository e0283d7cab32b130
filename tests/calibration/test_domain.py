from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator

from graphslice.calibration import Domain
from graphslice.calibration.domain import BITS
from graphslice.chem.fingerprints import morgan_fingerprints
from graphslice.chem.molecule import read_smiles


@given(st.integers(1, 80), st.integers(0, 40), st.integers(0, 10**6), st.floats(0, 0.6))
def test_the_nearest_by_comparing_all(known, asked, seed, density):
    random = np.random.default_rng(seed)
    bits, others = random.random((known, BITS)) < density, random.random((asked, BITS)) < density
    domain = Domain.of(bits, np.arange(known), 0)
    similarity, place = domain.nearest(others)
    both = others.astype(int) @ bits.T.astype(int)
    either = others.sum(axis=1)[:, None] + bits.sum(axis=1) - both
    expected = np.where(either > 0, both / np.maximum(either, 1), 1.0)
    np.testing.assert_allclose(similarity, expected.max(axis=1) if asked else [], rtol=1e-6)
    assert place.tolist() == expected.argmax(axis=1).tolist()
    np.testing.assert_array_equal(domain.nearest(bits)[0], np.ones(known))


def test_similarities_are_those_of_rdkit(demo_smiles):
    """Its fingerprints have other bits; collisions and isotopes make the small differences."""
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=BITS, includeRedundantEnvironments=True)
    theirs = [generator.GetFingerprint(Chem.MolFromSmiles(smiles)) for smiles in demo_smiles[:60]]
    arrays, _ = read_smiles(demo_smiles[:60], atom_order="canonical", max_atoms=500)
    ours = morgan_fingerprints(arrays, BITS)
    found, _ = Domain.of(ours[:40], np.arange(40), 0).nearest(ours[40:])
    expected = [max(DataStructs.BulkTanimotoSimilarity(one, theirs[:40])) for one in theirs[40:]]
    assert np.abs(found - expected).max() < 0.05


def test_the_border_leaves_out_one_in_twenty():
    random = np.random.default_rng(0)
    centres = random.random((20, BITS)) < 0.1
    bits = np.concatenate([centres[i % 20][None] ^ (random.random((1, BITS)) < 0.005) for i in range(400)])
    lonely = random.random((8, BITS)) < 0.1
    domain = Domain.of(np.concatenate([bits, lonely]), np.arange(408), 0)
    assert (domain.nearest(bits)[0] >= domain.border).all() and (
        domain.nearest(random.random((9, BITS)) < 0.1)[0] < domain.border
    ).all()
    assert Domain.of(bits[:1], np.array([5]), 0).border == 0
    twice = np.repeat(np.concatenate([bits, lonely]), 2, axis=0)  # molecules with several rows
    assert Domain.of(twice, np.arange(816), 0).border == domain.border


def test_far_larger_molecules_are_outside():
    """A chain has the fingerprint of a shorter one, however long it is."""
    bits = np.ones((2, BITS), bool)
    bits[1, ::2] = False
    domain = Domain.of(bits, np.arange(2), 0, most_atoms=20)
    similarity = np.array([1, 1, 1, 0.2, np.nan], np.float32)
    inside = [True, True, False, False, False]
    assert domain.contains(similarity, np.array([2, 30, 31, 8, 0])).tolist() == inside
    again = Domain.from_dict(domain.to_dict())
    assert again.contains(similarity, np.array([2, 30, 31, 8, 0])).tolist() == inside
    older = Domain.from_dict({name: each for name, each in domain.to_dict().items() if name != "most_atoms"})
    assert older.contains(similarity, np.array([2, 30, 31, 8, 0])).tolist() == [True, True, True, False, False]


def test_what_is_no_domain():
    domain = Domain.of(np.ones((2, BITS), bool), np.array([7, 9]), 0)
    values = domain.to_dict()
    back = Domain.from_dict(values)
    assert back.rows.tolist() == [7, 9] and back.border == domain.border and (back.bits == domain.bits).all()
    wrong = [{"bits": values["bits"][:, :3]}, {"rows": np.arange(5)}, {"border": 2.0}, {"border": float("nan")}]
    for change in (*wrong, {"bits": np.ones((2, 16), np.float32)}):
        with pytest.raises(ValueError):
            Domain.from_dict(values | change)
    with pytest.raises(ValueError):
        domain.nearest(np.ones((2, 7), bool))
