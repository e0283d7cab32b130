"""Descriptors against RDKit's own functions, for any SMILES notation and unusual molecules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rdkit import Chem, rdBase
from rdkit.Chem import AllChem, Descriptors

from graphslice.chem import descriptors
from graphslice.chem.descriptors import DESCRIPTORS, compute_descriptors

KINDS = ["morgan", "rdkit2d"]
ODD = [
    "[Fe]", "[H][H]", "[H+]", "[Na+].[Cl-]", "[2H]C([2H])O", "C[Si](C)(C)[U]", "[O-][N+](=O)c1ccccc1", "C#[C-]", "B",
    "F[P-](F)(F)(F)(F)F.CCCC[N+]1=CN(C)C=C1", "[CH3:7][OH:2]", "N->[Cu]", "C" * 200,
    "c12c3c4c5c1c1c6c7c2c2c8c3c3c9c4c4c%10c5c5c1c1c6c6c%11c7c2c2c7c8c3c3c8c9c4c4c9c%10c5c5c1c1c6c6c%11c2c2c7c3c3c8c4c4c9c5c1c1c6c2c3c41",
]  # fmt: skip


def descriptors_of(smiles: str, kind: str) -> dict[str, float]:
    return dict(zip(DESCRIPTORS[kind].names, compute_descriptors([smiles], [kind])[kind][0].tolist(), strict=True))


def test_rdkit2d_matches_rdkit(demo_smiles):
    for smiles in [*demo_smiles[:25], "OC[C@H]1OC(O)[C@@H](O)[C@H]1O", "CS(=O)(=O)NCCCCC", "OS(O)(=O)=O"]:
        mol = Chem.MolFromSmiles(Chem.CanonSmiles(smiles))
        expected = Descriptors.CalcMolDescriptors(mol)
        for name, value in descriptors_of(smiles, "rdkit2d").items():
            assert value == pytest.approx(expected[name], rel=1e-6, abs=1e-6), name


def test_morgan_counts_match_rdkit(demo_smiles):
    result = compute_descriptors(demo_smiles[:40], ["morgan"])["morgan"]
    assert result.dtype == np.uint8 and result.shape == (40, 2048)
    with rdBase.BlockLogs():
        for row, smiles in zip(result, demo_smiles, strict=False):
            counts = AllChem.GetHashedMorganFingerprint(Chem.MolFromSmiles(smiles), 2, nBits=2048).GetNonzeroElements()
            assert {i: int(row[i]) for i in np.flatnonzero(row)} == counts
    assert compute_descriptors(["C" * 400], ["morgan"])["morgan"].max() == 255


def test_descriptor_definitions_are_fixed():
    """Models have a weight for every descriptor: a changed definition needs a new kind with a new name."""
    assert {name: (len(kind.names), kind.dtype) for name, kind in DESCRIPTORS.items()} == {
        "morgan": (2048, np.uint8),
        "rdkit2d": (203, np.float32),
    }
    names = DESCRIPTORS["rdkit2d"].names
    assert len(set(names)) == 203 and set(names) <= {name for name, _ in Descriptors.descList}
    assert (names[0], names[100], names[-1]) == ("MolWt", "fr_aryl_methyl", "MinAbsEStateIndex")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_descriptors_do_not_depend_on_smiles_notation(seed, demo_smiles):
    smiles = [*demo_smiles[seed :: len(demo_smiles) // 60], *ODD]
    random_smiles = [Chem.MolToRandomSmilesVect(Chem.MolFromSmiles(text), 1, seed)[0] for text in smiles]
    assert sum(a != b for a, b in zip(random_smiles, smiles, strict=True)) > 50
    first, second = compute_descriptors(smiles, KINDS), compute_descriptors(random_smiles, KINDS)
    for kind in KINDS:
        np.testing.assert_array_equal(first[kind], second[kind])


def test_unusual_molecules_give_finite_values_or_nan():
    result = compute_descriptors(ODD, KINDS)
    values = result["rdkit2d"]
    assert not np.isinf(values).any() and np.nanmax(np.abs(values)) <= 1e6
    assert np.isfinite(values[:, 0]).all()  # the molecular weight is always defined
    assert np.isnan(values[ODD.index("[Fe]")]).any() and result["morgan"][ODD.index("[Fe]")].any()


def test_invalid_smiles_gives_missing_values():
    result = compute_descriptors(["oops", "CCO", "", "*C", None, "C" * 9], KINDS, max_atoms=8)
    for row in (0, 2, 3, 4, 5):
        assert not result["morgan"][row].any() and np.isnan(result["rdkit2d"][row]).all()
    assert result["morgan"][1].any() and result["rdkit2d"][1, 0] == pytest.approx(46.069)
    empty = compute_descriptors([], KINDS)
    assert empty["morgan"].shape == (0, 2048) and empty["rdkit2d"].shape == (0, 203)
    assert compute_descriptors(["C"], []) == {}


def test_failing_descriptor_leaves_the_others_intact(monkeypatch):
    def fails(mol):
        raise RuntimeError("as RDKit does")

    functions = descriptors._rdkit_functions()
    group = next(k for k, (_, count) in enumerate(functions) if count > 1)
    changed = [(fails, 1), (lambda mol: float("inf"), 1), (lambda mol: -1e300, 1), *functions[3:]]
    changed[group] = (fails, functions[group][1])
    expected = compute_descriptors(["CCO"], ["rdkit2d"])["rdkit2d"][0]
    monkeypatch.setattr(descriptors, "_rdkit_functions", lambda: changed)
    result = compute_descriptors(["CCO"], ["rdkit2d"])["rdkit2d"][0]
    lost = [0, 1, group, group + 1]
    assert np.flatnonzero(np.isnan(result)).tolist() == lost and result[2] == -1e6
    np.testing.assert_array_equal(np.delete(result, [*lost, 2]), np.delete(expected, [*lost, 2]))


@settings(max_examples=60)
@given(st.text(alphabet="CNOcn()[]=#123+-@H.%/\\* :|$", max_size=24))
def test_arbitrary_text_does_not_raise(text):
    result = compute_descriptors([text], KINDS)
    assert result["morgan"].shape == (1, 2048) and not np.isinf(result["rdkit2d"]).any()
