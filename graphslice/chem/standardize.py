"""Standardization of molecules: salts and charge states are replaced by the parent compound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdkit import Chem

from graphslice.chem.parse import MoleculeError, parse_molecule
from graphslice.chem.quiet import rdkit_messages_blocked

# Only these characters write several fragments or a charge; other molecules are their own parents.
_MARKS = ".+-"


def standardize_all(smiles: Sequence[str], method: str, max_atoms: int) -> tuple[Sequence[str], dict[int, str]]:
    """Standardize many SMILES.

    Args:
        smiles: any texts.
        method: ``"none"``, which returns them as they are, or ``"parent"`` (see :func:`parent_smiles`).
        max_atoms: largest number of atoms accepted, before standardization.

    Returns:
        The SMILES, unchanged where they are already standardized, empty where they cannot be; and by index the reason
        for the latter.
    """
    if method == "none":
        return smiles, {}
    standardized, faults = list(smiles), {}
    for index, text in enumerate(smiles):
        try:
            standardized[index] = parent_smiles(text, max_atoms)
        except MoleculeError as reason:
            standardized[index], faults[index] = "", str(reason)
    return standardized, faults


def parent_smiles(smiles: str, max_atoms: int) -> str:
    """Return the SMILES of the parent compound: the largest organic fragment, neutralised.

    RDKit chooses the fragment (``rdMolStandardize.FragmentParent`` with ``preferOrganic``, without its cleanup, which
    would remove metals from complexes), and adds or removes protons (``Uncharger``). Charges without protons remain, as
    those of quaternary ammonium and nitro groups. Tautomers, isotopes and stereocentres are not changed.

    Args:
        smiles: any text.
        max_atoms: largest number of atoms accepted.

    Raises:
        MoleculeError: with the reason, if the SMILES is invalid, or RDKit cannot standardize it.
    """
    if not isinstance(smiles, str) or not any(mark in smiles for mark in _MARKS):
        return smiles
    from rdkit.Chem.MolStandardize import rdMolStandardize

    parameters: Any = rdMolStandardize.CleanupParameters()
    parameters.preferOrganic = True
    with rdkit_messages_blocked():
        mol = parse_molecule(smiles, max_atoms, keep_atom_maps=True)
        try:
            fragment = rdMolStandardize.FragmentParent(mol, parameters, skipStandardize=True)
            parent = Chem.MolToSmiles(rdMolStandardize.Uncharger().uncharge(fragment))
            if Chem.MolFromSmiles(parent) is None:  # a hydrogen was added to an aromatic carbon that stayed aromatic
                Chem.Kekulize(fragment, clearAromaticFlags=True)
                neutral = rdMolStandardize.Uncharger().uncharge(fragment)
                Chem.SanitizeMol(neutral)
                parent = Chem.MolToSmiles(neutral)
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise MoleculeError(f"RDKit cannot standardize it: {reason}") from None
        return smiles if parent == Chem.MolToSmiles(mol) else parent
