"""Morgan (circular) fingerprints of molecular graphs, for Tanimoto similarity; compiled with numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.chem.hashes import IDS_PER_TYPE, MIX1, ODD, mix
from graphslice.chem.molecule import MolArrays

#: Bits of a fingerprint.
FINGERPRINT_BITS = 2_048
#: Radius, in bonds, of the largest atom environment.
RADIUS = 2


def morgan_fingerprints(arrays: MolArrays, bits: int = FINGERPRINT_BITS) -> np.ndarray:
    """Compute Morgan fingerprints with radius 2 (ECFP4; Rogers and Hahn 2010) of valid molecules: ``bool [G, bits]``.
    Atoms differ by element, degree, hydrogens, charge and ring membership, bonds by their type. Every environment of
    radius 0, 1 and 2 sets a bit, as by RDKit's ``GetMorganGenerator`` with ``includeRedundantEnvironments``; the bits
    differ."""
    return morgan_counts(arrays, bits) > 0


def morgan_counts(arrays: MolArrays, bits: int = FINGERPRINT_BITS) -> np.ndarray:
    """Count the atom environments of :func:`morgan_fingerprints`: ``uint8 [G, bits]``, at most 255 each."""
    counts = np.zeros((len(arrays), bits), np.uint8)
    atoms, bonds = np.ascontiguousarray(arrays.atoms), np.ascontiguousarray(arrays.bonds)
    _count(arrays.atom_ptr, arrays.bond_ptr, atoms, bonds, arrays.bond_type_ids, counts)
    return counts


@njit(cache=True, nogil=True)
def _count(atom_ptr, bond_ptr, atoms, bonds, bond_type_ids, counts):
    bits = np.uint64(counts.shape[1])
    for g in range(len(atom_ptr) - 1):
        first, size = atom_ptr[g], atom_ptr[g + 1] - atom_ptr[g]
        old, bonded = np.empty(size, np.uint64), np.zeros(size, np.bool_)
        for i in range(size):
            a = first + i
            features = np.uint64(0)
            for f in (0, 2, 3, 4, 8):  # element, degree, charge, hydrogens, in a ring
                features = features << np.uint64(8) | np.uint64(atoms[a, f])
            old[i] = mix(features * ODD)
            counts[g, old[i] % bits] = min(counts[g, old[i] % bits] + 1, 255)
        for _ in range(RADIUS):
            total = np.zeros(size, np.uint64)
            for m in range(bond_ptr[g], bond_ptr[g + 1]):
                a, b = bonds[m, 0], bonds[m, 1]
                kind = np.uint64(bond_type_ids[m] // IDS_PER_TYPE + 1) * MIX1
                total[a] += mix(old[b] + kind)
                total[b] += mix(old[a] + kind)
                bonded[a] = bonded[b] = True
            for i in range(size):
                if bonded[i]:  # an isolated atom has no larger environment
                    old[i] = mix(old[i] * ODD + total[i])
                    counts[g, old[i] % bits] = min(counts[g, old[i] % bits] + 1, 255)
