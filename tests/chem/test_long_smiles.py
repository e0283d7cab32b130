"""Texts as long as no molecule: counted before RDKit looks for the rings among them, which takes hours."""

from __future__ import annotations

import pytest

from graphslice.chem import MoleculeError, smiles_to_graph


@pytest.mark.parametrize(
    ("smiles", "atoms"),
    [
        ("C1CCCCC1" * 25_000, 150_000),
        ("[13CH3][C@@H](Cl)c1[nH]ccc1Br" * 9_000, 81_000),
        ("C" * 200_000, 200_000),
        ("[H]" * 6_000 + "C" * 513, 513),
    ],
)
def test_too_many_atoms(smiles, atoms):
    with pytest.raises(MoleculeError, match=rf"^{atoms} atoms, more than the limit of 512 \(graph\.max_atoms raises"):
        smiles_to_graph(smiles)


@pytest.mark.parametrize("smiles", ["x" * 200_000, "(" * 200_000, "[" * 200_000, "C" * 9 + "(" * 9_000])
def test_no_molecule(smiles):
    with pytest.raises(MoleculeError, match=r"^not a valid SMILES$"):
        smiles_to_graph(smiles)


@pytest.mark.parametrize(
    "smiles", ["CCO" + " " * 9_000, "[Cu+2]" * 500 + "([H])" * 800 + " |c:1|", "[Fe+2:1234567]." * 511 + "C"]
)
def test_long_and_small_enough(smiles):
    """What stands behind a SMILES, written hydrogens, and long brackets are no atoms too many."""
    assert smiles_to_graph(smiles).num_atoms <= 512
