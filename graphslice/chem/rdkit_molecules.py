"""Conversion of RDKit molecules to SMILES, so that they are processed like all other molecules."""

from __future__ import annotations

from rdkit import Chem

from graphslice.chem.parse import MoleculeError
from graphslice.chem.quiet import rdkit_messages_blocked
from graphslice.errors import first_line


def mol_to_smiles(mol: Chem.Mol) -> str:
    """Write the SMILES of an RDKit molecule, sanitized or not, with or without hydrogens as atoms.

    Raises:
        MoleculeError: if RDKit cannot write one.
    """
    try:
        with rdkit_messages_blocked():
            # Molecules parsed without sanitization lack the valences that writing needs.
            if mol.NeedsUpdatePropertyCache():
                mol = Chem.Mol(mol)
                mol.UpdatePropertyCache(strict=False)
            return Chem.MolToSmiles(mol)
    except (RuntimeError, ValueError) as error:
        raise MoleculeError(f"RDKit cannot write a SMILES: {first_line(error)}") from None
