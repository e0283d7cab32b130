"""Indices of the atoms and bonds of a SMILES in its molecular graph."""

import numpy as np
import pytest
from rdkit import Chem

from graphslice.chem.atom_bond_order import atom_bond_order, read_atom_bond_orders
from graphslice.chem.molecule import smiles_to_graph

# Salts, a single atom, explicit hydrogens, dative and zero-order bonds, stereocentres, fused rings.
MOLECULES = [
    "OCC", "[Na+].[Cl-].CO", "C", "[2H]OC[H]", "N->[Pt](Cl)(Cl)<-N", "C[Fe]~C |Z:1|", "C[C@H](N)C(=O)O",
    "CC(=O)Nc1ccc(O)cc1", "[H][H]", "c1ccc2ccccc2c1",
]  # fmt: skip


@pytest.mark.parametrize("smiles", MOLECULES)
def test_places_map_atoms_and_bonds_to_the_graph(smiles, demo_smiles):
    for text in [smiles, *demo_smiles[:5]]:
        mol, graph = Chem.MolFromSmiles(text), smiles_to_graph(text)
        (atoms,), (bonds,) = (read_atom_bond_orders([text], level, max_atoms=512) for level in ("atom", "bond"))
        assert sorted(atoms.places) == list(range(graph.num_atoms)) and len(bonds) == mol.GetNumBonds()
        assert graph.atoms[atoms.places, 0].tolist() == [atom.GetAtomicNum() - 1 for atom in mol.GetAtoms()]
        for bond, place in zip(mol.GetBonds(), bonds.places, strict=True):
            ends = sorted(atoms.places[[bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()]])
            assert graph.bonds[place].tolist() == ends
            assert graph.bond_features[place, 2] == bond.GetIsConjugated()


def test_invalid_smiles_has_no_order():
    assert read_atom_bond_orders(["oops", "", "CCCC"], "atom", max_atoms=3) == [None] * 3


def test_prismane_has_two_bond_symmetry_classes():
    """All atoms are symmetric, and only the atoms of a triangle bond have a common neighbour."""
    mol = Chem.MolFromSmiles("C12C3C1C1C2C31")
    mol.GetAtomWithIdx(0).SetChiralTag(Chem.ChiralType.CHI_TETRAHEDRAL_CW)  # symmetry classes need a stereocentre
    order = atom_bond_order(mol, "bond", with_symmetry=True)
    assert atom_bond_order(mol, "bond").groups is None and order.groups is not None
    between = [
        {n.GetIdx() for n in end.GetNeighbors()} for b in mol.GetBonds() for end in (b.GetBeginAtom(), b.GetEndAtom())
    ]
    in_triangle = np.array([bool(a & b) for a, b in zip(between[::2], between[1::2], strict=True)])
    assert in_triangle.sum() == 6 and len(in_triangle) == 9
    assert not set(order.groups[in_triangle]) & set(order.groups[~in_triangle])


def test_symmetry_classes_with_stereocentres():
    (plain,), (tagged,) = (
        read_atom_bond_orders([s], "atom", max_atoms=9, with_symmetry=True) for s in ("CC(C)O", "OC(=O)[C@H](O)[C@H]")
    )
    assert plain.groups is None and len(set(tagged.groups)) == len(tagged) == 6
    (ring,) = read_atom_bond_orders(
        ["NC(=O)[C@H]1[C@@H](C(=O)N)[C@H]1C(=O)N"], "atom", max_atoms=20, with_symmetry=True
    )
    assert len(set(ring.groups)) < len(ring)
