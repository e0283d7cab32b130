"""OGB's features read from RDKit's serialised molecules by compiled code.

Asking RDKit for nine features of every atom in Python costs three times what parsing the SMILES
costs. ``Mol.ToBinary`` hands all of them over in one call, in a format that RDKit keeps readable
from release to release (``MolPickler``). What is outside the plain molecules of SMILES, such as
query atoms, and any format that is not known here, is left to the caller.

NVIDIA's cuik-molmaker was weighed for this: 50 to 103 us a molecule where ``MolFromSmiles`` alone
takes 46, one-hot features only, no canonical order, no reason for a refusal, and no wheel on PyPI.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from rdkit import Chem

from graphslice.feature_dims import BOND_DIMS

#: What :func:`unpack` says of a molecule.
READ, UNKNOWN = 0, 1

#: Versions of the format that are known: major * 1000 + minor * 10 + patch.
_FIRST_FORMAT, _LAST_FORMAT = 14_000, 16_999
SLACK = _MARGIN = 32  # no atom or bond takes more bytes
_HEADER = 20  # bytes before the number of atoms: a mark, a tag, three numbers of the version
_MARK = 0xDEADBEEF
_BEGIN_ATOMS, _BEGIN_BONDS, _BEGIN_RINGS, _BEGIN_SYMMETRIC_RINGS, _MAP_NUMBER = 1, 11, 20, 66, 24


def _table(kinds, other: int) -> np.ndarray:
    """Feature value by RDKit's number of a kind; ``other`` for all that are not listed."""
    table = np.full(256, other, np.uint8)
    for value, kind in enumerate(kinds):
        table[int(kind)] = value
    return table


# OGB's lists, in its order; what is not listed comes last.
CHIRALITY = _table(
    (
        Chem.ChiralType.CHI_UNSPECIFIED,
        Chem.ChiralType.CHI_TETRAHEDRAL_CW,
        Chem.ChiralType.CHI_TETRAHEDRAL_CCW,
        Chem.ChiralType.CHI_OTHER,
    ),
    4,
)
HYBRIDIZATION = _table(
    (
        Chem.HybridizationType.SP,
        Chem.HybridizationType.SP2,
        Chem.HybridizationType.SP3,
        Chem.HybridizationType.SP3D,
        Chem.HybridizationType.SP3D2,
    ),
    5,
)
BOND_TYPE = _table(
    (Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE, Chem.BondType.AROMATIC),
    4,
)
# OGB stops at atropisomers; a bond whose stereo has no label of its own is "some stereo".
BOND_STEREO = _table(
    (
        Chem.BondStereo.STEREONONE,
        Chem.BondStereo.STEREOZ,
        Chem.BondStereo.STEREOE,
        Chem.BondStereo.STEREOCIS,
        Chem.BondStereo.STEREOTRANS,
        Chem.BondStereo.STEREOANY,
    ),
    5,
)
_SP3 = int(Chem.HybridizationType.SP3)
_SINGLE = int(Chem.BondType.SINGLE)
_STEREOS, _CONJUGATIONS = BOND_DIMS[1], BOND_DIMS[2]


@njit(cache=True, inline="always")
def _int32(data, at):
    return np.int64(
        np.int32(
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        )
    )


@njit(cache=True, inline="always")
def _index(data, at, wide):
    """The number of an atom, which takes one byte or four."""
    return _int32(data, at) if wide == 4 else np.int64(data[at])


@njit(cache=True, inline="always")
def _signed(byte):
    return np.int64(byte) - (256 if byte > 127 else 0)


@njit(cache=True)
def _unpack_one(data, at, end, atoms, bonds, words):
    """One molecule into its rows; UNKNOWN leaves them in any state."""
    if end - at < _HEADER + 10 or _int32(data, at) & 0xFFFFFFFF != _MARK:
        return UNKNOWN
    version = 1000 * _int32(data, at + 8) + 10 * _int32(data, at + 12) + _int32(data, at + 16)
    if not _FIRST_FORMAT <= version <= _LAST_FORMAT:
        return UNKNOWN
    at += _HEADER
    num_atoms, num_bonds = _int32(data, at), _int32(data, at + 4)
    wide = 4 if num_atoms > 255 else 1  # bytes of an atom's number
    if num_atoms != len(atoms) or num_bonds != len(bonds) or data[at + 9] != _BEGIN_ATOMS:
        return UNKNOWN
    degree = np.zeros(num_atoms, np.int64)
    at = _read_atoms(data, at + 10, end, atoms, degree)
    if at >= 0:
        at = _read_bonds(data, at, end, wide, bonds, words, degree)
    if at < 0:
        return UNKNOWN
    for i in range(num_atoms):
        atoms[i, 2] = min(degree[i], 11)
    return READ if _mark_rings(data, at, end, wide, atoms) else UNKNOWN


@njit(cache=True)
def _read_atoms(data, at, end, atoms, degree):
    """Fill the features of the atoms but for degree and ring, and begin the degrees with the hydrogens.

    Returns where the bonds begin; -1 for what is not known.
    """
    for i in range(len(atoms)):
        if at > end or at + _MARGIN > len(data):
            return -1
        number, flags, given = np.int64(data[at]), data[at + 1], _int32(data, at + 2)
        if flags & 0x96 or given & ~0x1FE:  # a position, a query, a dummy, a monomer; or something new
            return -1
        at += 6
        charge, tag, hybridization, explicit, implicit, radicals = 0, 0, _SP3, 0, 0, 0
        if given & 2:
            charge = _signed(data[at])
            at += 1
        if given & 4:
            tag = np.int64(data[at])
            at += 1
        if given & 8:
            hybridization = np.int64(data[at])
            at += 1
        if given & 16:
            explicit = np.int64(data[at])
            at += 1
        if given & 32:  # the valence of the written bonds
            at += 1
        if given & 64:
            implicit = np.int64(data[at])
            at += 1
        if given & 128:
            radicals = np.int64(data[at])
            at += 1
        if given & 256:  # the isotope
            at += 4
        if flags & 8:
            if data[at] != _MAP_NUMBER:
                return -1
            at += 6 if data[at + 1] > 127 else 2
        hydrogens = explicit + (0 if flags & 32 else implicit)
        atoms[i, 0] = number - 1 if 1 <= number <= 118 else 118
        atoms[i, 1] = CHIRALITY[tag]
        atoms[i, 3] = charge + 5 if -5 <= charge <= 5 else 11
        atoms[i, 4] = min(hydrogens, 9)
        atoms[i, 5] = min(radicals, 5)
        atoms[i, 6] = HYBRIDIZATION[hybridization]
        atoms[i, 7] = 1 if flags & 64 else 0
        atoms[i, 8] = 0
        degree[i] = hydrogens
    return at


@njit(cache=True)
def _read_bonds(data, at, end, wide, bonds, words, degree):
    """Fill the bonds and count them in the degrees; returns where the rings begin, -1 for what is not known."""
    if at >= end or data[at] != _BEGIN_BONDS:
        return -1
    at += 1
    for m in range(len(bonds)):
        if at > end or at + _MARGIN > len(data):
            return -1
        begin = _index(data, at, wide)
        finish = _index(data, at + wide, wide)
        at += 2 * wide
        flags = data[at]
        at += 1
        if flags & 0x91 or not (0 <= begin < len(degree) and 0 <= finish < len(degree)):
            return -1
        kind, stereo = _SINGLE, 0
        if flags & 8:
            kind = np.int64(data[at])
            at += 1
        if flags & 4:  # the direction of a stereo bond
            at += 1
        if flags & 2:
            stereo = np.int64(data[at])
            at += 2 + wide * np.int64(data[at + 1])
        bonds[m, 0], bonds[m, 1] = begin, finish
        conjugated = 1 if flags & 32 else 0
        words[m] = (BOND_TYPE[kind] * _STEREOS + BOND_STEREO[stereo]) * _CONJUGATIONS + conjugated
        degree[begin] += 1
        degree[finish] += 1
    return at


@njit(cache=True)
def _mark_rings(data, at, end, wide, atoms):
    """Set the last feature of the atoms of RDKit's rings; whether there was such a list."""
    if at + 5 > end or (data[at] != _BEGIN_RINGS and data[at] != _BEGIN_SYMMETRIC_RINGS):
        return False
    rings = _int32(data, at + 1)
    at += 5
    for _ in range(rings):
        if at + wide > end:
            return False
        size = _index(data, at, wide)
        at += wide
        if size < 0 or at + size * wide > end:
            return False
        for _ in range(size):
            atom = _index(data, at, wide)
            if not 0 <= atom < len(atoms):
                return False
            atoms[atom, 8] = 1
            at += wide
    return True


@njit(cache=True)
def unpack(data, starts, atom_ptr, bond_ptr, atoms, bonds, words, status):
    """Read molecules in their input order.

    Args:
        data: ``uint8 [D]``, what ``Mol.ToBinary`` gave for G molecules, one behind another, and
            ``SLACK`` bytes more, so that the last ones need no closer look at where they end.
        starts: ``int64 [G + 1]``, where each begins.
        atom_ptr, bond_ptr: ``int64 [G + 1]``, which rows of the arrays below are whose.
        atoms: ``uint8 [A, 9]``, filled.
        bonds: ``int32 [M, 2]``, filled; atoms numbered from 0 within their molecule.
        words: ``uint8 [M]``, filled with bond words (see :mod:`graphslice.feature_dims`).
        status: ``uint8 [G]``, filled with ``READ`` or ``UNKNOWN``.
    """
    for g in range(len(starts) - 1):
        if starts[g] == starts[g + 1]:  # there is no molecule
            continue
        status[g] = _unpack_one(
            data,
            starts[g],
            starts[g + 1],
            atoms[atom_ptr[g] : atom_ptr[g + 1]],
            bonds[bond_ptr[g] : bond_ptr[g + 1]],
            words[bond_ptr[g] : bond_ptr[g + 1]],
        )
