"""Descriptors of molecular graphs, against RDKit and a slow obvious version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from rdkit.Chem import Descriptors, rdMolDescriptors
from unusual_molecules import UNUSUAL

from graphslice.chem.fingerprints import morgan_counts, morgan_fingerprints
from graphslice.chem.graph_descriptors import GRAPH_DESCRIPTORS, graph_descriptors, graph_inputs
from graphslice.chem.molecule import MolArrays
from graphslice.config import GraphConfig
from graphslice.data.featurize import parse
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS

SMILES = pd.read_csv(Path(__file__).parents[2] / "data" / "demo.csv")["smiles"].tolist()[::15]
MOLECULES = [Chem.MolFromSmiles(smiles) for smiles in SMILES]
COLUMN = {name: column for column, name in enumerate(GRAPH_DESCRIPTORS)}


def arrays_of(smiles: list[str]) -> MolArrays:
    return parse(smiles, GraphConfig())[0]


@pytest.fixture(scope="module")
def found() -> np.ndarray:
    return graph_descriptors(arrays_of(SMILES))


def test_names_are_unique_and_as_many_as_values(found):
    assert len(set(GRAPH_DESCRIPTORS)) == len(GRAPH_DESCRIPTORS) == found.shape[1]
    assert found.dtype == np.float32 and np.isfinite(found).all()
    assert (found.std(axis=0) > 0).mean() > 0.9  # hardly any says the same of every molecule


@pytest.mark.parametrize(
    ("name", "rdkit", "share"),
    [
        ("weight", "MolWt", 1.0),
        ("tpsa", "TPSA", 0.99),
        ("chi0", "Chi0", 1.0),
        ("chi1", "Chi1", 1.0),
        ("chi0v", "Chi0v", 0.99),
        ("chi1v", "Chi1v", 0.99),
        ("chi2v", "Chi2v", 0.99),
        ("max_state", "MaxEStateIndex", 0.99),
        ("min_state", "MinEStateIndex", 0.99),
        ("max_charge", "MaxPartialCharge", 0.9),
        ("min_charge", "MinPartialCharge", 0.9),
        ("fraction_sp3_C", "FractionCSP3", 1.0),
        ("donors", "NumHDonors", 0.98),
        ("NH_OH", "NHOHCount", 0.98),
        ("acids", "fr_COO", 0.98),
        ("nitro", "fr_nitro", 0.98),
        ("nitriles", "fr_nitrile", 0.98),
        ("rings", "RingCount", 0.9),
        ("radicals", "NumRadicalElectrons", 1.0),
    ],
)
def test_values_are_those_of_rdkit(found, name, rdkit, share):
    """For this share of molecules; definitions differ for some groups, conjugated ions and polycyclic rings."""
    expected = np.array([dict(Descriptors.descList)[rdkit](molecule) for molecule in MOLECULES])
    equal = np.isclose(found[:, COLUMN[name]], expected, rtol=1e-3, atol=5e-3)
    assert equal.mean() >= share


@pytest.mark.parametrize(
    ("name", "rdkit", "correlation"),
    [
        ("surface_area", "LabuteASA", 0.95),
        ("kappa1", "Kappa1", 0.95),
        ("kappa2", "Kappa2", 0.95),
        ("acceptors", "NumHAcceptors", 0.85),
        ("flexible_bonds", "NumRotatableBonds", 0.85),
        ("chi3v", "Chi3v", 0.99),
        ("chi4v", "Chi4v", 0.99),
    ],
)
def test_values_of_other_definitions_follow_rdkit(found, name, rdkit, correlation):
    expected = np.array([dict(Descriptors.descList)[rdkit](molecule) for molecule in MOLECULES])
    assert np.corrcoef(found[:, COLUMN[name]], expected)[0, 1] > correlation


def test_elements_and_bonds_are_counted(found):
    for row, molecule in enumerate(MOLECULES):
        symbols = [atom.GetSymbol() for atom in molecule.GetAtoms()]
        for element in ("C", "N", "O", "F", "S", "Cl", "Br"):
            assert found[row, COLUMN[element]] == symbols.count(element)
        orders = [bond.GetBondType() for bond in molecule.GetBonds()]
        assert found[row, COLUMN["aromatic_bonds"]] == orders.count(Chem.BondType.AROMATIC)
        assert found[row, COLUMN["fragments"]] == len(Chem.GetMolFrags(molecule))
        distances = Chem.GetDistanceMatrix(molecule)
        connected = distances[distances < 1e6]
        assert found[row, COLUMN["diameter"]] == connected.max()
        assert found[row, COLUMN["log_wiener"]] == pytest.approx(np.log1p(connected.sum() / 2), rel=1e-5)


def test_balaban_j_ignores_the_orders_of_bonds(found):
    for row, molecule in enumerate(MOLECULES):
        if len(Chem.GetMolFrags(molecule)) > 1:
            continue
        sums, bonds = Chem.GetDistanceMatrix(molecule).sum(axis=1), molecule.GetNumBonds()
        ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
        rings = bonds - molecule.GetNumAtoms() + 1
        expected = bonds / (rings + 1) * sum((sums[i] * sums[j]) ** -0.5 for i, j in ends)
        assert found[row, COLUMN["balaban_j"]] == pytest.approx(expected, rel=1e-5)


def test_surface_areas_by_charge_and_state_sum_to_the_whole(found):
    for name in ("charge_area", "state_area"):
        parts = [COLUMN[each] for each in GRAPH_DESCRIPTORS if each.startswith(name)]
        np.testing.assert_allclose(found[:, parts].sum(axis=1), found[:, COLUMN["surface_area"]], rtol=1e-4)


def test_pairs_of_features_are_counted_by_distance(found):
    """Pairs of aromatic atoms, which RDKit names too."""
    bounds = [1, 2, 3, 4, 6, 8, np.inf]
    for row, molecule in enumerate(MOLECULES):
        aromatic = [atom.GetIdx() for atom in molecule.GetAtoms() if atom.GetIsAromatic()]
        distances = Chem.GetDistanceMatrix(molecule)
        counts = np.zeros(7)
        for k, i in enumerate(aromatic):
            for j in aromatic[k + 1 :]:
                if distances[i, j] < 1e6:
                    counts[next(b for b, bound in enumerate(bounds) if distances[i, j] <= bound)] += 1
        assert found[row, [COLUMN[f"aromatic_aromatic_{b}"] for b in range(7)]].tolist() == counts.tolist()


def test_a_donor_and_an_acid_are_found():
    (glycine,) = graph_descriptors(arrays_of(["NCC(=O)O"]))
    values = {name: glycine[column] for name, column in COLUMN.items()}
    assert (values["acids"], values["amines"], values["donors"], values["acceptors"]) == (1, 1, 2, 3)
    assert values["positive_negative_2"] == 1  # three bonds between nitrogen and the acid's oxygen
    (amide, ester) = graph_descriptors(arrays_of(["CC(=O)NC", "CC(=O)OC"]))
    assert (amide[COLUMN["amides"]], ester[COLUMN["esters"]], amide[COLUMN["amines"]]) == (1, 1, 0)


def test_values_depend_neither_on_the_batch_nor_on_the_smiles():
    random = np.random.default_rng(0)
    arrays = arrays_of(SMILES[:60])
    batch = graph_inputs(arrays)
    alone = np.concatenate([graph_inputs(arrays[row : row + 1]) for row in range(60)])
    np.testing.assert_array_equal(batch, alone)
    written = []
    for molecule in MOLECULES[:60]:
        order = random.permutation(molecule.GetNumAtoms()).tolist()
        written.append(Chem.MolToSmiles(Chem.RenumberAtoms(molecule, order), canonical=False))
    np.testing.assert_array_equal(graph_inputs(arrays_of(written)), batch)


def test_unusual_molecules_have_finite_values():
    arrays, reasons, *_ = parse(list(UNUSUAL.values()), GraphConfig())
    valid = [row for row, reason in enumerate(reasons) if reason is None]
    assert len(valid) > 20
    for row in valid:
        assert np.isfinite(graph_descriptors(arrays[row : row + 1])).all(), list(UNUSUAL)[row]


def test_every_feature_value_gives_finite_values():
    """Also the last of each of OGB's features, which stands for values that are not listed."""
    features = np.zeros((1, len(ATOM_DIMS)), np.uint8)
    for column, size in enumerate(ATOM_DIMS):
        for value in (0, size // 2, size - 1):
            atoms = np.repeat(features, 3, axis=0)
            atoms[:, column] = value
            for bond_type in (0, BOND_DIMS[0] * BOND_DIMS[1] * BOND_DIMS[2] - 1):
                arrays = MolArrays(
                    np.array([0, 3]),
                    np.array([0, 2]),
                    atoms,
                    np.array([[0, 1], [1, 2]], np.int32),
                    np.full(2, bond_type, np.uint8),
                )
                assert np.isfinite(graph_descriptors(arrays)).all()


def test_counts_are_those_of_the_fingerprints():
    """An environment is counted once for each atom that has it, as RDKit's redundant environments are."""
    arrays = arrays_of(SMILES[:40])
    counts = morgan_counts(arrays)
    np.testing.assert_array_equal(counts > 0, morgan_fingerprints(arrays))
    generator = rdMolDescriptors.GetHashedMorganFingerprint
    assert counts.sum(axis=1).tolist() == [
        sum(generator(molecule, 2, useBondTypes=True, includeRedundantEnvironments=True).GetNonzeroElements().values())
        for molecule in MOLECULES[:40]
    ]


def test_counts_do_not_overflow():
    assert morgan_counts(arrays_of(["C" * 400])).max() == 255
