"""Standardization of molecules: salts and charge states are replaced by the parent compound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdkit import Chem

from graphslice.chem.parse import MoleculeError, parse_molecule
from graphslice.chem.quiet import rdkit_messages_blocked

# Only these characters write several fragments or a charge; other molecules are their own parents.
_MARKS = ".+-"
# Atomic numbers of metals that a parent compound must not lose: all but the counterions, which are alkali and alkaline
# earth metals, aluminium, zinc and silver.
_COMPLEXED = frozenset({*range(21, 30), 31, *range(39, 47), *range(48, 52), *range(57, 85), *range(89, 104)})


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
    those of quaternary ammonium and nitro groups. Tautomers, isotopes and stereocentres are not changed. A complex that
    is written without bonds to its metal, such as cisplatin as ``N.N.Cl[Pt]Cl``, has no parent: its ligand is another
    compound.

    Args:
        smiles: any text.
        max_atoms: largest number of atoms accepted.

    Raises:
        MoleculeError: with the reason, if the SMILES is invalid, RDKit cannot standardize it, or the parent would lack
            a metal that is not a usual counterion.
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
            if lost := _complexed_metals(mol) - _complexed_metals(fragment):
                raise MoleculeError(
                    f"its parent compound would lack {' and '.join(sorted(lost))}: write the bonds to the metal, or "
                    "leave the molecule out"
                )
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


def _complexed_metals(mol: Chem.Mol) -> set[str]:
    """Return the symbols of the metals of a molecule that are not usual counterions."""
    return {atom.GetSymbol() for atom in mol.GetAtoms() if atom.GetAtomicNum() in _COMPLEXED}
