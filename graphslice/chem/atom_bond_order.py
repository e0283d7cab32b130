"""Order of the atoms and bonds of a SMILES, and their indices in the molecular graph in canonical order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rdkit import Chem, rdBase

from graphslice.chem.parse import MoleculeError, graph_atom_indices, parse_molecule
from graphslice.config import ATOM


@dataclass(frozen=True, eq=False, slots=True)
class AtomBondOrder:
    """The n atoms, or bonds, of a molecule in the order of its SMILES.

    Attributes:
        places: ``int64 [n]``, index of each in the graph.
        groups: ``int64 [n]``, symmetry class of each, if the graph may distinguish symmetric ones; else None.
    """

    places: np.ndarray
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.places)


def atom_bond_order(mol: Chem.Mol, level: str, *, with_symmetry: bool = False) -> AtomBondOrder:
    """Map the atoms or bonds of an RDKit molecule to its graph in canonical order.

    Bonds of the graph are sorted by their two atoms, the lower one first, as in
    :func:`~graphslice.chem.renumber.renumber`.

    Args:
        mol: molecule parsed from a SMILES.
        level: atom or bond.
        with_symmetry: also compute the symmetry classes if there are stereocentres: chirality tags depend on the
            numbers of the neighbours, and among symmetric neighbours these numbers are arbitrary.
    """
    ranks = np.array(graph_atom_indices(mol), np.int64)
    ends = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()], np.int64).reshape(-1, 2)
    has_groups = with_symmetry and any(
        atom.GetChiralTag() != Chem.ChiralType.CHI_UNSPECIFIED for atom in mol.GetAtoms()
    )
    if level == ATOM:
        return AtomBondOrder(ranks, _atom_symmetry_classes(mol) if has_groups else None)
    low, high = np.sort(ranks[ends], axis=1).T
    places = np.empty(len(ends), np.int64)
    places[np.lexsort((high, low))] = np.arange(len(ends))
    return AtomBondOrder(places, _bond_symmetry_classes(mol, ends) if has_groups else None)


def _atom_symmetry_classes(mol: Chem.Mol) -> np.ndarray:
    """RDKit's symmetry classes of the atoms: ``int64 [N]``."""
    return np.array(Chem.CanonicalRankAtoms(mol, breakTies=False, includeAtomMaps=False), np.int64)


def _bond_symmetry_classes(mol: Chem.Mol, ends: np.ndarray) -> np.ndarray:
    """Symmetry classes of the bonds: ``int64 [M]``, from the classes and distances of all atoms as seen from both ends.

    The classes of the two ends alone would not distinguish the two kinds of bonds of prismane.
    """
    classes, distances = _atom_symmetry_classes(mol), np.rint(Chem.GetDistanceMatrix(mol)).astype(np.int64)
    class_ids: dict[tuple, int] = {}
    groups = []
    for a, b in ends.tolist():
        views = [sorted(zip(classes, distances[i], distances[j], strict=True)) for i, j in ((a, b), (b, a))]
        groups.append(class_ids.setdefault(tuple(min(views)), len(class_ids)))
    return np.array(groups, np.int64)


def read_atom_bond_orders(
    smiles: Sequence[str], level: str, *, max_atoms: int, with_symmetry: bool = False
) -> list[AtomBondOrder | None]:
    """Apply :func:`atom_bond_order` to many SMILES.

    Args:
        smiles: any texts.
        level, with_symmetry: as for :func:`atom_bond_order`.
        max_atoms: as for :func:`~graphslice.chem.molecule.read_smiles`.

    Returns:
        The order of each molecule; None if it is invalid.
    """
    orders: list[AtomBondOrder | None] = []
    with rdBase.BlockLogs():
        for text in smiles:
            try:
                orders.append(atom_bond_order(parse_molecule(text, max_atoms), level, with_symmetry=with_symmetry))
            except MoleculeError:
                orders.append(None)
    return orders
