"""Which molecules are the same: a hash of the exact arrays, of the family, and of the scaffold; compiled with numba.

Equal molecules have equal hashes always; different ones have equal hashes where the words below say so, and else as
often as any two numbers of 64 bits are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from graphslice.chem.molecule import MolArrays
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS

# Columns of OGB's atom features, and what their numbers mean (ogb.utils.features).
_ELEMENT, _CHARGE, _HYDROGENS = 0, 3, 4
_NO_CHARGE, _UNKNOWN_CHARGE, _UNKNOWN_HYDROGENS = 5, ATOM_DIMS[3] - 1, ATOM_DIMS[4] - 1
_HYDROGEN = 0  # as an element
# Which elements are so electropositive that their bonds are those of a salt: Li, Na, K, Rb, Cs, Mg, Ca, Sr, Ba.
_IS_SALT_METAL = np.isin(np.arange(ATOM_DIMS[0]) + 1, [3, 11, 19, 37, 55, 12, 20, 38, 56])
# A bond type id is (type * stereos + stereo) * conjugated + ...; of it only the type is read.
_IDS_PER_TYPE = BOND_DIMS[1] * BOND_DIMS[2]
_DOUBLE = 1
# How many bits each atom feature takes of an atom's word.
_SHIFTS = np.cumsum([0, *(int(size - 1).bit_length() for size in ATOM_DIMS[:-1])]).astype(np.uint64)

# Rounds of colour refinement before the first look whether it goes on; few molecules need less.
_SURE_ROUNDS = 3

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class MoleculeHashes:
    """Two hashes of each of G molecules, ``uint64 [G]``.

    Attributes:
        identity: of atoms, bonds and bond types as they stand: rows with equal ones are the same input of a model.
            Stereochemistry and salts count; isotopes, which OGB's features have not, do not. The order of the bonds
            does not count. The spelling of a SMILES does where its order of atoms was kept (``atom_order="input"``).
        family: of the fragment with the most heavy atoms (of several as large, of that with the largest hash): its
            elements and which atoms are bonded, by colour refinement (Weisfeiler and Lehman 1968), and the hydrogens
            that it has without charges. So the charge states, tautomers and stereoisomers of a molecule share it,
            and its salts with smaller counterions. So do isomers that differ in the places of double bonds alone, and
            the few skeletons that colour refinement cannot tell apart, such as those of decalin and bicyclopentyl.
            Metals of the first two groups count as ions wherever they are written; a written hydrogen atom as one that
            is not written.
    """

    identity: np.ndarray
    family: np.ndarray


def hash_molecules(arrays: MolArrays) -> MoleculeHashes:
    """The hashes of molecules that were checked: those of a store, or by ``check_molecules``."""
    return MoleculeHashes(*_hashes(arrays, False))


def hash_scaffolds(arrays: MolArrays) -> np.ndarray:
    """A hash of the scaffold of each of G molecules, ``uint64 [G]``; they were checked, as for :func:`hash_molecules`.

    That is the rings of the fragment that the family is of, what links them, and the atoms at a double bond to
    these, with the types of all bonds among them (Bemis and Murcko 1996, as RDKit has it, but that charges and
    hydrogens do not count). All molecules without a ring have the one of nothing, 0.
    """
    return _hashes(arrays, True)[1]


def _hashes(arrays: MolArrays, of_scaffolds: bool) -> np.ndarray:
    found = np.zeros((2, len(arrays)), np.uint64)
    atoms, bonds = np.ascontiguousarray(arrays.atoms), np.ascontiguousarray(arrays.bonds)
    _hash_all(arrays.atom_ptr, arrays.bond_ptr, atoms, bonds, arrays.bond_type_ids, of_scaffolds, found)
    return found


@njit(cache=True, nogil=True)
def _hash_all(atom_ptr, bond_ptr, atoms, bonds, bond_type_ids, of_scaffolds, found):
    most_atoms, most_bonds = np.int64(1), np.int64(1)
    for g in range(len(atom_ptr) - 1):
        most_atoms = max(most_atoms, atom_ptr[g + 1] - atom_ptr[g])
        most_bonds = max(most_bonds, bond_ptr[g + 1] - bond_ptr[g])
    # One allocation for all molecules, cut into rows.
    numbers = np.empty((5, most_atoms + 1), np.int64)
    links = np.empty((2, 2 * most_bonds), np.int64)  # neighbours, and the type of the bond to each
    colours = np.empty((3, most_atoms), np.uint64)
    slots = np.zeros(_slots_for(most_atoms), np.uint64)
    for g in range(len(atom_ptr) - 1):
        some_atoms = atoms[atom_ptr[g] : atom_ptr[g + 1]]
        begin, end = bond_ptr[g], bond_ptr[g + 1]
        some_bonds, kinds = bonds[begin:end], bond_type_ids[begin:end]
        if not of_scaffolds:
            found[0, g] = _identity(some_atoms, some_bonds, kinds)
        found[1, g] = _hash_heaviest_fragment(
            some_atoms, some_bonds, kinds, of_scaffolds, numbers, links, colours, slots
        )


@njit(cache=True)
def _mix(x):
    """A permutation of the numbers of 64 bits that depends on every bit (splitmix64, Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def _identity(atoms, bonds, bond_type_ids):
    total = np.uint64(0)
    for i in range(len(atoms)):
        word = np.uint64(0)
        for f in range(len(_SHIFTS)):
            word |= np.uint64(atoms[i, f]) << _SHIFTS[f]
        total += _mix(_mix(word) + np.uint64(i + 1) * _ODD)
    for m in range(len(bonds)):
        low, high = min(bonds[m, 0], bonds[m, 1]), max(bonds[m, 0], bonds[m, 1])
        word = np.uint64(low) << np.uint64(32) | np.uint64(high) << np.uint64(8) | np.uint64(bond_type_ids[m])
        total += _mix(~word * _ODD)
    return _mix(total + np.uint64(len(atoms)))


@njit(cache=True)
def _hash_heaviest_fragment(atoms, bonds, bond_type_ids, of_scaffolds, numbers, links, colours, slots):
    """The hash of the heaviest fragment: its family, or its scaffold."""
    size = len(atoms)
    first, hydrogens, order, queue_of, core = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    _link(atoms, bonds, bond_type_ids, first, hydrogens, links)
    # Fragment after fragment, atoms in the order in which they are found.
    for i in range(size):
        queue_of[i] = -1
    most, found = np.int64(-1), np.int64(0)
    family, scaffold = np.uint64(0), np.uint64(0)
    for root in range(size):
        if queue_of[root] >= 0:
            continue
        begin = found
        order[found], queue_of[root] = root, root
        found += 1
        at, heavy = begin, np.int64(0)
        while at < found:
            i = order[at]
            heavy += atoms[i, _ELEMENT] != _HYDROGEN and not _IS_SALT_METAL[atoms[i, _ELEMENT]]
            for k in range(first[i], first[i + 1]):
                j = links[0, k]
                if queue_of[j] < 0:
                    order[found], queue_of[j] = j, root
                    found += 1
            at += 1
        if heavy < most:
            continue
        members = order[begin:found]
        now = _family(atoms, members, first, hydrogens, links, colours, slots)
        if heavy > most or now > family:
            most, family = heavy, now
            if of_scaffolds:
                scaffold = _scaffold(atoms, members, first, links, core, colours, slots)
    return scaffold if of_scaffolds else family


@njit(cache=True)
def _link(atoms, bonds, bond_type_ids, first, hydrogens, links):
    """The neighbours of each atom, ``links[0, first[i]:first[i + 1]]``, but for those at a bond of a salt.

    ``hydrogens``: of each atom, less its charge; one more for each bond of a salt.
    """
    size = len(atoms)
    for i in range(size):
        first[i] = 0
        hydrogens[i] = 0
        if atoms[i, _HYDROGENS] != _UNKNOWN_HYDROGENS:
            hydrogens[i] += atoms[i, _HYDROGENS]
        if atoms[i, _CHARGE] != _UNKNOWN_CHARGE:
            hydrogens[i] -= np.int64(atoms[i, _CHARGE]) - _NO_CHARGE
    first[size] = 0
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
            kind = np.int64(bond_type_ids[m]) // _IDS_PER_TYPE
            first[a] -= 1
            links[0, first[a]], links[1, first[a]] = b, kind
            first[b] -= 1
            links[0, first[b]], links[1, first[b]] = a, kind


@njit(cache=True)
def _family(atoms, members, first, hydrogens, links, colours, slots):
    total = np.int64(0)
    some = colours[0]
    for i in members:
        total += hydrogens[i]
        element = atoms[i, _ELEMENT]
        some[i] = _mix(np.uint64(element + 1) * _ODD)
        # A hydrogen atom at one other atom is one of its hydrogens; one between two, or on its own, is an atom.
        if element == _HYDROGEN and first[i + 1] - first[i] == 1 and atoms[links[0, first[i]], _ELEMENT] != _HYDROGEN:
            total += 1
            some[i] = np.uint64(0)
    skeleton = _refine_colours(members, first, links, colours, slots, False)
    return _mix(skeleton + np.uint64(total) * _ODD)


@njit(cache=True)
def _scaffold(atoms, members, first, links, core, colours, slots):
    """``core``: scratch; becomes how many bonds to the rings and linkers an atom of them has, 0 for the others."""
    for i in members:
        core[i] = first[i + 1] - first[i]
    for start in members:  # take off ends, and what becomes an end by it
        i = start
        while core[i] == 1:
            core[i] = 0
            for k in range(first[i], first[i + 1]):
                if core[links[0, k]] > 0:
                    i = links[0, k]
                    core[i] -= 1
                    break
    some = colours[0]
    empty = True
    for i in members:
        kept = core[i] > 0
        for k in range(first[i], first[i + 1]):
            kept = kept or (core[links[0, k]] > 0 and links[1, k] == _DOUBLE)
        some[i] = _mix(np.uint64(atoms[i, _ELEMENT] + 1) * _ODD) if kept else np.uint64(0)
        empty = empty and not kept
    return np.uint64(0) if empty else _refine_colours(members, first, links, colours, slots, True)


@njit(cache=True)
def _refine_colours(members, first, links, colours, slots, with_types):
    """Colour refinement of the atoms whose colour is not 0, until it parts no more of them; a hash of all colours.

    An atom's new colour is made of its colour and those of its neighbours, and of the types of the bonds if asked.
    """
    old, new = colours[0], colours[1]
    parts, rounds = np.int64(-1), np.int64(0)
    while True:
        for i in members:
            if old[i] == 0:
                new[i] = 0
                continue
            total = np.uint64(0)
            for k in range(first[i], first[i + 1]):
                neighbour = old[links[0, k]]
                if neighbour != 0:
                    total += _mix(neighbour + np.uint64(links[1, k] + 1) * _MIX1) if with_types else neighbour
            new[i] = _mix(old[i] * _ODD + total) | np.uint64(1)
        old, new = new, old
        rounds += 1
        if rounds < _SURE_ROUNDS:  # counting costs as much as a round
            continue
        if parts == len(members):
            break  # all differ, and a round more has told who is bonded to whom
        refined = _count_distinct(members, old, slots)
        if refined == parts:
            break
        parts = refined
    total = np.uint64(0)
    for i in members:
        if old[i] != 0:
            total += _mix(old[i])
    return _mix(total + np.uint64(parts))


@njit(cache=True)
def _slots_for(size):
    slots = 16
    while slots < 2 * size:
        slots *= 2
    return slots


@njit(cache=True)
def _count_distinct(members, colours, slots):
    """How many different colours there are beside 0: a table with open addressing, as large as these atoms need."""
    mask = _slots_for(len(members)) - 1
    for k in range(mask + 1):
        slots[k] = 0
    found = 0
    for i in members:
        if colours[i] != 0:
            k = np.int64(colours[i] >> np.uint64(8)) & mask
            while slots[k] != 0 and slots[k] != colours[i]:
                k = (k + 1) & mask
            if slots[k] == 0:
                slots[k] = colours[i]
                found += 1
    return found
