"""SMILES to RDKit's molecules, or the reason why a text is none."""

from __future__ import annotations

import re
from unicodedata import name

from rdkit import Chem

#: Distances in the tables end at 510 bonds; the memory of a molecule grows with its atoms squared.
MAX_ATOMS = 512

# RDKit takes minutes for the rings of some graphs that are no molecule's, or crashes on them. A fullerene of N atoms
# has N / 2 + 1 independent rings, diamond and zeolites have at most N, a close-packed cluster of 147 metal atoms 550.
# No coordination number above 16 is known. A text of fewer characters holds too few bonds to matter.
_MAX_RINGS, _MAX_BONDS, _RINGS_CHARACTERS = 600, 16, 512
# An atom as a SMILES writes it.
_ATOM = re.compile(r"\[[^][]*\]|Br|Cl|[BCNOPSFIbcnops*]")
# An atom-map number names an atom in a reaction, and an isotope one of a sample; neither enters the graph.
_LABELS = re.compile(r":[0-9]+\]|\[[0-9]")
_TAGS = re.compile(r"@+")
# What a text may have at its ends without being seen.
_INVISIBLE = dict.fromkeys(map(ord, "\ufeff\u200b\u200c\u200d\u2060"))


class MoleculeError(ValueError):
    """Why a SMILES is no molecule that GraphSlice can use, in one short clause."""


def parse_molecule(smiles: str, max_atoms: int, *, keep_atom_maps: bool = False) -> Chem.Mol:
    """The RDKit molecule of a SMILES, sanitized.

    Graphs that are known to crash RDKit, or to take it minutes, are refused before it looks for their rings. What else
    crashes it ends the process: :func:`~graphslice.data.featurize.featurizer_pool` has others, which may.

    Args:
        smiles: any text, with spaces around it too.
        max_atoms: the largest molecule accepted, hydrogens counted where RDKit keeps them as atoms.
        maps: keep atom-map numbers and isotopes, and stereo that there is by them alone.

    Raises:
        MoleculeError: saying why it is none that a model reads: no text, no molecule, too large, too many
            rings or bonds, a wildcard.
    """
    if not isinstance(smiles, str) or not smiles.strip():
        raise MoleculeError("empty SMILES")
    if len(smiles) > 10 * max_atoms and (written := _count_written_atoms(smiles)) > max_atoms:
        raise MoleculeError(f"{written} atoms, more than the limit of {max_atoms} (graph.max_atoms raises it)")
    if not smiles.isascii():
        _reject_other_scripts(smiles)
    try:
        if len(smiles) > _RINGS_CHARACTERS:
            _refuse_dense(smiles)
        mol = Chem.MolFromSmiles(smiles)
    except UnicodeEncodeError:  # bytes of a file that are no text
        raise MoleculeError("not a valid SMILES") from None
    if mol is None:
        raise MoleculeError(_parse_failure(smiles))
    words = smiles.split(maxsplit=1)
    if len(words) > 1 and not words[1].startswith("|"):  # of "C C" RDKit reads methane, called C; | begins a CXSMILES
        raise MoleculeError(f"text after a space: {words[1].strip()[:40]!r}; give the SMILES alone")
    num_atoms = mol.GetNumAtoms()
    if num_atoms == 0:
        raise MoleculeError("empty SMILES")
    if num_atoms > max_atoms:
        raise MoleculeError(f"{num_atoms} atoms, more than the limit of {max_atoms} (graph.max_atoms raises it)")
    # The ways to write one: *, [#0], and a label of a CXSMILES.
    if any(mark in smiles for mark in ("*", "#0", "|")) and any(atom.GetAtomicNum() == 0 for atom in mol.GetAtoms()):
        raise MoleculeError("a wildcard atom (*) stands for no element")
    if not keep_atom_maps and _LABELS.search(smiles):
        for atom in mol.GetAtoms():
            atom.SetAtomMapNum(0)
            if atom.GetAtomicNum() != 1:  # deuterium is an atom of the graph, which hydrogen is not
                atom.SetIsotope(0)
        Chem.AssignStereochemistry(mol, cleanIt=True, force=True)  # neighbours that differed by their labels alone
    return mol


def _reject_other_scripts(smiles: str) -> None:
    """Raise :class:`MoleculeError` for a letter that no SMILES has: RDKit leaves it out at the ends."""
    words = smiles.translate(_INVISIBLE).split(maxsplit=1)
    other = [mark for mark in words[0] if not mark.isascii()] if words else []
    if other:
        raise MoleculeError(f"not a valid SMILES: {other[0]!a} ({name(other[0], 'no character')}) is no letter of one")


def _refuse_dense(smiles: str) -> None:
    """Raise :class:`MoleculeError` for more rings, or more bonds of an atom, than a molecule has."""
    mol = Chem.MolFromSmiles(smiles, sanitize=False)
    if mol is None:
        return
    rings = mol.GetNumBonds() - mol.GetNumAtoms() + len(Chem.GetMolFrags(mol))
    if rings > _MAX_RINGS:
        raise MoleculeError(f"{rings} ring closures, more than the limit of {_MAX_RINGS}")
    heavy = (sum(other.GetAtomicNum() > 1 for other in atom.GetNeighbors()) for atom in mol.GetAtoms())
    bonds = max(heavy, default=0)
    if bonds > _MAX_BONDS:
        raise MoleculeError(f"an atom with {bonds} bonds to heavy atoms, more than the limit of {_MAX_BONDS}")


def _count_written_atoms(smiles: str) -> int:
    """About how many atoms a long SMILES has: RDKit would look for rings among 100,000 of them for hours."""
    return sum(atom != "[H]" for atom in _ATOM.findall(smiles.split(maxsplit=1)[0]))


def _parse_failure(smiles: str) -> str:
    unsanitized = Chem.MolFromSmiles(smiles, sanitize=False)
    if unsanitized is None:
        return "not a valid SMILES"
    try:
        Chem.SanitizeMol(unsanitized)
    except ValueError as error:
        return f"not a possible molecule: {' '.join(str(error).split())}"
    except RuntimeError:  # of an element that there is not
        return "not a possible molecule: RDKit stops at an atom that there is not"
    return "RDKit does not read it"


def canonical_ranks(mol: Chem.Mol) -> list[int]:
    """The rank of each atom of an RDKit molecule in RDKit's canonical order, from 0."""
    return list(Chem.CanonicalRankAtoms(mol, breakTies=True, includeAtomMaps=False))


def reparse_canonical(mol: Chem.Mol) -> Chem.Mol | None:
    """The molecule as its canonical SMILES gives it; None where RDKit does not read what it writes."""
    try:
        return Chem.MolFromSmiles(Chem.MolToSmiles(mol))
    except Exception:
        return None


def normalize_stereo(mol: Chem.Mol, smiles: str | None = None) -> tuple[Chem.Mol, list[int] | None]:
    """A molecule whose stereo tags say the same however it is spelled.

    In a ring whose two sides are alike but for stereo, RDKit lets the numbers of the atoms decide which tags stand for
    it: two sets of them are right. Of such a molecule its canonical SMILES is read in its place.

    Args:
        mol: of :func:`parse_molecule`.
        smiles: its text, which tells of most molecules at once that there is no choice.

    Returns:
        The molecule, and the place in it of each atom of ``mol``; None where that is the molecule itself.
    """
    if smiles is not None and "|" not in smiles and len(_TAGS.findall(smiles)) < 2:
        return mol, None
    tags = sum(atom.GetChiralTag() != Chem.ChiralType.CHI_UNSPECIFIED for atom in mol.GetAtoms())
    if tags < 2:
        return mol, None
    # Without stereo, as ties that stereo decides depend on the spelling themselves.
    ranks = Chem.CanonicalRankAtoms(mol, breakTies=False, includeChirality=False, includeAtomMaps=False)
    if len(set(ranks)) == mol.GetNumAtoms():
        return mol, None
    again = reparse_canonical(mol)
    if again is None or again.GetNumAtoms() != mol.GetNumAtoms():
        return mol, None
    places = [0] * mol.GetNumAtoms()
    for place, atom in enumerate(re.findall(r"\d+", mol.GetProp("_smilesAtomOutputOrder"))):
        places[int(atom)] = place
    return again, places


def graph_atom_indices(mol: Chem.Mol) -> list[int]:
    """Where each atom of a molecule of :func:`parse_molecule` stands in its graph in canonical order."""
    mol, places = normalize_stereo(mol)
    ranks = canonical_ranks(mol)
    return ranks if places is None else [ranks[place] for place in places]
