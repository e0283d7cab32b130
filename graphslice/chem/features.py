"""How an RDKit molecule becomes arrays: OGB's nine features of an atom and three of a bond, and the bonds themselves.

The integers are those of ``ogb.utils.features`` (OGB 1.3.6, Hu et al. 2020). OGB's own code is not used because it
takes three times as long and fails at unknown stereo labels.

A compiled reader of RDKit's serialised molecules (``MolPickler``) does the same in less time: reading nine features of
every atom through RDKit's Python interface takes three times as long as parsing the SMILES. ``Mol.ToBinary`` returns
all of them in one call, in a format that RDKit keeps readable across releases. Molecules of more than 255 atoms, query
atoms and other extensions, and unknown versions of the format, are left to the caller. From SMILES to graph takes 2.1
times as long as ``MolFromSmiles`` with it and 6.2 times without (128 and 371 us for a molecule of the demo set;
processor time of one core, medians of seven turns; docs/log.md).

NVIDIA's cuik-molmaker was considered instead: it takes 50 to 103 us per molecule where ``MolFromSmiles`` alone takes
46, has one-hot features only, no canonical order and no error messages, and there is no wheel on PyPI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from rdkit import Chem
from rdkit.Chem import Atom, Bond, BondStereo, BondType, ChiralType, HybridizationType, Mol


class Feature(NamedTuple):
    """One feature: the index of a value of RDKit in OGB's list; values that are not listed share the next index."""

    indices: dict[Any, int]
    read: Callable[[Any], Any]  # returns the value of an atom or bond

    @classmethod
    def of(cls, values: Iterable[Any], read: Callable[[Any], Any]) -> Feature:
        return cls({value: index for index, value in enumerate(values)}, read)


#: The features of an atom, in OGB's order; :data:`~graphslice.feature_dims.ATOM_DIMS` has their numbers of indices.
ATOM_FEATURES = {
    "atomic number": Feature.of(range(1, 119), Atom.GetAtomicNum),  # a wildcard has 0
    "chirality": Feature.of(
        (
            ChiralType.CHI_UNSPECIFIED,
            ChiralType.CHI_TETRAHEDRAL_CW,
            ChiralType.CHI_TETRAHEDRAL_CCW,
            ChiralType.CHI_OTHER,
        ),
        Atom.GetChiralTag,
    ),
    "degree": Feature.of(range(11), Atom.GetTotalDegree),  # with all hydrogens
    "formal charge": Feature.of(range(-5, 6), Atom.GetFormalCharge),
    "hydrogens": Feature.of(range(9), Atom.GetTotalNumHs),  # that are no atoms of the graph
    "radical electrons": Feature.of(range(5), Atom.GetNumRadicalElectrons),
    "hybridization": Feature.of(
        (
            HybridizationType.SP,
            HybridizationType.SP2,
            HybridizationType.SP3,
            HybridizationType.SP3D,
            HybridizationType.SP3D2,
        ),
        Atom.GetHybridization,
    ),
    "aromatic": Feature.of((False, True), Atom.GetIsAromatic),
    "in a ring": Feature.of((False, True), Atom.IsInRing),
}

#: The features of a bond, in OGB's order; :data:`~graphslice.feature_dims.BOND_DIMS` has their numbers of indices.
BOND_FEATURES = {
    "type": Feature.of((BondType.SINGLE, BondType.DOUBLE, BondType.TRIPLE, BondType.AROMATIC), Bond.GetBondType),
    # STEREOANY, the last of OGB's list, is not listed, so that it stands for every other stereo too, such as that of
    # atropisomers, at which OGB's code fails.
    "stereo": Feature.of(
        (BondStereo.STEREONONE, BondStereo.STEREOZ, BondStereo.STEREOE, BondStereo.STEREOCIS, BondStereo.STEREOTRANS),
        Bond.GetStereo,
    ),
    "conjugated": Feature.of((False, True), Bond.GetIsConjugated),
}


def molecule_features(mol: Mol) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return atom features ``uint8 [N, 9]``, bonds ``int32 [M, 2]`` (each once) and bond features ``uint8 [M, 3]`` of a
    sanitized molecule, in its own order."""
    atoms, bonds = list(mol.GetAtoms()), list(mol.GetBonds())
    ends = np.array([(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds], np.int32)
    return _features(atoms, ATOM_FEATURES), ends.reshape(-1, 2), _features(bonds, BOND_FEATURES)


def _features(parts: list[Any], features: dict[str, Feature]) -> np.ndarray:
    columns = [[indices.get(value, len(indices)) for value in map(read, parts)] for indices, read in features.values()]
    return np.ascontiguousarray(np.array(columns, np.uint8).T)


#: Supported versions of the format: major * 1000 + minor * 10 + patch.
_FIRST_FORMAT, _LAST_FORMAT = 14_000, 16_999
SLACK = 32  # upper limit of the bytes of an atom or bond
_HEADER = 20  # bytes before the number of atoms: a magic number, a tag, three numbers of the version
_MARK = 0xDEADBEEF
_MOST_ATOMS = 255  # of more atoms, an atom index takes four bytes
_BEGIN_ATOMS, _BEGIN_BONDS, _BEGIN_RINGS, _BEGIN_SYMMETRIC_RINGS, _MAP_NUMBER = 1, 11, 20, 66, 24


def _table(feature: Feature) -> np.ndarray:
    """Map the byte that RDKit writes for each value to the feature: ``uint8 [256]``."""
    table = np.full(256, len(feature.indices), np.uint8)
    for value, index in feature.indices.items():
        table[int(value) & 0xFF] = index
    return table


_ELEMENT, _CHIRALITY, _DEGREE, _CHARGE, _HYDROGENS, _RADICALS, _HYBRIDIZATION, _, _ = map(
    _table, ATOM_FEATURES.values()
)
_BOND_TYPE, _STEREO, _ = map(_table, BOND_FEATURES.values())
# Values of an atom in the order in which they are stored, those that differ from the default: charge, chirality,
# hybridization, explicit hydrogens, explicit valence, implicit hydrogens, and radical electrons.
_ATOM_DEFAULTS = np.array([0, 0, int(Chem.HybridizationType.SP3), 0, 0, 0, 0])
_SINGLE = int(Chem.BondType.SINGLE)


@njit(cache=True, inline="always")
def _int32(data, offset):
    return np.int64(
        np.int32(
            np.uint32(data[offset])
            | np.uint32(data[offset + 1]) << np.uint32(8)
            | np.uint32(data[offset + 2]) << np.uint32(16)
            | np.uint32(data[offset + 3]) << np.uint32(24)
        )
    )


@njit(cache=True, inline="always")
def _unpack_molecule(data, offset, end, atoms, bonds, bond_features):
    """Read one molecule into its rows; return False, which leaves the rows undefined, if it cannot be read."""
    if end - offset < _HEADER + 10 or _int32(data, offset) & 0xFFFFFFFF != _MARK:
        return False
    version = 1000 * _int32(data, offset + 8) + 10 * _int32(data, offset + 12) + _int32(data, offset + 16)
    if not _FIRST_FORMAT <= version <= _LAST_FORMAT:
        return False
    offset += _HEADER
    num_atoms, num_bonds = _int32(data, offset), _int32(data, offset + 4)
    if (
        num_atoms > _MOST_ATOMS
        or num_atoms != len(atoms)
        or num_bonds != len(bonds)
        or data[offset + 9] != _BEGIN_ATOMS
    ):
        return False
    degree = np.zeros(num_atoms, np.int64)
    offset = _read_atoms(data, offset + 10, end, atoms, degree)
    if offset >= 0:
        offset = _read_bonds(data, offset, end, bonds, bond_features, degree)
    if offset < 0:
        return False
    for i in range(num_atoms):
        atoms[i, 2] = _DEGREE[min(degree[i], 255)]
    return _mark_rings(data, offset, end, atoms)


@njit(cache=True)
def _read_atoms(data, offset, end, atoms, degree):
    """Fill the atom features except degree and ring, initialise the degrees with the hydrogens, and return the offset
    of the bonds, or -1 for an unsupported format."""
    values = np.empty(len(_ATOM_DEFAULTS), np.int64)
    for i in range(len(atoms)):
        if offset > end or offset + SLACK > len(data):
            return -1
        number, flags, fields = np.int64(data[offset]), data[offset + 1], _int32(data, offset + 2)
        if flags & 0x96 or fields & ~0x1FE:  # a position, a query, a dummy, a monomer, or an unknown extension
            return -1
        offset += 6
        for k in range(len(values)):
            values[k] = _ATOM_DEFAULTS[k]
            if fields & (2 << k):
                values[k] = data[offset]
                offset += 1
        if fields & 256:  # the isotope
            offset += 4
        if flags & 8:
            if data[offset] != _MAP_NUMBER:
                return -1
            offset += 6 if data[offset + 1] > 127 else 2
        hydrogens = values[3] + (0 if flags & 32 else values[5])
        atoms[i, 0] = _ELEMENT[number]
        atoms[i, 1] = _CHIRALITY[values[1]]
        atoms[i, 3] = _CHARGE[values[0]]
        atoms[i, 4] = _HYDROGENS[min(hydrogens, 255)]
        atoms[i, 5] = _RADICALS[values[6]]
        atoms[i, 6] = _HYBRIDIZATION[values[2]]
        atoms[i, 7] = 1 if flags & 64 else 0
        atoms[i, 8] = 0
        degree[i] = hydrogens
    return offset


@njit(cache=True)
def _read_bonds(data, offset, end, bonds, bond_features, degree):
    """Fill the bonds, add them to the degrees, and return the offset of the rings, or -1 for an unsupported format."""
    if offset >= end or data[offset] != _BEGIN_BONDS:
        return -1
    offset += 1
    for m in range(len(bonds)):
        if offset > end or offset + SLACK > len(data):
            return -1
        begin, finish, flags = np.int64(data[offset]), np.int64(data[offset + 1]), data[offset + 2]
        offset += 3
        if flags & 0x91 or begin >= len(degree) or finish >= len(degree):
            return -1
        bond_type, stereo = _SINGLE, 0
        if flags & 8:
            bond_type = np.int64(data[offset])
            offset += 1
        if flags & 4:  # the direction of a stereo bond
            offset += 1
        if flags & 2:
            stereo = np.int64(data[offset])
            offset += 2 + np.int64(data[offset + 1])
        bonds[m, 0], bonds[m, 1] = begin, finish
        bond_features[m, 0], bond_features[m, 1] = _BOND_TYPE[bond_type], _STEREO[stereo]
        bond_features[m, 2] = 1 if flags & 32 else 0
        degree[begin] += 1
        degree[finish] += 1
    return offset


@njit(cache=True)
def _mark_rings(data, offset, end, atoms):
    """Set the ring feature of the atoms in RDKit's rings; return True if the list of rings was read."""
    if offset + 5 > end or (data[offset] != _BEGIN_RINGS and data[offset] != _BEGIN_SYMMETRIC_RINGS):
        return False
    rings = _int32(data, offset + 1)
    offset += 5
    for _ in range(rings):
        if offset >= end:
            return False
        size = np.int64(data[offset])
        offset += 1
        if offset + size > end:
            return False
        for k in range(offset, offset + size):
            if data[k] >= len(atoms):
                return False
            atoms[data[k], 8] = 1
        offset += size
    return True


@njit(cache=True)
def unpack(data, starts, atom_ptr, bond_ptr, atoms, bonds, bond_features, is_read):
    """Read the molecules ``data[starts[g]:starts[g + 1]]`` (uint8, int64) into their rows; ``is_read [G]``: whether it
    could be read, or is empty. ``SLACK`` more bytes end the data, so that the last one needs no other bounds checks."""
    for g in range(len(starts) - 1):
        is_read[g] = starts[g] == starts[g + 1] or _unpack_molecule(
            data,
            starts[g],
            starts[g + 1],
            atoms[atom_ptr[g] : atom_ptr[g + 1]],
            bonds[bond_ptr[g] : bond_ptr[g + 1]],
            bond_features[bond_ptr[g] : bond_ptr[g + 1]],
        )


def read_binaries(
    binaries: Sequence[bytes],
    atom_ptr: np.ndarray,  # int64 [G + 1], rows of each molecule in the arrays below; bond_ptr likewise
    bond_ptr: np.ndarray,
    atoms: np.ndarray,  # uint8 [A, 9]
    bonds: np.ndarray,  # int32 [M, 2], atoms numbered from 0 within their molecule
    bond_features: np.ndarray,  # uint8 [M, 3]
) -> list[int]:
    """Fill the arrays of molecules, in their own order, from ``Mol.ToBinary(0)`` of each (empty for no molecule), and
    return the rows that could not be read, which are undefined."""
    data = np.frombuffer(b"".join([*binaries, bytes(SLACK)]), np.uint8)
    starts = np.cumsum([0, *map(len, binaries)], dtype=np.int64)
    is_read = np.empty(len(binaries), bool)
    unpack(data, starts, atom_ptr, bond_ptr, atoms, bonds, bond_features, is_read)
    return np.flatnonzero(~is_read).tolist()
