"""Order of the atoms and bonds of a SMILES, and their indices in the molecular graph in canonical order."""

from __future__ import annotations

import numpy as np
from rdkit import Chem

from graphslice.chem.parse import graph_atom_indices
from graphslice.config import ATOM

#: dtype of :func:`atom_bond_order`.
ORDER_DTYPE = np.uint16


def atom_bond_order(mol: Chem.Mol, level: str, *, canonical: bool = True) -> np.ndarray:
    """Map the n atoms, or bonds, of a molecule in the order of its SMILES to its graph.

    Bonds of a graph in canonical order are sorted by their two atoms, the lower one first, as in
    :func:`~graphslice.chem.renumber.renumber`.

    Args:
        mol: molecule parsed from a SMILES.
        level: atom or bond.
        canonical: the graph is in canonical order; otherwise it has the order of the SMILES.

    Returns:
        ``uint16 [n, 2]``: the index of each in the graph, and its symmetry class. Only molecules with stereocentres
        have symmetry classes of several members: chirality tags depend on the numbers of the neighbours, and among
        symmetric neighbours these numbers are arbitrary, so that the graph may distinguish them.
    """
    if not canonical:
        return _order(np.arange(mol.GetNumAtoms() if level == ATOM else mol.GetNumBonds()))
    ranks = np.array(graph_atom_indices(mol), np.int64)
    ends = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()], np.int64).reshape(-1, 2)
    has_stereo = any(atom.GetChiralTag() != Chem.ChiralType.CHI_UNSPECIFIED for atom in mol.GetAtoms())
    if level == ATOM:
        return _order(ranks, _atom_symmetry_classes(mol) if has_stereo else None)
    low, high = np.sort(ranks[ends], axis=1).T
    places = np.empty(len(ends), np.int64)
    places[np.lexsort((high, low))] = np.arange(len(ends))
    return _order(places, _bond_symmetry_classes(mol, ends) if has_stereo else None)


def _order(places: np.ndarray, classes: np.ndarray | None = None) -> np.ndarray:
    classes = np.arange(len(places)) if classes is None else classes
    return np.stack([places, classes], axis=1).astype(ORDER_DTYPE)


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
