"""SMILES to :class:`MolGraph`: the nine atom and three bond features of OGB, exactly.

The integers are those of ``ogb.utils.features`` (OGB 1.3.6, Hu et al. 2020); the code is our own
because OGB's walks every list with ``list.index`` and stops at stereo labels it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from rdkit import Chem, rdBase

from graphslice.vocabulary import ATOM_DIMS

if TYPE_CHECKING:
    from torch_geometric.data import Data

AtomOrder = Literal["canonical", "input"]

#: Distances in the tables end at 510 bonds; the memory of a molecule grows with its atoms squared.
MAX_ATOMS = 512

_CLOCKWISE, _COUNTERCLOCKWISE = 1, 2
_CHIRALITY = {
    Chem.ChiralType.CHI_UNSPECIFIED: 0,
    Chem.ChiralType.CHI_TETRAHEDRAL_CW: _CLOCKWISE,
    Chem.ChiralType.CHI_TETRAHEDRAL_CCW: _COUNTERCLOCKWISE,
    Chem.ChiralType.CHI_OTHER: 3,
}
_HYBRIDIZATION = {
    kind: index
    for index, kind in enumerate(
        (
            Chem.HybridizationType.SP,
            Chem.HybridizationType.SP2,
            Chem.HybridizationType.SP3,
            Chem.HybridizationType.SP3D,
            Chem.HybridizationType.SP3D2,
        )
    )
}
_BOND_TYPE = {
    kind: index
    for index, kind in enumerate(
        (Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE, Chem.BondType.AROMATIC)
    )
}
_BOND_STEREO = {
    kind: index
    for index, kind in enumerate(
        (
            Chem.BondStereo.STEREONONE,
            Chem.BondStereo.STEREOZ,
            Chem.BondStereo.STEREOE,
            Chem.BondStereo.STEREOCIS,
            Chem.BondStereo.STEREOTRANS,
            Chem.BondStereo.STEREOANY,
        )
    )
}
# OGB stops at atropisomers; a bond whose stereo has no label of its own is "some stereo".
_STEREO_ANY = 5


class MoleculeError(ValueError):
    """Why a SMILES is no molecule that GraphSlice can use, in one short clause."""


@dataclass(frozen=True, eq=False, slots=True)
class MolGraph:
    """A molecule as OGB sees it: N atoms, M bonds, no hydrogens beyond the written ones.

    Attributes:
        atoms: ``uint8 [N, 9]``, OGB's atom features (see :data:`~graphslice.vocabulary.ATOM_DIMS`).
        bonds: ``int32 [M, 2]``, the two atoms of each bond, each bond once.
        bond_features: ``uint8 [M, 3]``, OGB's bond features (see :data:`~graphslice.vocabulary.BOND_DIMS`).
    """

    atoms: np.ndarray
    bonds: np.ndarray
    bond_features: np.ndarray

    @property
    def num_atoms(self) -> int:
        return len(self.atoms)

    @property
    def num_bonds(self) -> int:
        return len(self.bonds)

    def to_ogb(self) -> dict[str, Any]:
        """The dictionary of ``ogb.utils.smiles2graph``: int64, every bond in both directions."""
        directed = np.stack([self.bonds, self.bonds[:, ::-1]], axis=1).reshape(-1, 2)
        return {
            "edge_index": np.ascontiguousarray(directed.T.astype(np.int64)),
            "edge_feat": np.repeat(self.bond_features, 2, axis=0).astype(np.int64),
            "node_feat": self.atoms.astype(np.int64),
            "num_nodes": self.num_atoms,
        }

    def to_pyg(self) -> Data:
        """The molecule as a PyG ``Data`` with OGB features (see :mod:`graphslice.data.pyg`)."""
        from graphslice.data.pyg import to_pyg

        return to_pyg(self)


def smiles_to_graph(smiles: str, *, atom_order: AtomOrder = "canonical", max_atoms: int = MAX_ATOMS) -> MolGraph:
    """Parse a SMILES into a :class:`MolGraph`.

    Args:
        smiles: any SMILES that RDKit reads: salts, ions, isotopes, stereo, explicit hydrogens.
        atom_order: ``"canonical"`` numbers the atoms by RDKit's canonical ranking, so that every
            spelling of a molecule gives the same arrays. The chirality tag is then clockwise or
            counterclockwise as seen along *that* numbering: a raw tag speaks of the spelling.
            ``"input"`` keeps the order and the tags as written, integer for integer those of
            ``ogb.utils.smiles2graph``.
        max_atoms: the largest number of atoms accepted.

    Raises:
        MoleculeError: with the reason, for what does not parse, is empty, has a wildcard atom or
            more than ``max_atoms`` atoms.
    """
    if atom_order not in ("canonical", "input"):
        raise ValueError(f"atom_order is 'canonical' or 'input', not {atom_order!r}")
    mol = _parse(smiles)
    num_atoms = mol.GetNumAtoms()
    if num_atoms == 0:
        raise MoleculeError("empty SMILES")
    if num_atoms > max_atoms:
        raise MoleculeError(f"{num_atoms} atoms, more than the limit of {max_atoms} (graph.max_atoms raises it)")
    atoms = np.array([_atom_features(atom) for atom in mol.GetAtoms()], dtype=np.uint8)
    if (atoms[:, 0] == ATOM_DIMS[0] - 1).any():
        raise MoleculeError("a wildcard atom (*) stands for no element")
    mol_bonds = list(mol.GetBonds())
    bonds = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol_bonds], dtype=np.int32).reshape(-1, 2)
    features = np.array([_bond_features(bond) for bond in mol_bonds], dtype=np.uint8).reshape(-1, 3)
    if atom_order == "canonical":
        # An atom-map number names an atom in a reaction; it is no property of the molecule.
        ranks = np.array(Chem.CanonicalRankAtoms(mol, breakTies=True, includeAtomMaps=False), dtype=np.int32)
        return _renumber(atoms, bonds, features, ranks)
    return MolGraph(atoms, bonds, features)


def _parse(smiles: str) -> Chem.Mol:
    if not isinstance(smiles, str) or not smiles.strip():
        raise MoleculeError("empty SMILES")
    try:
        smiles.encode()
    except UnicodeEncodeError:  # bytes of a file that are no text
        raise MoleculeError("not a valid SMILES") from None
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles)
        if mol is not None:
            return mol
        unsanitized = Chem.MolFromSmiles(smiles, sanitize=False)
        if unsanitized is None:
            raise MoleculeError("not a valid SMILES")
        try:
            Chem.SanitizeMol(unsanitized)
        except ValueError as error:
            raise MoleculeError(f"not a possible molecule: {' '.join(str(error).split())}") from None
    raise MoleculeError("RDKit does not read it")


def _atom_features(atom: Chem.Atom) -> tuple[int, ...]:
    number = atom.GetAtomicNum()
    degree = atom.GetTotalDegree()
    charge = atom.GetFormalCharge()
    hydrogens = atom.GetTotalNumHs()
    radicals = atom.GetNumRadicalElectrons()
    return (
        number - 1 if 1 <= number <= 118 else 118,
        _CHIRALITY.get(atom.GetChiralTag(), 4),
        min(degree, 11),
        charge + 5 if -5 <= charge <= 5 else 11,
        min(hydrogens, 9),
        min(radicals, 5),
        _HYBRIDIZATION.get(atom.GetHybridization(), 5),
        atom.GetIsAromatic(),
        atom.IsInRing(),
    )


def _bond_features(bond: Chem.Bond) -> tuple[int, ...]:
    return (
        _BOND_TYPE.get(bond.GetBondType(), 4),
        _BOND_STEREO.get(bond.GetStereo(), _STEREO_ANY),
        bond.GetIsConjugated(),
    )


def _renumber(atoms: np.ndarray, bonds: np.ndarray, features: np.ndarray, ranks: np.ndarray) -> MolGraph:
    """Put the atoms in the order of their ranks, and the bonds in the order of their atoms."""
    atoms = atoms.copy()
    for atom in np.flatnonzero((atoms[:, 1] == _CLOCKWISE) | (atoms[:, 1] == _COUNTERCLOCKWISE)):
        # RDKit's tag is relative to the order of the atom's bonds.
        around = [ranks[b[0] if b[1] == atom else b[1]] for b in bonds[(bonds == atom).any(axis=1)]]
        if _is_odd(around):
            atoms[atom, 1] = _CLOCKWISE + _COUNTERCLOCKWISE - atoms[atom, 1]
    renumbered = np.empty_like(atoms)
    renumbered[ranks] = atoms
    bonds = np.sort(ranks[bonds], axis=1).astype(np.int32)
    order = np.lexsort((bonds[:, 1], bonds[:, 0]))
    return MolGraph(renumbered, bonds[order], features[order])


def _is_odd(values: Sequence[int]) -> bool:
    """Whether sorting the values takes an odd number of exchanges."""
    inversions = sum(values[i] > values[j] for i in range(len(values)) for j in range(i + 1, len(values)))
    return inversions % 2 == 1
