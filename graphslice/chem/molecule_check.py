"""Validation of molecule arrays in one pass, compiled with numba.

Kernels that read molecules do no bounds checks, so all arrays from outside are validated here once, on input.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from graphslice.errors import InputError
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS, NUM_BOND_TYPES

#: Most bonds of an atom, which are counted in a byte.
MAX_DEGREE = 255
#: Most atoms of a molecule with bonds, whose atoms are stored as 16-bit numbers.
MAX_BOND_ATOMS = 65_535

_FINE, _ATOM_ROWS, _BOND_ROWS, _SIZE, _ATOM_VALUE, _BOND_END, _LOOP, _BOND_TYPE, _TWICE, _DEGREE = range(10)
_MEANINGS = {
    _ATOM_ROWS: "atom rows that are out of range",
    _BOND_ROWS: "bond rows that are out of range",
    _SIZE: "{} atoms, more than the limit of {}",
    _ATOM_VALUE: "an atom whose feature {} is {}, outside OGB's values",
    _BOND_END: "a bond to atom {} of {}",
    _LOOP: "a bond of atom {} with itself",
    _BOND_TYPE: "a bond whose features are outside OGB's values",
    _TWICE: "two bonds between atoms {} and {}",
    _DEGREE: "an atom with {} bonds, more than {}",
}
_ARRAYS = (("atoms", np.uint8, len(ATOM_DIMS)), ("bonds", np.int32, 2), ("bond_features", np.uint8, len(BOND_DIMS)))
_LIMITS = np.array(ATOM_DIMS, np.uint8)


def typed_arrays(
    index: int, atoms: np.ndarray, bonds: np.ndarray, bond_features: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Convert the arrays of one molecule to their dtypes: ``uint8 [N, 9]``, ``int32 [M, 2]`` and ``uint8 [M, 3]``.

    Raises:
        InputError: with the ``index`` of the molecule, if a shape is wrong or values are not integers in range.
    """
    arrays = []
    for array, (name, dtype, width) in zip((atoms, bonds, bond_features), _ARRAYS, strict=True):
        if not (type(array) is np.ndarray and array.dtype == dtype and array.ndim == 2 and array.shape[1] == width):
            array = _typed(array, name, dtype, width, f"the molecule at index {index}")
        arrays.append(array)
    if len(arrays[1]) != len(arrays[2]):
        raise InputError(
            f"the molecule at index {index} has {len(arrays[1])} bonds, but features of {len(arrays[2])} bonds"
        )
    return arrays[0], arrays[1], arrays[2]


def _typed(values: object, name: str, dtype: type, width: int, whose: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors on a GPU
        raise InputError(f"{whose} has {name} that are not an array") from None
    array = np.empty((0, width), dtype) if array.size == 0 else array
    if array.ndim != 2 or array.shape[1] != width:
        raise InputError(f"{whose} has {name} of shape {list(array.shape)}, not [rows, {width}]")
    limits = np.iinfo(dtype)
    if array.dtype.kind not in "bui" or (array.size and (array.min() < limits.min or array.max() > limits.max)):
        raise InputError(f"{whose} has {name} that are not integers from {limits.min} to {limits.max}")
    return np.ascontiguousarray(array, dtype)


def molecule_fault(
    atom_ptr: np.ndarray,
    bond_ptr: np.ndarray,
    atoms: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    bond_type_ids: np.ndarray,
    max_atoms: int = MAX_BOND_ATOMS,
) -> tuple[int, str] | None:
    """Find the first molecule that is invalid input for compiled code.

    Args:
        atom_ptr: integer ``[G + 1]``, molecule g has atoms ``atom_ptr[g]:atom_ptr[g + 1]``; not validated yet.
        bond_ptr: the same for bonds.
        atoms: ``uint8 [9 A]``, OGB's features, atom by atom.
        begins, ends: integer ``[M]``, the two atoms of each bond, numbered from 0 within their molecule.
        bond_type_ids: ``uint8 [M]``.
        max_atoms: largest number of atoms of a molecule.

    Returns:
        Index of the molecule and a description of the fault, which completes "the molecule has ..."; None if all
        molecules are valid.
    """
    offsets = [_read_only(ptr, np.int64) for ptr in (atom_ptr, bond_ptr)]
    bonds = [_read_only(begins, np.int32), _read_only(ends, np.int32), _read_only(bond_type_ids, np.uint8)]
    molecule, error, first, second = _first_fault(*offsets, _read_only(atoms, np.uint8), *bonds, max_atoms)
    return None if error == _FINE else (int(molecule), _MEANINGS[error].format(first, second))


def _read_only(array: np.ndarray, dtype: type) -> np.ndarray:
    """Return a contiguous array that is not writable: numba compiles once for arrays of molecules and of files."""
    array = np.ascontiguousarray(array, dtype).view()
    array.flags.writeable = False
    return array


@njit(cache=True, nogil=True)
def _first_fault(atom_ptr, bond_ptr, atoms, begins, ends, bond_type_ids, max_atoms):
    num_atoms, num_bonds = len(atoms) // len(_LIMITS), min(len(begins), len(ends), len(bond_type_ids))
    for g in range(min(len(atom_ptr), len(bond_ptr)) - 1):
        first, last = np.int64(atom_ptr[g]), np.int64(atom_ptr[g + 1])
        if not 0 <= first <= last <= num_atoms:
            return g, _ATOM_ROWS, 0, 0
        if last - first > max_atoms:
            return g, _SIZE, last - first, max_atoms
        begin, end = np.int64(bond_ptr[g]), np.int64(bond_ptr[g + 1])
        if not 0 <= begin <= end <= num_bonds:
            return g, _BOND_ROWS, 0, 0
        fault, one, other = _bond_fault(last - first, begins[begin:end], ends[begin:end], bond_type_ids[begin:end])
        if fault != _FINE:
            return g, fault, one, other
        for a in range(first, last):
            for f in range(len(_LIMITS)):
                if atoms[a * len(_LIMITS) + f] >= _LIMITS[f]:
                    return g, _ATOM_VALUE, f, np.int64(atoms[a * len(_LIMITS) + f])
    return 0, _FINE, 0, 0


@njit(cache=True)
def _bond_fault(size, begins, ends, bond_type_ids):
    """Check the bonds of a molecule of ``size`` atoms; return a fault and its two numbers."""
    previous, ascending = np.int64(-1), True
    for m in range(len(begins)):
        a, b = np.int64(begins[m]), np.int64(ends[m])
        if not 0 <= a < size or not 0 <= b < size:
            return _BOND_END, (b if 0 <= a < size else a), size
        if a == b:
            return _LOOP, a, a
        if bond_type_ids[m] >= NUM_BOND_TYPES:
            return _BOND_TYPE, np.int64(bond_type_ids[m]), NUM_BOND_TYPES
        key = a * size + b
        ascending = ascending and a < b and key > previous
        previous = key
    if not ascending:  # bonds in canonical order are ascending, so that duplicates are impossible
        a, b = _bond_twice(size, begins, ends)
        if a != b:
            return _TWICE, a, b
    if len(begins) > MAX_DEGREE:
        degrees = np.zeros(size, np.int64)
        for m in range(len(begins)):
            degrees[begins[m]] += 1
            degrees[ends[m]] += 1
        for a in range(size):
            if degrees[a] > MAX_DEGREE:
                return _DEGREE, degrees[a], MAX_DEGREE
    return _FINE, np.int64(0), np.int64(0)


@njit(cache=True)
def _bond_twice(size, begins, ends):
    """Find two atoms with a duplicate bond, in either direction; return two equal numbers if there are none."""
    keys = np.empty(len(begins), np.int64)
    for m in range(len(begins)):
        keys[m] = min(begins[m], ends[m]) * size + max(begins[m], ends[m])
    keys.sort()
    for m in range(1, len(keys)):
        if keys[m] == keys[m - 1]:
            return keys[m] // size, keys[m] % size
    return np.int64(0), np.int64(0)
