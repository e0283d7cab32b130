"""Descriptors of molecular graphs, against RDKit and a slow obvious version."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from rdkit.Chem import Descriptors, rdMolDescriptors
from unusual_molecules import UNUSUAL

from graphslice.chem.fingerprints import morgan_counts, morgan_fingerprints
from graphslice.chem.graph_descriptors import GRAPH_DESCRIPTORS, graph_descriptors, graph_inputs
from graphslice.chem.molecule import MolArrays, check_molecules
from graphslice.config import GraphConfig
from graphslice.data.featurize import parse
from graphslice.feature_dims import ATOM_DIMS, NUM_BOND_TYPES

SMILES = pd.read_csv(Path(__file__).parents[2] / "data" / "demo.csv")["smiles"].tolist()[::15]
MOLECULES = [Chem.MolFromSmiles(smiles) for smiles in SMILES]
COLUMN = {name: column for column, name in enumerate(GRAPH_DESCRIPTORS)}


def arrays_of(smiles: list[str]) -> MolArrays:
    return parse(smiles, GraphConfig())[0]


@pytest.fixture(scope="module")
def found() -> np.ndarray:
    return graph_descriptors(arrays_of(SMILES))


@pytest.fixture(scope="module")
def unusual() -> tuple[list[Chem.Mol], np.ndarray]:
    """Unusual molecules, as RDKit's and by descriptors."""
    arrays, reasons, *_ = parse(list(UNUSUAL.values()), GraphConfig())
    valid = [row for row, reason in enumerate(reasons) if reason is None]
    assert len(valid) > 40
    return [Chem.MolFromSmiles(list(UNUSUAL.values())[row]) for row in valid], graph_descriptors(arrays)[valid]


def test_names_are_unique_and_as_many_as_values(found):
    assert len(set(GRAPH_DESCRIPTORS)) == len(GRAPH_DESCRIPTORS) == found.shape[1]
    assert found.dtype == np.float32 and np.isfinite(found).all()
    assert (found.std(axis=0) > 0).mean() > 0.9  # few are constant


def sssr(molecule: Chem.Mol) -> int:
    return len(Chem.GetSSSR(molecule))


def ring_bonds(molecule: Chem.Mol) -> int:
    return sum(bond.IsInRing() for bond in molecule.GetBonds())


def fused_atoms(molecule: Chem.Mol) -> int:
    return sum(sum(bond.IsInRing() for bond in atom.GetBonds()) > 2 for atom in molecule.GetAtoms())


def rotatable_bonds(molecule: Chem.Mol) -> int:
    return rdMolDescriptors.CalcNumRotatableBonds(molecule, rdMolDescriptors.NumRotatableBondsOptions.NonStrict)


RDKIT = dict(Descriptors.descList)
# Descriptors that are equal to RDKit's for every molecule, also for unusual ones.
ALWAYS_EQUAL = {
    "tpsa": RDKIT["TPSA"],
    "chi0": RDKIT["Chi0"],
    "chi1": RDKIT["Chi1"],
    "rings": sssr,
    "ring_bonds": ring_bonds,
    "fused_atoms": fused_atoms,
    "rotatable_bonds": rotatable_bonds,
    "radicals": RDKIT["NumRadicalElectrons"],
    "ketones": RDKIT["fr_ketone"],
    "acids": RDKIT["fr_COO"],
    "aromatic_NH": RDKIT["fr_Nhpyrrole"],
    "halogens": RDKIT["fr_halogen"],
}
# Those that are equal for this share of usual molecules.
SHARES_EQUAL = {
    "weight": (RDKIT["MolWt"], 1.0),
    "chi0v": (RDKIT["Chi0v"], 1.0),
    "chi1v": (RDKIT["Chi1v"], 1.0),
    "chi2v": (RDKIT["Chi2v"], 1.0),
    "chi3v": (RDKIT["Chi3v"], 0.95),  # RDKit also counts rings of three atoms as paths
    "chi4v": (RDKIT["Chi4v"], 0.95),  # and rings of four
    "max_state": (RDKIT["MaxEStateIndex"], 1.0),
    "min_state": (RDKIT["MinEStateIndex"], 1.0),
    "max_charge": (RDKIT["MaxPartialCharge"], 0.98),
    "min_charge": (RDKIT["MinPartialCharge"], 0.98),
    "fraction_sp3_C": (RDKIT["FractionCSP3"], 1.0),
    "donors": (RDKIT["NumHDonors"], 0.98),  # RDKit also counts SH
    "NH_OH": (RDKIT["NHOHCount"], 1.0),
    "nitro": (RDKIT["fr_nitro"], 0.98),
    "nitriles": (RDKIT["fr_nitrile"], 1.0),
    "esters": (RDKIT["fr_ester"], 0.95),  # here also carbamates and carbonates
    "amides": (RDKIT["fr_amide"], 0.85),  # here nitrogens, RDKit's bonds
    "phenols": (RDKIT["fr_phenol"], 0.95),
    "alcohols": (RDKIT["fr_Al_OH"], 0.9),
}


@pytest.mark.parametrize("name", ALWAYS_EQUAL)
def test_values_are_those_of_rdkit_for_every_molecule(found, unusual, name):
    for values, molecules in ((found, MOLECULES), (unusual[1], unusual[0])):
        expected = [ALWAYS_EQUAL[name](molecule) for molecule in molecules]
        np.testing.assert_allclose(values[:, COLUMN[name]], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SHARES_EQUAL)
def test_values_are_those_of_rdkit_for_most_molecules(found, name):
    function, share = SHARES_EQUAL[name]
    expected = np.array([function(molecule) for molecule in MOLECULES])
    assert np.isclose(found[:, COLUMN[name]], expected, rtol=1e-3, atol=5e-3).mean() >= share


@pytest.mark.parametrize(
    ("name", "rdkit", "correlation"), [("surface_area", "LabuteASA", 0.95), ("acceptors", "NumHAcceptors", 0.85)]
)
def test_values_of_other_definitions_follow_rdkit(found, name, rdkit, correlation):
    expected = np.array([RDKIT[rdkit](molecule) for molecule in MOLECULES])
    assert np.corrcoef(found[:, COLUMN[name]], expected)[0, 1] > correlation


def test_kappa_is_that_of_the_numbers_of_paths(found):
    for row, molecule in enumerate(MOLECULES[:100]):
        n, odd = molecule.GetNumAtoms(), molecule.GetNumAtoms() % 2
        # A path of k bonds matches a chain of k + 1 atoms, once in each direction.
        p1, p2, p3 = (
            len(molecule.GetSubstructMatches(Chem.MolFromSmarts("~".join("*" * length)), False, maxMatches=10**6)) / 2
            for length in (2, 3, 4)
        )
        expected = [
            n * (n - 1) ** 2 / p1**2 if p1 else 0,
            (n - 1) * (n - 2) ** 2 / p2**2 if p2 else 0,
            (n - 1 - odd) * (n - 3 + odd) ** 2 / p3**2 if p3 else 0,
        ]
        np.testing.assert_allclose(found[row, [COLUMN[f"kappa{k}"] for k in (1, 2, 3)]], expected, rtol=1e-5)


def test_elements_and_bonds_are_counted(found):
    for row, molecule in enumerate(MOLECULES):
        symbols = [atom.GetSymbol() for atom in molecule.GetAtoms()]
        for element in ("C", "N", "O", "F", "S", "Cl", "Br"):
            assert found[row, COLUMN[element]] == symbols.count(element)
        orders = [bond.GetBondType() for bond in molecule.GetBonds()]
        assert found[row, COLUMN["aromatic_bonds"]] == orders.count(Chem.BondType.AROMATIC)


def test_distances_are_those_of_rdkit(found, unusual):
    """Also in molecules of more than 64 atoms, whose sets of atoms take several words."""
    assert max(molecule.GetNumAtoms() for molecule in unusual[0]) > 256
    for values, molecules in ((found, MOLECULES), (unusual[1], unusual[0])):
        for row, molecule in zip(values, molecules, strict=True):
            distances = Chem.GetDistanceMatrix(molecule)
            connected = np.where(distances < 1e6, distances, 0)
            assert row[COLUMN["fragments"]] == len(Chem.GetMolFrags(molecule))
            assert row[COLUMN["diameter"]] == connected.max()
            assert row[COLUMN["radius"]] == connected.max(axis=1).min()
            assert row[COLUMN["log_wiener"]] == pytest.approx(np.log1p(connected.sum() / 2), rel=1e-5)


def test_surface_areas_by_charge_and_state_sum_to_the_whole(found):
    for name in ("charge_area", "state_area"):
        parts = [COLUMN[each] for each in GRAPH_DESCRIPTORS if each.startswith(name)]
        np.testing.assert_allclose(found[:, parts].sum(axis=1), found[:, COLUMN["surface_area"]], rtol=1e-4)


ACYL = "$([#7,#8]~[#6]=[#8,#16])"
SULFONYL = "$([#7]~[#16]=[#8,#16])"
# Pharmacophore features as SMARTS.
FEATURES = {
    "donor": "[#7,#8;!H0]",
    "acceptor": f"[$([O]),$([N;-,-0;!{ACYL};!{SULFONYL}]),$([n;-,-0;X2])]",
    "positive": f"[$([+,+2,+3;!$([#7]~[#8])]),$([N;!$(N=*);!$(N#*);!{ACYL};!{SULFONYL};!$(N~a)])]",
    "negative": f"[$([#8;D1;H1,-;{ACYL}]),$([#8,#16;-,-2])]",
    "aromatic": "a",
    "hydrophobic": "[$([C;!$(C~[!#6;!#1])]),Cl,Br,I]",
}


def test_pairs_of_features_are_counted_by_distance(found):
    """Against SMARTS of the features and RDKit's distances."""
    bounds = [1, 2, 3, 4, 6, 8, np.inf]
    patterns = {name: Chem.MolFromSmarts(smarts) for name, smarts in FEATURES.items()}
    for row, molecule in enumerate(MOLECULES):
        distances = Chem.GetDistanceMatrix(molecule)
        expected = dict.fromkeys(GRAPH_DESCRIPTORS[COLUMN["donor_donor_0"] :], 0)
        marks = [
            (order, name, atom)
            for order, (name, pattern) in enumerate(patterns.items())
            for (atom,) in molecule.GetSubstructMatches(pattern, maxMatches=10_000)
        ]
        for k, (_, first, i) in enumerate(marks):  # ordered by feature, as in the names of pairs
            for _, second, j in marks[k + 1 :]:
                if 0 < distances[i, j] < 1e6:
                    nearest = next(b for b, bound in enumerate(bounds) if distances[i, j] <= bound)
                    expected[f"{first}_{second}_{nearest}"] += 1
        assert {name: found[row, COLUMN[name]] for name in expected} == expected, SMILES[row]


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


def test_unusual_molecules_have_finite_values(unusual):
    assert np.isfinite(unusual[1]).all()


def star(atoms: np.ndarray, bond_type: int) -> MolArrays:
    """One molecule whose first atom is bonded to all others."""
    bonds = np.array([(0, i) for i in range(1, len(atoms))], np.int32).reshape(-1, 2)
    ends = np.array([0, len(atoms)]), np.array([0, len(bonds)])
    return MolArrays(*ends, atoms, bonds, np.full(len(bonds), bond_type, np.uint8))


def test_every_feature_value_gives_finite_values():
    """Also the last of each of OGB's features, which stands for values that are not listed, and 255 bonds."""
    random = np.random.default_rng(0)
    for size in (1, 2, 3, 5, 70, 256):
        for _ in range(40):
            atoms = random.integers(0, ATOM_DIMS, (size, len(ATOM_DIMS))).astype(np.uint8)
            extreme = random.random(atoms.shape) < 0.3
            atoms[extreme] = np.broadcast_to(np.array(ATOM_DIMS) - 1, atoms.shape)[extreme]
            arrays = star(atoms, random.integers(NUM_BOND_TYPES))
            check_molecules(arrays)
            values = graph_descriptors(arrays)
            assert np.isfinite(values).all() and np.abs(values).max() <= 1e6


def test_values_are_limited_and_an_invalid_molecule_has_zeros():
    atoms = np.repeat(arrays_of(["C"]).atoms, 512, axis=0)
    separate = MolArrays(
        np.array([0, 0, 512]), np.zeros(3, np.int64), atoms, np.empty((0, 2), np.int32), np.empty(0, np.uint8)
    )
    invalid, methane = graph_descriptors(separate)
    assert not invalid.any() and methane[COLUMN["fragments"]] == 512 and np.isfinite(methane).all()


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
