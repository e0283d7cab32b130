"""Validation of molecule arrays before they reach compiled code."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice import InputError, MoleculeError, MolGraph, smiles_to_graph
from graphslice.chem.molecule import (
    MolArrays,
    bond_features,
    bond_type_ids,
    check_graph,
    check_molecules,
    invalid_molecule,
)
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS, NUM_BOND_TYPES


def graph(pairs: list, size: int = 3, **arrays) -> MolGraph:
    bonds = np.array(pairs, np.int32).reshape(-1, 2)
    made = {
        "atoms": np.zeros((size, 9), np.uint8),
        "bonds": bonds,
        "bond_features": np.zeros((len(bonds), 3), np.uint8),
    }
    return MolGraph(**{**made, **arrays})


@pytest.mark.parametrize(
    "bad",
    [
        graph([(0, 1), (1, 3)]),
        graph([(0, 1), (-1, 2)]),
        graph([(0, 1)], 0),
        graph([(0, 1), (2, 2)]),
        graph([(0, 1), (0, 2), (1, 0)]),
        graph([(0, 1), (70, 69), (1, 2), (69, 70)], 71),
        graph([(0, i) for i in range(1, 257)], 257),
        graph([], 65_536),
        graph([], atoms=np.full((3, 9), 2, np.uint8)),
        graph([(0, 1)], bond_features=np.array([[0, 6, 0]])),
        graph([(0, 1)], bond_features=np.array([[256, 0, 0]])),
        graph([], atoms=np.zeros((3, 9))),
        graph([], atoms=np.zeros((3, 8), np.uint8)),
        graph([], bonds=[[0, 1], [1]]),
        graph([], bonds=np.array([[0, 2**32 + 1]])),
        graph([(0, 1)], bond_features=np.zeros((2, 3), np.uint8)),
    ],
)
def test_invalid_graphs_are_rejected(bad):
    with pytest.raises(MoleculeError, match="the graph has "):
        check_graph(bad)
    with pytest.raises(InputError, match="the molecule at index 1 has "):
        check_molecules(MolArrays.from_graphs([smiles_to_graph("C"), bad, bad]))


def test_other_integer_dtypes_are_accepted():
    plain = smiles_to_graph("CC=O")
    wide = MolGraph(plain.atoms.astype(np.int64), plain.bonds.tolist(), plain.bond_features.astype(np.uint16)[::1])
    for name in MolGraph.__slots__:
        np.testing.assert_array_equal(getattr(check_graph(wide), name), getattr(plain, name), strict=True)
    assert check_graph(graph([], bonds=[], bond_features=[])).num_bonds == 0
    assert check_graph(graph([(0, i) for i in range(1, 256)], 256)).num_bonds == 255


def first_invalid(sizes, bonds, kinds, atoms) -> int | None:
    """Find the first invalid molecule in a plain loop."""
    for g, size in enumerate(sizes):
        ends = [tuple(sorted(bond)) for bond in bonds[g]]
        if any(not 0 <= end < size for bond in ends for end in bond) or any(a == b for a, b in ends):
            return g
        if len(set(ends)) < len(ends) or any(kind >= NUM_BOND_TYPES for kind in kinds[g]):
            return g
        if (atoms[g] >= ATOM_DIMS).any():
            return g
    return None


@settings(max_examples=150)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.002, 0.05]))
def test_finds_the_first_invalid_molecule(seed, share):
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 70, 12).tolist()
    bonds = []
    for size in sizes:
        pairs = [(a, b) for a in range(size) for b in range(a + 1, min(size, a + 3)) if random.random() < 0.6]
        if random.random() < 0.5:
            random.shuffle(pairs)
        shift = (random.random((len(pairs), 2)) < share) * random.integers(-70, 70)
        bonds.append((np.array(pairs, np.int64).reshape(-1, 2) + shift).tolist())
    kinds = [(random.integers(0, NUM_BOND_TYPES, len(some)) + 9 * (random.random(len(some)) < share)) for some in bonds]
    atoms = [random.integers(0, ATOM_DIMS, (size, 9)) + (random.random((size, 9)) < share / 9) for size in sizes]
    ends = np.array([bond for some in bonds for bond in some], np.int32).reshape(-1, 2)
    found = invalid_molecule(
        np.cumsum([0, *sizes]),
        np.cumsum([0, *map(len, bonds)]).astype(np.int32),
        np.concatenate(atoms).astype(np.uint8).reshape(-1),
        ends[:, 0],
        np.ascontiguousarray(ends[:, 1]),
        np.concatenate(kinds).astype(np.uint8),
    )
    assert found == first_invalid(sizes, bonds, kinds, atoms)


@pytest.mark.parametrize(
    ("atom_ptr", "bond_ptr", "expected"),
    [
        ([0, 2, 3], [0, 1, 1], None),
        ([0, 2, 4], [0, 1, 1], 1),
        ([0, 2, 1], [0, 1, 1], 1),
        ([-1, 2, 3], [0, 1, 1], 0),
        ([0, 2, 3], [1, 0, 1], 0),
        ([0, 3, 3], [0, 1, 1], 0),  # three atoms, more than two
    ],
)
def test_offsets_are_validated(atom_ptr, bond_ptr, expected):
    ends = np.array([0], np.uint16), np.array([1], np.uint16)
    ptr = np.array(atom_ptr, np.int32), np.array(bond_ptr, np.int32)
    assert invalid_molecule(*ptr, np.zeros(27, np.uint8), *ends, np.zeros(1, np.uint8), 2) == expected


def test_bond_type_ids_cover_ogb_features_only():
    known = np.array(list(np.ndindex(BOND_DIMS)), np.uint8)
    assert bond_type_ids(known).tolist() == list(range(NUM_BOND_TYPES))
    np.testing.assert_array_equal(bond_features(bond_type_ids(known)), known, strict=True)
    assert bond_type_ids(np.array([[5, 0, 0], [0, 6, 0], [0, 0, 2], [255, 255, 255]])).tolist() == [255] * 4
