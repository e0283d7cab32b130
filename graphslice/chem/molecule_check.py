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
    limits = np.iinfo(dtype)
    is_shaped = array.dtype.kind in "bui" and array.ndim == 2 and array.shape[1] == width
    if not is_shaped or (array.size and (array.min() < limits.min or array.max() > limits.max)):
        raise InputError(f"{whose} has {name} that are not integers from {limits.min} to {limits.max}, [rows, {width}]")
    return np.ascontiguousarray(array, dtype)


def invalid_molecule(
    atom_ptr: np.ndarray,
    bond_ptr: np.ndarray,
    atoms: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    bond_type_ids: np.ndarray,
    max_atoms: int = MAX_BOND_ATOMS,
) -> int | None:
    """Find the first molecule that is invalid input for compiled code.

    Args:
        atom_ptr: integer ``[G + 1]``, molecule g has atoms ``atom_ptr[g]:atom_ptr[g + 1]``; not validated yet.
        bond_ptr: the same for bonds.
        atoms: ``uint8 [9 A]``, OGB's features, atom by atom.
        begins, ends: integer ``[M]``, the two atoms of each bond, numbered from 0 within their molecule.
        bond_type_ids: ``uint8 [M]``.
        max_atoms: largest number of atoms of a molecule.

    Returns:
        Index of the molecule; None if all are valid.
    """
    offsets = [_read_only(ptr, np.int64) for ptr in (atom_ptr, bond_ptr)]
    bonds = [_read_only(begins, np.int32), _read_only(ends, np.int32), _read_only(bond_type_ids, np.uint8)]
    found = _first_invalid(*offsets, _read_only(atoms, np.uint8), *bonds, max_atoms)
    return None if found < 0 else int(found)


def _read_only(array: np.ndarray, dtype: type) -> np.ndarray:
    """Return a contiguous array that is not writable: numba compiles once for arrays of molecules and of files."""
    array = np.ascontiguousarray(array, dtype).view()
    array.flags.writeable = False
    return array


@njit(cache=True, nogil=True)
def _first_invalid(atom_ptr, bond_ptr, atoms, begins, ends, bond_type_ids, max_atoms):
    num_atoms, num_bonds = len(atoms) // len(_LIMITS), min(len(begins), len(ends), len(bond_type_ids))
    for g in range(min(len(atom_ptr), len(bond_ptr)) - 1):
        first, last, begin, end = atom_ptr[g], atom_ptr[g + 1], bond_ptr[g], bond_ptr[g + 1]
        if not (0 <= first <= last <= num_atoms and last - first <= max_atoms and 0 <= begin <= end <= num_bonds):
            return g
        for i in range(first * len(_LIMITS), last * len(_LIMITS)):
            if atoms[i] >= _LIMITS[i % len(_LIMITS)]:
                return g
        size, previous, ascending = last - first, np.int64(-1), True
        for m in range(begin, end):
            a, b = np.int64(begins[m]), np.int64(ends[m])
            if not (0 <= a < size and 0 <= b < size) or a == b or bond_type_ids[m] >= NUM_BOND_TYPES:
                return g
            ascending = ascending and a < b and a * size + b > previous
            previous = a * size + b
        # Bonds in canonical order are ascending, so that duplicates are impossible.
        if (not ascending or end - begin > MAX_DEGREE) and _is_repeated(size, begins[begin:end], ends[begin:end]):
            return g
    return -1


@njit(cache=True)
def _is_repeated(size, begins, ends):
    """True if two atoms have two bonds, in either direction, or an atom has more than MAX_DEGREE bonds."""
    keys, degrees = np.empty(len(begins), np.int64), np.zeros(size, np.int64)
    for m in range(len(begins)):
        keys[m] = min(begins[m], ends[m]) * size + max(begins[m], ends[m])
        degrees[begins[m]] += 1
        degrees[ends[m]] += 1
    keys.sort()
    return degrees.max() > MAX_DEGREE or (keys[1:] == keys[:-1]).any()
