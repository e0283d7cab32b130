"""The compiled reader of RDKit's binary molecules against RDKit's own interface and OGB."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rdkit import Chem, rdBase
from unusual_molecules import EXTENDED, UNUSUAL

from graphslice.chem import features as rdkit_pickle
from graphslice.chem.features import SLACK, molecule_features, unpack
from graphslice.chem.molecule import MolArrays, bond_type_ids, read_smiles
from graphslice.feature_dims import ATOM_DIMS, NUM_BOND_TYPES

# Appended to every molecule below: a fragment with many kinds of features.
TAIL = ".OC(=O)c1ccccc1C/C=C/C[C@H](F)Cl"
QUERIES = {
    "any bond": "C~C", "wildcard": "C[*]", "unsaturated": "CC |u:0|", "ring bonds": "CCO |rb:1:2|",
    "substitutions": "CCO |s:1:*|", "wildcard by label": "CC |$star_e;$|", "many atoms": "C1CC1" + "C" * 280,
}  # fmt: skip
NARROW = "C[13C@H](F)[NH2+:300]C/C=C\\c1ccccc1C(=O)[O-]"


def parse(smiles: str) -> Chem.Mol:
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles)
    assert mol is not None, smiles
    return mol


def empty(mol: Chem.Mol) -> list[np.ndarray]:
    """Return arrays for the atom features, the bonds and the bond features of a molecule."""
    atoms, bonds = mol.GetNumAtoms(), mol.GetNumBonds()
    return [np.zeros((atoms, 9), np.uint8), np.zeros((bonds, 2), np.int32), np.zeros((bonds, 3), np.uint8)]


def as_arrays(mol: Chem.Mol, atoms: np.ndarray, bonds: np.ndarray, features: np.ndarray) -> MolArrays:
    ptr = np.array([0, mol.GetNumAtoms()]), np.array([0, mol.GetNumBonds()])
    return MolArrays(*ptr, atoms, bonds, bond_type_ids(features))


def read_compiled(mol: Chem.Mol, data: bytes | None = None, trailing: bytes = b"") -> tuple[bool, MolArrays]:
    """Run the compiled reader on bytes followed by trailing bytes, and check that it writes within bounds only."""
    data = mol.ToBinary(0) if data is None else data
    margin, found = 64, empty(mol)
    larger = [np.pad(a, [(margin, margin), (0, 0)], constant_values=77) for a in found]
    is_read = np.zeros(1, bool)
    unpack(
        np.frombuffer(data + trailing + bytes(SLACK), np.uint8),
        np.array([0, len(data)]),
        np.array([0, mol.GetNumAtoms()]) + margin,
        np.array([0, mol.GetNumBonds()]) + margin,
        *larger,
        is_read,
    )
    for array in larger:
        assert (array[:margin] == 77).all() and (array[len(array) - margin :] == 77).all()
    return bool(is_read[0]), as_arrays(mol, *(array[margin : len(array) - margin] for array in larger))


def read_with_rdkit(mol: Chem.Mol) -> MolArrays:
    """Read a molecule through RDKit's Python interface: the expected output of the compiled reader."""
    return as_arrays(mol, *molecule_features(mol))


def arrays_of(arrays: MolArrays) -> list[np.ndarray]:
    return [arrays.atoms, arrays.bonds, arrays.bond_type_ids]


def assert_same(found: MolArrays, expected: MolArrays, message: str = "") -> None:
    for found_array, expected_array in zip(arrays_of(found), arrays_of(expected), strict=True):
        np.testing.assert_array_equal(found_array, expected_array, strict=True, err_msg=message)


def with_tail(smiles: str) -> str:
    written, space, extension = smiles.partition(" ")
    return written + TAIL + space + extension


def test_demo_set_matches_rdkit(demo_smiles):
    for smiles in demo_smiles[::5]:
        mol = parse(smiles)
        is_read, found = read_compiled(mol)
        assert is_read, smiles
        assert_same(found, read_with_rdkit(mol), smiles)


@pytest.mark.parametrize("smiles", [*UNUSUAL.values(), *EXTENDED.values()], ids=[*UNUSUAL, *EXTENDED])
def test_plain_molecules_match_rdkit(smiles):
    mol = parse(with_tail(smiles))
    is_read, found = read_compiled(mol)
    assert is_read == (mol.GetNumAtoms() < 256)
    if is_read:
        assert_same(found, read_with_rdkit(mol))


@pytest.mark.parametrize("smiles", QUERIES.values(), ids=QUERIES)
def test_unusual_molecules_are_left_to_rdkit(smiles):
    assert not read_compiled(parse(with_tail(smiles)))[0]


@pytest.mark.parametrize("order", ["input", "canonical"])
def test_python_path_matches_compiled_path(order, demo_smiles, monkeypatch):
    """Also if the compiled reader wrote something before it gave up, and with invalid rows in the batch."""
    smiles = [*UNUSUAL.values(), "C1CC", *EXTENDED.values(), "", *QUERIES.values(), *demo_smiles[::60]]
    arrays, reasons, _ = read_smiles(smiles, atom_order=order)

    def gives_up(data, starts, atom_ptr, bond_ptr, atoms, bonds, bond_types, is_read):
        atoms[:], bonds[:], bond_types[:] = 7, 0, 7
        is_read[:] = np.diff(starts) == 0

    monkeypatch.setattr(rdkit_pickle, "unpack", gives_up)
    again, same_reasons, _ = read_smiles(smiles, atom_order=order)
    assert same_reasons == reasons and None in reasons and "not a valid SMILES: unclosed ring" in reasons
    np.testing.assert_array_equal(again.atom_ptr, arrays.atom_ptr)
    np.testing.assert_array_equal(again.bond_ptr, arrays.bond_ptr)
    assert_same(again, arrays)


def test_other_headers_are_left_to_rdkit():
    mol = parse(NARROW)
    data = mol.ToBinary(0)
    assert read_compiled(mol, data)[0]
    for version in ((0, 0, 0), (13, 99, 0), (17, 0, 0), (-16, 2, 0), (16, -300, 0), (2**31 - 1, 0, 0)):
        assert not read_compiled(mol, data[:8] + struct.pack("<3i", *version) + data[20:])[0]
    for at in (0, 3, 20, 21, 24, 29):
        assert not read_compiled(mol, data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])[0]


@pytest.mark.parametrize("smiles", [NARROW, "C", "CC", "CCO"])
def test_truncated_data_is_left_to_rdkit_or_complete(smiles):
    """Truncation is detected, unless the missing bytes are not needed; trailing bytes are ignored."""
    mol = parse(smiles)
    data, expected = mol.ToBinary(0), read_with_rdkit(mol)
    step = max(1, len(data) // 400)
    for cut in [*range(0, len(data), step), len(data) - 1]:
        is_read, found = read_compiled(mol, data[:cut])
        if cut and is_read:
            assert_same(found, expected, str(cut))
        for trailing in (data[cut:], bytes(64), b"\xff" * 64):
            again, _ = read_compiled(mol, data[:cut], trailing)
            assert again == is_read, cut


@settings(max_examples=300)
@given(
    st.sampled_from([NARROW, "CCO", UNUSUAL["cage"] + TAIL, UNUSUAL["map number of five bytes"] + TAIL]),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_damaged_data_never_gives_invalid_values(smiles, changes, cut, truncate):
    mol = parse(smiles)
    data = bytearray(mol.ToBinary(0))
    for at, byte in changes:
        data[at % len(data)] = byte
    if truncate:
        data = data[: 1 + cut % len(data)]
    is_read, found = read_compiled(mol, bytes(data))
    if is_read:
        assert (found.atoms < ATOM_DIMS).all() and (found.bond_type_ids < NUM_BOND_TYPES).all()
        assert ((found.bonds >= 0) & (found.bonds < mol.GetNumAtoms())).all()


def test_atom_indices_out_of_range_are_left_to_rdkit():
    mol = parse(NARROW)
    data, first, (ring,) = mol.ToBinary(0), mol.GetBondWithIdx(0), mol.GetRingInfo().AtomRings()
    bonds = data.index(bytes([11, first.GetBeginAtomIdx(), first.GetEndAtomIdx()])) + 1
    for at in (bonds, bonds + 1, data.index(bytes([len(ring), *ring])) + 1):
        for number in (mol.GetNumAtoms(), 255):
            assert not read_compiled(mol, data[:at] + bytes([number]) + data[at + 1 :])[0]
