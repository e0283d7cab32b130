"""RDKit's molecules as SMILES: the one way by which molecules enter."""

from __future__ import annotations

from rdkit import Chem, rdBase

from graphslice.chem.parse import MoleculeError


def mol_to_smiles(mol: Chem.Mol) -> str:
    """The SMILES of an RDKit molecule, as it is: sanitized or not, with or without hydrogens as atoms.

    Raises:
        MoleculeError: if RDKit cannot write one.
    """
    try:
        with rdBase.BlockLogs():
            # What was read without sanitizing lacks valences, which writing asks for.
            if mol.NeedsUpdatePropertyCache():
                mol = Chem.Mol(mol)
                mol.UpdatePropertyCache(strict=False)
            return Chem.MolToSmiles(mol)
    except (RuntimeError, ValueError) as error:
        lines = str(error).strip().splitlines()
        raise MoleculeError(f"RDKit writes no SMILES of it: {lines[0] if lines else type(error).__name__}") from None
