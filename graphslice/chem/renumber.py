"""Renumbering of the atoms of molecules, such as to canonical order; compiled with numba."""

from __future__ import annotations

from numba import njit
from rdkit.Chem import ChiralType

from graphslice.chem.features import ATOM_FEATURES

_CLOCKWISE, _COUNTERCLOCKWISE = (
    ATOM_FEATURES["chirality"].indices[tag] for tag in (ChiralType.CHI_TETRAHEDRAL_CW, ChiralType.CHI_TETRAHEDRAL_CCW)
)


@njit(cache=True)
def renumber(ranks, atom_ptr, bond_ptr, atoms, bonds, bond_type_ids):
    """Sort the atoms of each molecule by ``ranks`` (``int32 [A]``), and its bonds by their atoms.

    The arrays are those of ``MolArrays``, changed in place. RDKit's chirality tag is relative to the order of the
    bonds of the atom, so it is inverted if the new order is an odd permutation of the old one.

    Raises:
        ValueError: if ranks are not valid indices of atoms of their molecule.
    """
    if len(ranks) != len(atoms):
        raise ValueError("the number of ranks differs from the number of atoms")
    for g in range(len(atom_ptr) - 1):
        first_atom, first_bond, end_bond = atom_ptr[g], bond_ptr[g], bond_ptr[g + 1]
        rank = ranks[first_atom : atom_ptr[g + 1]]
        old = atoms[first_atom : atom_ptr[g + 1]].copy()
        for i in range(len(rank)):
            if not 0 <= rank[i] < len(rank):
                raise ValueError("a rank is out of range for its molecule")
        for i in range(len(rank)):
            tag = old[i, 1]
            if tag in (_CLOCKWISE, _COUNTERCLOCKWISE) and _is_odd(i, rank, bonds[first_bond:end_bond]):
                old[i, 1] = _CLOCKWISE + _COUNTERCLOCKWISE - tag
        for i in range(len(rank)):
            for f in range(old.shape[1]):  # numba compiles the assignment of a row for a second longer
                atoms[first_atom + rank[i], f] = old[i, f]
        for m in range(first_bond, end_bond):  # insertion sort
            a, b, bond_type = rank[bonds[m, 0]], rank[bonds[m, 1]], bond_type_ids[m]
            if a > b:
                a, b = b, a
            k = m
            while k > first_bond and (bonds[k - 1, 0] > a or (bonds[k - 1, 0] == a and bonds[k - 1, 1] > b)):
                bonds[k, 0], bonds[k, 1], bond_type_ids[k] = bonds[k - 1, 0], bonds[k - 1, 1], bond_type_ids[k - 1]
                k -= 1
            bonds[k, 0], bonds[k, 1], bond_type_ids[k] = a, b, bond_type


@njit(cache=True)
def _is_odd(atom, rank, bonds):
    """True if sorting the neighbours of the atom by rank is an odd permutation."""
    odd = False
    for m in range(len(bonds)):
        if bonds[m, 0] == atom or bonds[m, 1] == atom:
            neighbour_rank = rank[bonds[m, 1] if bonds[m, 0] == atom else bonds[m, 0]]
            for k in range(m + 1, len(bonds)):
                if (bonds[k, 0] == atom and rank[bonds[k, 1]] < neighbour_rank) or (
                    bonds[k, 1] == atom and rank[bonds[k, 0]] < neighbour_rank
                ):
                    odd = not odd
    return odd
