"""Atoms and bonds of a SMILES in the order in which it has them, and where they stand in its graph."""

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
        places: ``int64 [n]``, where each stands in the graph.
        groups: ``int64 [n]``, numbers that those have in common which the symmetry of the molecule makes equal, where
            the graph may still tell them apart; else None.
    """

    places: np.ndarray
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.places)


def atom_bond_order(mol: Chem.Mol, level: str, *, with_symmetry: bool = False) -> AtomBondOrder:
    """The order of an RDKit molecule and its graph in canonical order.

    Bonds stand there in the order of their two atoms, the lower one first, as
    :func:`~graphslice.chem.renumber.renumber` puts them.

    Args:
        mol: of a SMILES.
        level: atom or bond.
        alike: also find the groups, where there are stereocentres: their tags speak of the numbers of the neighbours,
            and of neighbours that are alike chance says which one is the lower.
    """
    ranks = np.array(graph_atom_indices(mol), np.int64)
    ends = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()], np.int64).reshape(-1, 2)
    tagged = with_symmetry and any(atom.GetChiralTag() != Chem.ChiralType.CHI_UNSPECIFIED for atom in mol.GetAtoms())
    if level == ATOM:
        return AtomBondOrder(ranks, _atom_symmetry_classes(mol) if tagged else None)
    low, high = np.sort(ranks[ends], axis=1).T
    places = np.empty(len(ends), np.int64)
    places[np.lexsort((high, low))] = np.arange(len(ends))
    return AtomBondOrder(places, _bond_symmetry_classes(mol, ends) if tagged else None)


def _atom_symmetry_classes(mol: Chem.Mol) -> np.ndarray:
    """``int64 [N]``: RDKit's symmetry classes of the atoms."""
    return np.array(Chem.CanonicalRankAtoms(mol, breakTies=False, includeAtomMaps=False), np.int64)


def _bond_symmetry_classes(mol: Chem.Mol, ends: np.ndarray) -> np.ndarray:
    """``int64 [M]``: bonds are alike if the classes of all atoms are, by their distances from both ends.

    The classes of the two ends alone would make one of the triangles' sides and the upright bonds of prismane.
    """
    classes, distances = _atom_symmetry_classes(mol), np.rint(Chem.GetDistanceMatrix(mol)).astype(np.int64)
    found: dict[tuple, int] = {}
    groups = []
    for a, b in ends.tolist():
        seen = [sorted(zip(classes, distances[i], distances[j], strict=True)) for i, j in ((a, b), (b, a))]
        groups.append(found.setdefault(tuple(min(seen)), len(found)))
    return np.array(groups, np.int64)


def read_atom_bond_orders(
    smiles: Sequence[str], level: str, *, max_atoms: int, with_symmetry: bool = False
) -> list[AtomBondOrder | None]:
    """:func:`atom_bond_order` of some SMILES; None of what is no molecule.

    Args:
        smiles: any texts.
        level, alike: as there.
        max_atoms: as of :func:`~graphslice.chem.molecule.read_smiles`.
    """
    found: list[AtomBondOrder | None] = []
    with rdBase.BlockLogs():
        for text in smiles:
            try:
                found.append(atom_bond_order(parse_molecule(text, max_atoms), level, with_symmetry=with_symmetry))
            except MoleculeError:
                found.append(None)
    return found
