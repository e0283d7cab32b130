"""RDKit's binary molecules, changed, for the compiled code that reads and renumbers them."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rdkit import Chem

from fuzzing.mutations import mutated_bytes
from graphslice.chem.features import SLACK, unpack
from graphslice.chem.molecule import MolArrays, bond_type_ids, check_molecules, renumber
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS

_SMILES = (
    "C",
    "CCO",
    "C[13C@H](F)[NH2+:300]C/C=C\\c1ccccc1C(=O)[O-]",
    "C12C3C4C1C5C2C3C45",
    "[CH3:128][CH2:255][CH2:999][OH:100000]",
    "[Na+].[Cl-].C1CC1.O",
    "C~C",
    "C1CC1" + "C" * 260 + "/C=C/C",
)
_MARGIN = 64  # rows before and behind those that may be written


def target(folder: Path) -> Callable[[random.Random], None]:
    molecules = [Chem.MolFromSmiles(smiles) for smiles in _SMILES]
    known = [(mol.ToBinary(0), mol.GetNumAtoms(), mol.GetNumBonds()) for mol in molecules]

    def run(draw: random.Random) -> None:
        data, atoms, bonds = (
            known[min(draw.randrange(12), len(known) - 1)] if draw.random() < 0.3 else draw.choice(known)
        )
        data = draw.randbytes(draw.randrange(200)) if draw.random() < 0.02 else mutated_bytes(draw, data)
        if draw.random() < 0.05:
            atoms, bonds = draw.randrange(300), draw.randrange(300)
        arrays = _read(data, atoms, bonds)
        if arrays is not None:
            check_molecules(arrays)
            ranks = np.array(draw.sample(range(atoms), atoms), np.int32)
            if draw.random() < 0.1 and atoms:
                ranks[draw.randrange(atoms)] = draw.choice((-1, -(2**31), atoms, 2**31 - 1))
            ranks = ranks[: draw.randrange(atoms + 1)] if draw.random() < 0.05 else ranks
            renumber(ranks, *(getattr(arrays, name) for name in MolArrays.__slots__))
            check_molecules(arrays)

    return run


def _read(data: bytes, atoms: int, bonds: int) -> MolArrays | None:
    """Return the molecule if it is read; raise AssertionError if memory outside its arrays is written."""
    whole = [
        np.full((rows + 2 * _MARGIN, *more), 77, dtype)
        for rows, more, dtype in ((atoms, (9,), np.uint8), (bonds, (2,), np.int32), (bonds, (3,), np.uint8))
    ]
    is_read = np.zeros(1, bool)
    ptr = np.array([0, atoms]), np.array([0, bonds])
    bytes_of_all = np.frombuffer(data + bytes(SLACK), np.uint8)
    unpack(bytes_of_all, np.array([0, len(data)]), ptr[0] + _MARGIN, ptr[1] + _MARGIN, *whole, is_read)
    for array in whole:
        if (array[:_MARGIN] != 77).any() or (array[len(array) - _MARGIN :] != 77).any():
            raise AssertionError("written outside the molecule")
    if not data or not is_read[0]:
        return None
    atoms, ends, features = (array[_MARGIN : len(array) - _MARGIN].copy() for array in whole)
    arrays = MolArrays(*ptr, atoms, ends, bond_type_ids(features))
    if (atoms >= ATOM_DIMS).any() or (features >= BOND_DIMS).any():
        raise AssertionError("read as features that OGB has not")
    return arrays
