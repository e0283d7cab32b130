"""SMILES with RDKit: parsing and writing, error messages for invalid molecules, and the canonical atom order.

Standardization replaces salts and charge states by the parent compound. RDKit's messages are blocked, since the reasons
for invalid molecules repeat their content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unicodedata import name

from rdkit import Chem, rdBase
from rdkit.Chem import rdqueries

from graphslice.errors import first_line

#: Largest number of atoms by default: distances are limited to 510 bonds, and memory is quadratic in the atoms.
MAX_ATOMS = 512

# An atom in SMILES notation.
_ATOM = re.compile(r"\[[^][]*\]|Br|Cl|[BCNOPSFIbcnops*]")
# Atom-map numbers label atoms in reactions, and isotopes label atoms in samples; neither is part of the graph.
_LABELS = re.compile(r":[0-9]+\]|\[[0-9]")
_TAGS = re.compile(r"@+")
# What RDKit's assignment of stereo and its removal of hydrogens begin with; | is that of a CXSMILES.
_STEREO_OR_HYDROGENS = re.compile(r"[@/\\|]|\[[0-9]*H")
# Types of brackets around units of polymers. Of the others, COM and MIX enclose the parts of a mixture.
_POLYMERS = {"SRU", "MON", "MER", "COP", "CRO", "MOD", "GRA", "ANY"}
# Properties of an atom with a label, and labels of R groups, attachment points, beads and lists of elements.
_ATOM_LABELS, _VARIABLE = ("atomLabel", "molFileAlias"), re.compile(r"_?R[0-9]*|_AP[0-9]*|\S*_[pe]")
# What is found in columns of SMILES by mistake.
_OTHER_NOTATIONS = {
    "an InChI": re.compile(r"^\s*InChI="),
    "an InChIKey": re.compile(r"^\s*[A-Z]{14}-[A-Z]{10}-[A-Z]\s*$"),
    "a CAS number": re.compile(r"^\s*[0-9]{2,7}-[0-9]{2}-[0-9]\s*$"),
    "a reaction": re.compile(r"^\S*(?<!-)>[^\s>]*>\S*$"),
    "a molblock": re.compile(r"^M  END", re.MULTILINE),
    # Letters that no atom without brackets has.
    "a name": re.compile(r"^(?=(.*[adefghijkmqtuvwxyz]){2})[\w ,()'-]+$"),
}
# RDKit's messages of a SMILES that it cannot parse.
_COMPLAINT, _POSITION = re.compile(r"Parse Error: (.+?)(?: while parsing| for input):"), re.compile(r"position (\d+):")
# An aromatic nitrogen with two neighbours, which may lack its hydrogen.
_BARE_NITROGEN = Chem.MolFromSmarts("[nD2;H0]")
_STEREOCENTRE = rdqueries.HasChiralTagQueryAtom()
# Invisible characters that a text may have at its ends.
_INVISIBLE = dict.fromkeys(map(ord, "\ufeff\u200b\u200c\u200d\u2060"))


class MoleculeError(ValueError):
    """A SMILES or graph is not a molecule that GraphSlice can use; the message is the reason, in one short clause."""


def parse_molecule(smiles: str, max_atoms: int, *, keep_atom_maps: bool = False) -> Chem.Mol:
    """Parse a SMILES, spaces around it ignored, into a sanitized RDKit molecule; raise MoleculeError with the reason.
    Atom-map numbers and isotopes are removed, and stereocentres that exist only because of them, unless
    ``keep_atom_maps``. ``max_atoms`` includes the hydrogens that RDKit keeps as atoms."""
    if not isinstance(smiles, str) or not smiles.strip():
        raise MoleculeError("empty SMILES")
    if len(smiles) > max_atoms:
        _reject_large(_count_written_atoms(smiles), max_atoms)
    if not smiles.isascii():
        _reject_other_scripts(smiles)
    try:
        mol = _parse(smiles)
    except UnicodeEncodeError:  # undecodable bytes of a file
        raise MoleculeError("not a valid SMILES") from None
    if mol is None:
        raise MoleculeError(parse_failure(Chem.MolFromSmiles(smiles, sanitize=False), partial(_unreadable, smiles)))
    parts = smiles.split(maxsplit=1)
    if len(parts) > 1 and not parts[1].startswith("|"):  # RDKit reads "C C" as methane named C; | starts a CXSMILES
        raise MoleculeError(f"text after a space: {parts[1].strip()[:40]!r}; give the SMILES alone")
    num_atoms = mol.GetNumAtoms()
    if num_atoms == 0:
        raise MoleculeError("empty SMILES")
    _reject_large(num_atoms, max_atoms)
    # A wildcard is written as *, [#0], or as a label of a CXSMILES.
    if any(mark in smiles for mark in ("*", "#0", "|")) and any(atom.GetAtomicNum() == 0 for atom in mol.GetAtoms()):
        raise MoleculeError("a wildcard atom (*) has no element")
    if "[#" in smiles:  # RDKit reads such an atom without hydrogens, so ethanol as SMARTS is a radical
        raise MoleculeError("a SMARTS pattern, not a SMILES: write elements by their symbols")
    if "|" in smiles:
        _reject_variable(mol)
    if not keep_atom_maps and _LABELS.search(smiles):
        for atom in mol.GetAtoms():
            atom.SetAtomMapNum(0)
            if atom.GetAtomicNum() != 1:  # deuterium stays an atom of the graph, unlike hydrogen
                atom.SetIsotope(0)
        Chem.AssignStereochemistry(mol, cleanIt=True, force=True)  # neighbours may have differed only by labels
    return mol


def _parse(smiles: str) -> Chem.Mol | None:
    """Parse and sanitize a SMILES; stereo is assigned, and hydrogens are merged, only where there may be some."""
    if _STEREO_OR_HYDROGENS.search(smiles):
        return Chem.MolFromSmiles(smiles)
    mol = Chem.MolFromSmiles(smiles, sanitize=False)
    try:
        if mol is not None:
            Chem.SanitizeMol(mol)
    except (ValueError, RuntimeError):
        return None
    return mol


def _reject_large(num_atoms: int, max_atoms: int) -> None:
    if num_atoms > max_atoms:
        raise MoleculeError(f"{num_atoms} atoms, more than the limit of {max_atoms} (graph.max_atoms raises it)")


def _reject_variable(mol: Chem.Mol) -> None:
    """Raise :class:`MoleculeError` if a structure stands for more than the molecule of its atoms and bonds."""
    types = (group.GetProp("TYPE") for group in Chem.GetMolSubstanceGroups(mol) if group.HasProp("TYPE"))
    if kind := next((kind for kind in types if kind in _POLYMERS), None):
        raise MoleculeError(f"a polymer: its brackets ({kind}) repeat a unit, and one molecule is needed")
    if any(bond.HasProp("_MolFileBondEndPts") for bond in mol.GetBonds()):
        raise MoleculeError("a bond to one of several atoms: give one molecule")
    labels = (atom.GetProp(name) for atom in mol.GetAtoms() for name in _ATOM_LABELS if atom.HasProp(name))
    if label := next(filter(_VARIABLE.fullmatch, labels), None):
        raise MoleculeError(f"an atom with the label {label[:40]!r} stands for others: give one molecule")


def _unreadable(text: str) -> str:
    """Return what a text is, or RDKit's complaint, that it cannot be parsed even without sanitization."""
    if found := next((notation for notation, pattern in _OTHER_NOTATIONS.items() if pattern.search(text)), None):
        return f"not a valid SMILES, but {found}"
    with rdBase.CaptureErrorLog() as log:
        Chem.MolFromSmiles(text, sanitize=False)
    what, where = _COMPLAINT.search(log.messages), _POSITION.search(log.messages)
    complaint = f": {what[1]}{f' at character {where[1]}' if where else ''}" if what else ""
    return f"not a valid SMILES{complaint}"


def _reject_other_scripts(smiles: str) -> None:
    """Raise :class:`MoleculeError` for a non-ASCII character, which RDKit would ignore at the ends."""
    parts = smiles.translate(_INVISIBLE).split(maxsplit=1)
    characters = [character for character in parts[0] if not character.isascii()] if parts else []
    if characters:
        raise MoleculeError(
            f"not a valid SMILES: invalid character {characters[0]!a} ({name(characters[0], 'no character')})"
        )


def _count_written_atoms(smiles: str) -> int:
    """Estimate the number of atoms of a SMILES: ring perception on 100,000 atoms would take RDKit hours."""
    return sum(atom != "[H]" for atom in _ATOM.findall(smiles.split(maxsplit=1)[0]))


def parse_failure(unsanitized: Chem.Mol | None, unreadable: Callable[[], str]) -> str:
    """Explain why RDKit rejects a molecule, parsed without sanitization; ``unreadable`` if even that is impossible."""
    if unsanitized is None:
        return unreadable()
    try:
        Chem.SanitizeMol(unsanitized)
    except Chem.KekulizeException as error:
        hint = "; an aromatic N with a hydrogen is [nH]" if unsanitized.HasSubstructMatch(_BARE_NITROGEN) else ""
        return f"not a valid molecule: {' '.join(str(error).split())}{hint}"
    except ValueError as error:
        return f"not a valid molecule: {' '.join(str(error).split())}"
    except RuntimeError:
        return "not a valid molecule: unknown element"
    return "RDKit cannot parse it"


def canonical_ranks(mol: Chem.Mol) -> list[int]:
    """Return the rank of each atom in RDKit's canonical atom order, from 0."""
    return list(Chem.CanonicalRankAtoms(mol, breakTies=True, includeAtomMaps=False))


def reparse_canonical(mol: Chem.Mol) -> Chem.Mol | None:
    """Parse the canonical SMILES of a molecule; None if RDKit cannot read its own output."""
    try:
        return Chem.MolFromSmiles(Chem.MolToSmiles(mol))
    except Exception:
        return None


def normalize_stereo(mol: Chem.Mol, smiles: str | None = None) -> tuple[Chem.Mol, list[int] | None]:
    """Make stereo tags independent of the SMILES notation.

    For a ring with two sides that differ only in stereo, two sets of tags are valid, and RDKit chooses by atom numbers.
    A centre of such a ring has two neighbours that differ at most in stereo. The molecule is then replaced by the one
    parsed from its canonical SMILES, returned with the index in it of each atom of ``mol``; None if ``mol`` is not
    replaced. For most molecules ``smiles`` shows quickly that the tags are unique.
    """
    if smiles is not None and "|" not in smiles and len(_TAGS.findall(smiles)) < 2:
        return mol, None
    centres = mol.GetAtomsMatchingQuery(_STEREOCENTRE)
    if len(centres) < 2:
        return mol, None
    # Without stereo, since ties that stereo breaks depend on the SMILES notation themselves.
    ranks = list(Chem.CanonicalRankAtoms(mol, breakTies=False, includeChirality=False, includeAtomMaps=False))
    if not any(_has_equal_neighbours(centre, ranks) for centre in centres):
        return mol, None
    reparsed = reparse_canonical(mol)
    if reparsed is None or reparsed.GetNumAtoms() != mol.GetNumAtoms():
        return mol, None
    places = [0] * mol.GetNumAtoms()
    for place, atom in enumerate(re.findall(r"\d+", mol.GetProp("_smilesAtomOutputOrder"))):
        places[int(atom)] = place
    return reparsed, places


def _has_equal_neighbours(atom: Chem.Atom, ranks: Sequence[int]) -> bool:
    neighbours = [ranks[neighbour.GetIdx()] for neighbour in atom.GetNeighbors()]
    return len(set(neighbours)) < len(neighbours)


def graph_atom_indices(mol: Chem.Mol) -> list[int]:
    """Return the index of each atom in the molecular graph with canonical order; ``mol``: from parse_molecule."""
    mol, places = normalize_stereo(mol)
    ranks = canonical_ranks(mol)
    return ranks if places is None else [ranks[place] for place in places]


def mol_to_smiles(mol: Chem.Mol) -> str:
    """Write the SMILES of any RDKit molecule; raises MoleculeError if RDKit cannot, or the molecule is a query."""
    # An atom without an element, which is a query too, is written as a wildcard.
    if any(atom.HasQuery() and atom.GetAtomicNum() for atom in mol.GetAtoms()) or any(
        bond.HasQuery() for bond in mol.GetBonds()
    ):
        raise MoleculeError("a query, with atoms or bonds that stand for several: give one molecule")
    _reject_variable(mol)
    try:
        with rdkit_messages_blocked():
            # Molecules parsed without sanitization lack the valences that writing needs.
            if mol.NeedsUpdatePropertyCache():
                mol = Chem.Mol(mol)
                mol.UpdatePropertyCache(strict=False)
            return Chem.MolToSmiles(mol)
    except (RuntimeError, ValueError) as error:
        raise MoleculeError(f"RDKit cannot write a SMILES: {first_line(error)}") from None


# Only these characters write several fragments or a charge; other molecules are their own parents.
_MARKS = ".+-"
# Atomic numbers of metals that a parent compound must not lose: all but the counterions, which are alkali and alkaline
# earth metals, aluminium, zinc and silver.
_COMPLEXED = frozenset({*range(21, 30), 31, *range(39, 47), *range(48, 52), *range(57, 85), *range(89, 104)})


def standardize_all(smiles: Sequence[str], method: str, max_atoms: int) -> tuple[Sequence[str], dict[int, str]]:
    """Standardize SMILES by ``"none"`` or ``"parent"`` (:func:`parent_smiles`); return them, unchanged where already
    standard and empty where impossible, and by index the reason for the latter."""
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
    """Return the SMILES of the parent compound: the largest organic fragment by RDKit's ``FragmentParent`` (without its
    cleanup, which would remove metals from complexes), with protons added or removed by its ``Uncharger``. Charges
    without protons, tautomers, isotopes and stereocentres stay. A complex that is written without bonds to its metal,
    such as cisplatin as ``N.N.Cl[Pt]Cl``, has no parent, as its ligand is another compound: a
    :class:`MoleculeError`."""
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
        if lost := _complexed_metals(mol) - _complexed_metals(fragment):
            advice = "write the bonds to the metal, or leave the molecule out"
            raise MoleculeError(f"its parent compound would lack {' and '.join(sorted(lost))}: {advice}")
        return smiles if parent == Chem.MolToSmiles(mol) else parent


def _complexed_metals(mol: Chem.Mol) -> set[str]:
    return {atom.GetSymbol() for atom in mol.GetAtoms() if atom.GetAtomicNum() in _COMPLEXED}


# The block of each open context; all share one, which ends with the last. No lock, which a fork could leave locked.
_open: list[rdBase.BlockLogs] = []


@contextmanager
def rdkit_messages_blocked() -> Iterator[None]:
    """Block the messages of RDKit until the last such context of all threads ends."""
    _open.append((_open[:1] or [rdBase.BlockLogs()])[0])
    try:
        yield
    finally:
        _open.pop()
