"""Hashes of molecules, compiled: identity (exact arrays), family (with salts, tautomers, stereoisomers), scaffold.

They find duplicates, and keep related compounds together in a split. Equal molecules always have equal hashes;
different molecules have equal hashes in the cases stated below, and otherwise only by a 64-bit collision.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from graphslice.chem.molecule import MolArrays
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS

# Columns of OGB's atom features, and some of their values (ogb.utils.features).
_ELEMENT, _CHARGE, _HYDROGENS = 0, 3, 4
_NO_CHARGE, _UNKNOWN_CHARGE, _UNKNOWN_HYDROGENS = 5, ATOM_DIMS[3] - 1, ATOM_DIMS[4] - 1
_HYDROGEN = 0  # as an element
# Electropositive elements whose bonds count as ionic (salts): Li, Na, K, Rb, Cs, Mg, Ca, Sr, Ba.
_IS_SALT_METAL = np.isin(np.arange(ATOM_DIMS[0]) + 1, [3, 11, 19, 37, 55, 12, 20, 38, 56])
#: A bond type id divided by it is the bond type.
IDS_PER_TYPE = BOND_DIMS[1] * BOND_DIMS[2]
_DOUBLE = 1
# Position of each atom feature in the 64-bit word of an atom.
_SHIFTS = np.cumsum([0, *(int(size - 1).bit_length() for size in ATOM_DIMS[:-1])]).astype(np.uint64)

# Rounds of colour refinement before the first test of convergence; few molecules need fewer.
_SURE_ROUNDS = 3

#: Odd numbers that mix bits.
ODD = np.uint64(0x9E3779B97F4A7C15)
MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class MoleculeHashes(NamedTuple):
    """Identity and family hashes of G molecules, each ``uint64 [G]``.

    ``identity`` is of atoms, bonds and bond types: molecules with equal hashes are the same input of a model.
    Stereochemistry and salts count; isotopes, which OGB's features lack, and the order of the bonds do not. The SMILES
    notation counts only if its atom order was kept (``atom_order="input"``).

    ``family`` is of the fragment with the most heavy atoms (of several, the largest hash): elements and connectivity,
    by colour refinement (Weisfeiler and Lehman 1968), and hydrogens after neutralisation. Charge states, tautomers,
    stereoisomers and salts with smaller counterions share it, and so do isomers that differ only in the positions of
    double bonds, and the few skeletons that colour refinement cannot distinguish, such as decalin and bicyclopentyl.
    Bonds of the metals Li to Cs and Mg to Ba count as ionic; explicit and implicit hydrogens are equivalent.
    """

    identity: np.ndarray
    family: np.ndarray


def hash_molecules(arrays: MolArrays) -> MoleculeHashes:
    """Compute identity and family hashes of valid molecules (preprocessed dataset, or ``check_molecules``)."""
    return MoleculeHashes(*_hashes(arrays, False))


def hash_scaffolds(arrays: MolArrays) -> np.ndarray:
    """Compute the scaffold hash, ``uint64 [G]``, of valid molecules; 0 without a ring. The scaffold (Bemis and Murcko
    1996) consists of the rings and linkers of the fragment that defines the family, the atoms double-bonded to these,
    and the types of all bonds among them; unlike RDKit's, without charges and hydrogens."""
    return _hashes(arrays, True)[1]


def _hashes(arrays: MolArrays, of_scaffolds: bool) -> np.ndarray:
    hashes = np.zeros((2, len(arrays)), np.uint64)
    atoms, bonds = np.ascontiguousarray(arrays.atoms), np.ascontiguousarray(arrays.bonds)
    _hash_all(arrays.atom_ptr, arrays.bond_ptr, atoms, bonds, arrays.bond_type_ids, of_scaffolds, hashes)
    return hashes


@njit(cache=True, nogil=True)
def _hash_all(atom_ptr, bond_ptr, atoms, bonds, bond_type_ids, of_scaffolds, hashes):
    for g in range(len(atom_ptr) - 1):
        molecule_atoms = atoms[atom_ptr[g] : atom_ptr[g + 1]]
        begin, end = bond_ptr[g], bond_ptr[g + 1]
        molecule_bonds, molecule_bond_types = bonds[begin:end], bond_type_ids[begin:end]
        if not of_scaffolds:
            hashes[0, g] = _identity(molecule_atoms, molecule_bonds, molecule_bond_types)
        hashes[1, g] = _hash_heaviest_fragment(molecule_atoms, molecule_bonds, molecule_bond_types, of_scaffolds)


@njit(cache=True)
def mix(x):
    """Mix the bits of a 64-bit number, as a permutation (splitmix64, Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def _identity(atoms, bonds, bond_type_ids):
    total = np.uint64(0)
    for i in range(len(atoms)):
        word = np.uint64(0)
        for f in range(len(_SHIFTS)):
            word |= np.uint64(atoms[i, f]) << _SHIFTS[f]
        total += mix(mix(word) + np.uint64(i + 1) * ODD)
    for m in range(len(bonds)):
        low, high = min(bonds[m, 0], bonds[m, 1]), max(bonds[m, 0], bonds[m, 1])
        word = np.uint64(low) << np.uint64(32) | np.uint64(high) << np.uint64(8) | np.uint64(bond_type_ids[m])
        total += mix(~word * ODD)
    return mix(total + np.uint64(len(atoms)))


@njit(cache=True)
def _hash_heaviest_fragment(atoms, bonds, bond_type_ids, of_scaffolds):
    """Hash the family, or the scaffold, of the fragment with the most heavy atoms."""
    size = len(atoms)
    first, hydrogens, links = _link(atoms, bonds, bond_type_ids)
    # Breadth-first search of each fragment in turn; ``order`` is the queue.
    order, fragment_of = np.empty(size, np.int64), np.full(size, -1)
    most_heavy, num_found = np.int64(-1), np.int64(0)
    family, scaffold = np.uint64(0), np.uint64(0)
    for root in range(size):
        if fragment_of[root] >= 0:
            continue
        begin = num_found
        order[num_found], fragment_of[root] = root, root
        num_found += 1
        head, heavy = begin, np.int64(0)
        while head < num_found:
            i = order[head]
            heavy += atoms[i, _ELEMENT] != _HYDROGEN and not _IS_SALT_METAL[atoms[i, _ELEMENT]]
            for k in range(first[i], first[i + 1]):
                j = links[0, k]
                if fragment_of[j] < 0:
                    order[num_found], fragment_of[j] = j, root
                    num_found += 1
            head += 1
        if heavy < most_heavy:
            continue
        members = order[begin:num_found]
        fragment_hash = _family(atoms, members, first, hydrogens, links)
        if heavy > most_heavy or fragment_hash > family:
            most_heavy, family = heavy, fragment_hash
            if of_scaffolds:
                scaffold = _scaffold(atoms, members, first, links)
    return scaffold if of_scaffolds else family


@njit(cache=True)
def _link(atoms, bonds, bond_type_ids):
    """Return ``first [N + 1]``, ``hydrogens [N]`` (minus charge, plus one per ionic bond) and ``links [2, 2 M]``:
    neighbours of atom i without ionic bonds, ``links[0, first[i]:first[i + 1]]``, and their bond types ``links[1]``."""
    size = len(atoms)
    first, hydrogens = np.zeros(size + 1, np.int64), np.zeros(size, np.int64)
    links = np.empty((2, 2 * len(bonds)), np.int64)
    for i in range(size):
        if atoms[i, _HYDROGENS] != _UNKNOWN_HYDROGENS:
            hydrogens[i] += atoms[i, _HYDROGENS]
        if atoms[i, _CHARGE] != _UNKNOWN_CHARGE:
            hydrogens[i] -= np.int64(atoms[i, _CHARGE]) - _NO_CHARGE
    for m in range(len(bonds)):
        a, b = bonds[m, 0], bonds[m, 1]
        if _IS_SALT_METAL[atoms[a, _ELEMENT]] or _IS_SALT_METAL[atoms[b, _ELEMENT]]:
            hydrogens[a] += 1
            hydrogens[b] += 1
        else:
            first[a] += 1
            first[b] += 1
    total = np.int64(0)
    for i in range(size + 1):
        total += first[i]
        first[i] = total
    for m in range(len(bonds)):
        a, b = bonds[m, 0], bonds[m, 1]
        if not (_IS_SALT_METAL[atoms[a, _ELEMENT]] or _IS_SALT_METAL[atoms[b, _ELEMENT]]):
            kind = np.int64(bond_type_ids[m]) // IDS_PER_TYPE
            first[a] -= 1
            links[0, first[a]], links[1, first[a]] = b, kind
            first[b] -= 1
            links[0, first[b]], links[1, first[b]] = a, kind
    return first, hydrogens, links


@njit(cache=True)
def _family(atoms, members, first, hydrogens, links):
    total = np.int64(0)
    initial = np.zeros(len(atoms), np.uint64)
    for i in members:
        total += hydrogens[i]
        element = atoms[i, _ELEMENT]
        initial[i] = mix(np.uint64(element + 1) * ODD)
        # An explicit hydrogen with one neighbour counts as implicit; a bridging or isolated one counts as an atom.
        if element == _HYDROGEN and first[i + 1] - first[i] == 1 and atoms[links[0, first[i]], _ELEMENT] != _HYDROGEN:
            total += 1
            initial[i] = np.uint64(0)
    skeleton = _refine_colours(initial, members, first, links, False)
    return mix(skeleton + np.uint64(total) * ODD)


@njit(cache=True)
def _scaffold(atoms, members, first, links):
    core = np.zeros(len(atoms), np.int64)  # bonds of each atom to rings and linkers; 0 outside the scaffold
    for i in members:
        core[i] = first[i + 1] - first[i]
    for start in members:  # remove terminal atoms repeatedly
        i = start
        while core[i] == 1:
            core[i] = 0
            for k in range(first[i], first[i + 1]):
                if core[links[0, k]] > 0:
                    i = links[0, k]
                    core[i] -= 1
                    break
    initial = np.zeros(len(atoms), np.uint64)
    empty = True
    for i in members:
        in_scaffold = core[i] > 0
        for k in range(first[i], first[i + 1]):
            in_scaffold = in_scaffold or (core[links[0, k]] > 0 and links[1, k] == _DOUBLE)
        initial[i] = mix(np.uint64(atoms[i, _ELEMENT] + 1) * ODD) if in_scaffold else np.uint64(0)
        empty = empty and not in_scaffold
    return np.uint64(0) if empty else _refine_colours(initial, members, first, links, True)


@njit(cache=True)
def _refine_colours(initial, members, first, links, with_types):
    """Refine the colours of atoms by those of their neighbours, and optionally bond types, until their number is stable
    (Weisfeiler-Lehman), and hash all colours; colour 0 is ignored."""
    old, new = initial, np.empty_like(initial)
    num_colours, rounds = np.int64(-1), np.int64(0)
    while True:
        for i in members:
            if old[i] == 0:
                new[i] = 0
                continue
            total = np.uint64(0)
            for k in range(first[i], first[i + 1]):
                neighbour = old[links[0, k]]
                if neighbour != 0:
                    total += mix(neighbour + np.uint64(links[1, k] + 1) * MIX1) if with_types else neighbour
            new[i] = mix(old[i] * ODD + total) | np.uint64(1)
        old, new = new, old
        rounds += 1
        if rounds < _SURE_ROUNDS:  # counting costs as much as a round
            continue
        if num_colours == len(members):
            break  # all colours differ, and one more round has encoded the bonds
        ordered, refined = np.sort(old[members]), np.int64(0)
        for k in range(len(ordered)):
            refined += ordered[k] != 0 and (k == 0 or ordered[k] != ordered[k - 1])
        if refined == num_colours:
            break
        num_colours = refined
    total = np.uint64(0)
    for i in members:
        if old[i] != 0:
            total += mix(old[i])
    return mix(total + np.uint64(num_colours))
