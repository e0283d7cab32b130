"""Very long SMILES: atoms are counted before RDKit's ring perception, which would take hours."""

import numpy as np
import pytest

from graphslice.chem import MoleculeError, smiles_to_graph


@pytest.mark.parametrize(
    ("smiles", "atoms"),
    [
        ("C1CCCCC1" * 25_000, 150_000),
        ("[13CH3][C@@H](Cl)c1[nH]ccc1Br" * 9_000, 81_000),
        ("C" * 200_000, 200_000),
        ("[H]" * 6_000 + "C" * 513, 513),
        ("CC(C)" * 300, 900),
    ],
)
def test_too_many_atoms_are_rejected(smiles, atoms):
    with pytest.raises(MoleculeError, match=rf"^{atoms} atoms, more than the limit of 512 \(graph\.max_atoms raises"):
        smiles_to_graph(smiles)


@pytest.mark.parametrize(
    "smiles", ["CCO" + " " * 9_000, "[Cu+2]" * 500 + "([H])" * 800 + " |c:1|", "[Fe+2:1234567]." * 511 + "C"]
)
def test_long_smiles_with_few_atoms_is_accepted(smiles):
    """Trailing text, explicit hydrogens and long brackets do not count as atoms."""
    assert smiles_to_graph(smiles).num_atoms <= 512


def bipartite(left: int, right: int, atom: str = "[U]") -> str:
    closures = np.arange(1, left * right + 1).reshape(left, right)
    labels = [*closures, *closures.T]
    return ".".join(atom + "".join(f"%({label})" for label in atom_labels) for atom_labels in labels)


def test_molecules_with_many_rings_are_accepted():
    fullerene = (
        "c12c3c4c5c1c1c6c7c2c2c8c3c3c9c4c4c%10c5c5c1c1c6c6c%11c7c2c2c7c8c3c3c8c9c4c4c9c%10c5c5c1c1c6c6c%11c2c2c7c3c3c8"
        "c4c4c9c5c1c1c6c2c3c41"
    )
    assert smiles_to_graph(".".join([fullerene] * 8)).num_bonds == 720
    assert smiles_to_graph(bipartite(10, 10)).num_bonds == 100  # denser than any molecule, but fast
    assert smiles_to_graph("O=S(=O)(O)c1ccc(N)cc1." * 40 + "C").num_atoms == 441
