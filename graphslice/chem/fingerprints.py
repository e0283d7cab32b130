"""Morgan fingerprints of molecules that are graphs already, compiled with numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.chem.molecule import MolArrays
from graphslice.feature_dims import BOND_DIMS

#: Bits of a fingerprint.
FINGERPRINT_BITS = 2_048
#: Bonds from an atom to the border of the largest surroundings that a fingerprint reads.
RADIUS = 2

_IDS_PER_TYPE = BOND_DIMS[1] * BOND_DIMS[2]
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def morgan_fingerprints(arrays: MolArrays, bits: int = FINGERPRINT_BITS) -> np.ndarray:
    """``bool [G, bits]``: a bit for all surroundings of an atom up to two bonds away (Rogers and Hahn 2010).

    An atom is its element, bonds, hydrogens, charge and whether it is in a ring; a bond is its type. Each number of
    bonds sets its bit, as RDKit's ``GetMorganGenerator(radius=2, includeRedundantEnvironments=True)`` does: the bits
    are others than RDKit's, the surroundings that they stand for the same, but for isotopes, which OGB has not.

    Args:
        arrays: G molecules that were checked: those of a store, or by ``chem.molecule.check_molecules``.
        bits: on which the surroundings are spread; at least 1.
    """
    found = np.zeros((len(arrays), bits), np.bool_)
    atoms, bonds = np.ascontiguousarray(arrays.atoms), np.ascontiguousarray(arrays.bonds)
    _set_bits(arrays.atom_ptr, arrays.bond_ptr, atoms, bonds, arrays.bond_type_ids, found)
    return found


@njit(cache=True, nogil=True)
def _set_bits(atom_ptr, bond_ptr, atoms, bonds, bond_type_ids, found):
    most_atoms = np.int64(1)
    for g in range(len(atom_ptr) - 1):
        most_atoms = max(most_atoms, atom_ptr[g + 1] - atom_ptr[g])
    old, total = np.empty(most_atoms, np.uint64), np.empty(most_atoms, np.uint64)
    bonded = np.empty(most_atoms, np.bool_)
    bits = np.uint64(found.shape[1])
    for g in range(len(atom_ptr) - 1):
        first, size = atom_ptr[g], atom_ptr[g + 1] - atom_ptr[g]
        for i in range(size):
            a = first + i
            word = np.uint64(0)
            for f in (0, 2, 3, 4, 8):  # element, degree, charge, hydrogens, in a ring
                word = word << np.uint64(8) | np.uint64(atoms[a, f])
            old[i] = _mix(word * _ODD)
            found[g, np.int64(old[i] % bits)] = True
            bonded[i] = False
        for _ in range(RADIUS):
            for i in range(size):
                total[i] = np.uint64(0)
            for m in range(bond_ptr[g], bond_ptr[g + 1]):
                a, b = bonds[m, 0], bonds[m, 1]
                kind = np.uint64(bond_type_ids[m] // _IDS_PER_TYPE + 1) * _MIX1
                total[a] += _mix(old[b] + kind)
                total[b] += _mix(old[a] + kind)
                bonded[a] = bonded[b] = True
            for i in range(size):
                if bonded[i]:  # an atom on its own has no larger surroundings
                    old[i] = _mix(old[i] * _ODD + total[i])
                    found[g, np.int64(old[i] % bits)] = True


@njit(cache=True)
def _mix(x):
    """As in :mod:`graphslice.chem.molecule_hash`."""
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))
