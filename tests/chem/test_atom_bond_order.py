"""Indices of the atoms and bonds of a SMILES in its molecular graph."""

import numpy as np
import pytest
from rdkit import Chem

from graphslice.chem.molecule import atom_bond_order, read_smiles, smiles_to_graph

# Salts, a single atom, explicit hydrogens, dative and zero-order bonds, stereocentres, fused rings.
MOLECULES = [
    "OCC", "[Na+].[Cl-].CO", "C", "[2H]OC[H]", "N->[Pt](Cl)(Cl)<-N", "C[Fe]~C |Z:1|", "C[C@H](N)C(=O)O",
    "CC(=O)Nc1ccc(O)cc1", "[H][H]", "c1ccc2ccccc2c1",
]  # fmt: skip


@pytest.mark.parametrize("smiles", MOLECULES)
def test_places_map_atoms_and_bonds_to_the_graph(smiles, demo_smiles):
    for text in [smiles, *demo_smiles[:5]]:
        mol, graph = Chem.MolFromSmiles(text), smiles_to_graph(text)
        atoms, bonds = (read_smiles([text], level)[2][:, 0].astype(int) for level in ("atom", "bond"))
        assert sorted(atoms) == list(range(graph.num_atoms)) and len(bonds) == mol.GetNumBonds()
        assert graph.atoms[atoms, 0].tolist() == [atom.GetAtomicNum() - 1 for atom in mol.GetAtoms()]
        for bond, place in zip(mol.GetBonds(), bonds, strict=True):
            ends = sorted(atoms[[bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()]])
            assert graph.bonds[place].tolist() == ends
            assert graph.bond_features[place, 2] == bond.GetIsConjugated()


def test_invalid_smiles_has_no_order_and_input_order_is_kept():
    arrays, reasons, order = read_smiles(["oops", "", "CCCC", "OCC"], "atom", max_atoms=3)
    assert [reason is None for reason in reasons] == [False] * 3 + [True]
    assert arrays.atom_bond_counts("atom").tolist() == [-1, -1, -1, 3] and order[:, 0].tolist() == [1, 2, 0]
    assert read_smiles(["OCC"], "bond", atom_order="input")[2].tolist() == [[0, 0], [1, 1]]


def test_prismane_has_two_bond_symmetry_classes():
    """All atoms are symmetric, and only the atoms of a triangle bond have a common neighbour."""
    mol = Chem.MolFromSmiles("C12C3C1C1C2C31")
    mol.GetAtomWithIdx(0).SetChiralTag(Chem.ChiralType.CHI_TETRAHEDRAL_CW)  # symmetry classes need a stereocentre
    classes = atom_bond_order(mol, "bond")[:, 1]
    between = [
        {n.GetIdx() for n in end.GetNeighbors()} for b in mol.GetBonds() for end in (b.GetBeginAtom(), b.GetEndAtom())
    ]
    in_triangle = np.array([bool(a & b) for a, b in zip(between[::2], between[1::2], strict=True)])
    assert in_triangle.sum() == 6 and len(in_triangle) == 9
    assert not set(classes[in_triangle]) & set(classes[~in_triangle])


@pytest.mark.parametrize(
    ("smiles", "symmetric"),
    [("CC(C)O", False), ("C[C@H](F)O", False), ("NC(=O)[C@H]1[C@@H](C(=O)N)[C@H]1C(=O)N", True)],
)
def test_only_molecules_with_stereocentres_have_symmetric_atoms(smiles, symmetric):
    classes = read_smiles([smiles], "atom")[2][:, 1]
    assert (len(set(classes)) < len(classes)) == symmetric
