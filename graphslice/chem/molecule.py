"""Molecular graphs (:class:`MolGraph`) from SMILES, with exactly the features of OGB (``features.py``).

Kernels that read molecules do no bounds checks, so all arrays from outside are validated here once, on input. Atoms are
renumbered, such as to canonical order, by compiled code; the atoms and bonds of a SMILES are mapped to the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit
from rdkit import Chem
from rdkit.Chem import ChiralType

from graphslice.chem.features import ATOM_FEATURES, molecule_features, read_binaries
from graphslice.chem.parse import (
    MAX_ATOMS,
    MoleculeError,
    canonical_ranks,
    graph_atom_indices,
    normalize_stereo,
    parse_molecule,
    rdkit_messages_blocked,
)
from graphslice.chem.workers import Workers
from graphslice.config import ATOM, MOLECULE
from graphslice.errors import InputError, check_choice
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS, NUM_BOND_TYPES

if TYPE_CHECKING:
    from torch_geometric.data import Data

# The three features of every bond type id.
_BOND_FEATURES = np.array(list(np.ndindex(BOND_DIMS)), dtype=np.uint8)


@dataclass(frozen=True, eq=False, slots=True)
class MolGraph:
    """Molecular graph with OGB's features: N atoms and M bonds; hydrogens only if the SMILES writes them as atoms.

    Attributes:
        atoms: ``uint8 [N, 9]``, OGB's atom features (see :data:`~graphslice.feature_dims.ATOM_DIMS`).
        bonds: ``int32 [M, 2]``, the two atoms of each bond, each bond once.
        bond_features: ``uint8 [M, 3]``, OGB's bond features (see :data:`~graphslice.feature_dims.BOND_DIMS`).
    """

    atoms: np.ndarray
    bonds: np.ndarray
    bond_features: np.ndarray

    @property
    def num_atoms(self) -> int:
        return len(self.atoms)

    @property
    def num_bonds(self) -> int:
        return len(self.bonds)

    def to_ogb(self) -> dict[str, Any]:
        """Return the dictionary of ``ogb.utils.smiles2graph``: int64 arrays, every bond in both directions."""
        directed = np.stack([self.bonds, self.bonds[:, ::-1]], axis=1).reshape(-1, 2)
        return {
            "edge_index": np.ascontiguousarray(directed.T.astype(np.int64)),
            "edge_feat": np.repeat(self.bond_features, 2, axis=0).astype(np.int64),
            "node_feat": self.atoms.astype(np.int64),
            "num_nodes": self.num_atoms,
        }

    def to_pyg(self) -> Data:
        """Convert to PyG's ``Data``: ``x`` int64 [N, 9], ``edge_index`` int64 [2, 2M], ``edge_attr`` int64 [2M, 3]."""
        import torch  # imported here, since the rest of the chemistry needs neither torch nor PyG
        from torch_geometric.data import Data

        ogb = self.to_ogb()
        return Data(
            x=torch.from_numpy(ogb["node_feat"]),
            edge_index=torch.from_numpy(ogb["edge_index"]),
            edge_attr=torch.from_numpy(ogb["edge_feat"]),
            num_nodes=ogb["num_nodes"],
        )


#: Graph without atoms, in place of an invalid molecule.
EMPTY_GRAPH = MolGraph(np.empty((0, len(ATOM_DIMS)), np.uint8), np.empty((0, 2), np.int32), np.empty((0, 3), np.uint8))


@dataclass(frozen=True, eq=False, slots=True)
class MolArrays:
    """G molecules in concatenated arrays, the input of compiled code."""

    atom_ptr: np.ndarray  # int64 [G + 1], molecule g has atoms atom_ptr[g]:atom_ptr[g + 1]; none if invalid
    bond_ptr: np.ndarray  # int64 [G + 1], the same for bonds
    atoms: np.ndarray  # uint8 [A, 9], OGB's atom features
    bonds: np.ndarray  # int32 [M, 2], atoms numbered from 0 within their molecule
    bond_type_ids: np.ndarray  # uint8 [M], the three features of each bond as one number (see bond_type_ids)

    def __len__(self) -> int:
        return len(self.atom_ptr) - 1

    def __getitem__(self, rows: slice) -> MolArrays:
        """Return consecutive molecules; shares memory where possible."""
        begin, end, _ = rows.indices(len(self))
        atoms = slice(self.atom_ptr[begin], self.atom_ptr[end])
        bonds = slice(self.bond_ptr[begin], self.bond_ptr[end])
        return MolArrays(
            self.atom_ptr[begin : end + 1] - atoms.start,
            self.bond_ptr[begin : end + 1] - bonds.start,
            self.atoms[atoms],
            self.bonds[bonds],
            self.bond_type_ids[bonds],
        )

    @classmethod
    def join(cls, parts: Sequence[MolArrays]) -> MolArrays:
        """Concatenate molecules, in order."""

        def pointers(part_pointers: list[np.ndarray]) -> np.ndarray:
            return np.cumsum(np.concatenate([[0], *map(np.diff, part_pointers)]), dtype=np.int64)

        parts = [cls.from_graphs([]), *parts]
        return cls(
            pointers([part.atom_ptr for part in parts]),
            pointers([part.bond_ptr for part in parts]),
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("atoms", "bonds", "bond_type_ids")),
        )

    @classmethod
    def from_graphs(cls, graphs: Sequence[MolGraph]) -> MolArrays:
        """Copy molecules into arrays; raises InputError if a shape is wrong or values are not integers in range."""
        parts = [typed_arrays(i, g.atoms, g.bonds, g.bond_features) for i, g in enumerate([EMPTY_GRAPH, *graphs], -1)]
        atoms, bonds, features = zip(*parts, strict=True)
        return cls(
            np.cumsum([*map(len, atoms)], dtype=np.int64),
            np.cumsum([*map(len, bonds)], dtype=np.int64),
            np.concatenate(atoms),
            np.concatenate(bonds),
            bond_type_ids(np.concatenate(features)),
        )

    def atom_bond_counts(self, level: str) -> np.ndarray:
        """Return the number of atoms (or bonds) of each molecule, ``int64 [G]``; -1 for invalid molecules."""
        atoms = np.diff(self.atom_ptr)
        return np.where(atoms > 0, atoms if level == ATOM else np.diff(self.bond_ptr), -1)

    def graph(self, index: int) -> MolGraph:
        """Return one molecule; shares memory where possible."""
        one = self[index : index + 1]
        return MolGraph(one.atoms, one.bonds, bond_features(one.bond_type_ids))


def bond_type_ids(features: np.ndarray) -> np.ndarray:
    """Encode the three features of each bond as one number below ``NUM_BOND_TYPES``: ``[M, 3]`` to ``uint8 [M]``;
    features outside OGB's values give 255, which :func:`check_molecules` rejects."""
    _, num_stereos, num_conjugated = BOND_DIMS
    bond_type, stereo, conjugated = features.astype(np.uint8).T
    numbers = (bond_type * num_stereos + stereo) * num_conjugated + conjugated
    known = (bond_type < BOND_DIMS[0]) & (stereo < num_stereos) & (conjugated < num_conjugated)
    return np.where(known, numbers, np.uint8(255))


def bond_features(type_ids: np.ndarray) -> np.ndarray:
    """Decode bond type ids to features ``uint8 [M, 3]``: the inverse of :func:`bond_type_ids`."""
    return _BOND_FEATURES[type_ids]


def check_molecules(arrays: MolArrays) -> None:
    """Raise :class:`InputError` for the first molecule that is invalid input for compiled code, with its index."""
    begins, ends = arrays.bonds.T
    atoms = arrays.atoms.reshape(-1)
    index = invalid_molecule(arrays.atom_ptr, arrays.bond_ptr, atoms, begins, ends, arrays.bond_type_ids)
    if index is not None:
        raise InputError(
            f"the molecule at index {index} has atoms or bonds that are out of range, repeated or too many"
        )


def check_graph(graph: MolGraph) -> MolGraph:
    """Return a graph from outside in the dtypes of :class:`MolGraph`; raises :class:`MoleculeError` for a wrong shape,
    a bond to a missing atom, a self-loop, a duplicate bond, or values outside OGB's."""
    try:
        check_molecules(arrays := MolArrays.from_graphs([graph]))
    except InputError as error:
        raise MoleculeError(str(error).replace("molecule at index 0", "graph")) from None
    return arrays.graph(0)


def smiles_to_graph(smiles: str, *, atom_order: str = "canonical", max_atoms: int = MAX_ATOMS) -> MolGraph:
    """Parse a SMILES into a :class:`MolGraph`.

    Args:
        smiles: any SMILES that RDKit can parse, including salts, ions, isotopes, stereo and explicit hydrogens.
        atom_order: ``"canonical"`` (canonical order) numbers the atoms by RDKit's canonical ranking, so that every
            SMILES of a molecule gives the same arrays. The chirality tag is then clockwise or counterclockwise relative
            to this numbering; RDKit's own tag depends on the SMILES notation.
            ``"input"`` keeps the atom order and the tags of the SMILES; all integers equal those of
            ``ogb.utils.smiles2graph``.
        max_atoms: largest number of atoms accepted.

    Raises:
        MoleculeError: with the reason, if the SMILES is invalid or empty, has a wildcard atom, or more than
            ``max_atoms`` atoms, or if RDKit takes longer than 5 s.
    """
    check_choice("atom_order", atom_order, ["canonical", "input"])
    read = partial(read_smiles, atom_order=atom_order, max_atoms=max_atoms)
    with closing(Workers()) as workers:
        (((arrays, (reason,), _), lost),) = workers.submit(read, [smiles]).result()
    if reason is not None:
        raise MoleculeError(lost or reason)
    return arrays.graph(0)


def read_smiles(
    smiles: Sequence[str], level: str = MOLECULE, *, atom_order: str = "canonical", max_atoms: int = MAX_ATOMS
) -> tuple[MolArrays, list[str | None], np.ndarray]:
    """Parse many SMILES: the molecules (an invalid one has no atoms), by row None or the reason why it is invalid, and
    the :func:`atom_bond_order` of the S atoms or bonds of all, ``uint16 [S, 2]`` (S = 0 for level molecule)."""
    canonical = atom_order == "canonical"
    reasons: list[str | None] = []
    counts: list[tuple[int, int]] = []
    binaries: list[bytes] = []
    ranks: list[int] = []
    orders = [np.empty((0, 2), ORDER_DTYPE)]
    with rdkit_messages_blocked():
        for text in smiles:
            try:
                parsed = parse_molecule(text, max_atoms, keep_atom_maps=not canonical)
            except MoleculeError as reason:
                reasons.append(str(reason))
                counts.append((0, 0))
                binaries.append(b"")
                continue
            if level != MOLECULE:
                orders.append(atom_bond_order(parsed, level, canonical=canonical))
            mol = normalize_stereo(parsed, text)[0] if canonical else parsed
            reasons.append(None)
            counts.append((mol.GetNumAtoms(), mol.GetNumBonds()))
            binaries.append(mol.ToBinary(0))
            if canonical:
                ranks.extend(canonical_ranks(mol))
        arrays = _to_arrays(smiles, counts, binaries, max_atoms, canonical)
    if canonical:
        numbers = np.array(ranks, dtype=np.int32)
        renumber(numbers, arrays.atom_ptr, arrays.bond_ptr, arrays.atoms, arrays.bonds, arrays.bond_type_ids)
    return arrays, reasons, np.concatenate(orders)


def _to_arrays(
    smiles: Sequence[str], counts: list[tuple[int, int]], binaries: list[bytes], max_atoms: int, canonical: bool
) -> MolArrays:
    """Collect the features of all molecules: with the compiled reader, or through RDKit where it reads none."""
    ptr = np.zeros((2, len(counts) + 1), np.int64)
    np.cumsum(np.array(counts, np.int64).reshape(-1, 2).T, axis=1, out=ptr[:, 1:])
    atom_ptr, bond_ptr = ptr
    atoms = np.zeros((atom_ptr[-1], len(ATOM_DIMS)), np.uint8)
    bonds = np.zeros((bond_ptr[-1], 2), np.int32)
    features = np.zeros((bond_ptr[-1], len(BOND_DIMS)), np.uint8)
    for row in read_binaries(binaries, atom_ptr, bond_ptr, atoms, bonds, features):
        # Parsed a second time: this is rare, and keeping all RDKit molecules in memory would slow down every one.
        mol = parse_molecule(smiles[row], max_atoms, keep_atom_maps=not canonical)
        mol = normalize_stereo(mol, smiles[row])[0] if canonical else mol
        of_bonds = slice(bond_ptr[row], bond_ptr[row + 1])
        atoms[atom_ptr[row] : atom_ptr[row + 1]], bonds[of_bonds], features[of_bonds] = molecule_features(mol)
    return MolArrays(atom_ptr, bond_ptr, atoms, bonds, bond_type_ids(features))


#: Most bonds of an atom, which are counted in a byte.
MAX_DEGREE = 255
#: Most atoms of a molecule with bonds, whose atoms are stored as 16-bit numbers.
MAX_BOND_ATOMS = 65_535

# Dtype and columns of the arrays of a molecule.
_ARRAYS: dict[str, tuple[Any, int]] = {
    "atoms": (np.uint8, len(ATOM_DIMS)),
    "bonds": (np.int32, 2),
    "bond_features": (np.uint8, len(BOND_DIMS)),
}
_LIMITS = np.array(ATOM_DIMS, np.uint8)


def typed_arrays(
    index: int, atoms: np.ndarray, bonds: np.ndarray, bond_features: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Convert to ``uint8 [N, 9]``, ``int32 [M, 2]`` and ``uint8 [M, 3]``; an :class:`InputError` with the ``index`` of
    the molecule if a shape is wrong or values are not integers in range."""
    arrays = []
    for values, (name, (dtype, width)) in zip((atoms, bonds, bond_features), _ARRAYS.items(), strict=True):
        try:
            array = np.asarray(values)
        except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors on a GPU
            array = np.array(None)
        array = array if array.size else np.empty((0, width), dtype)
        is_valid = array.dtype.kind in "bui" and array.shape[1:] == (width,)
        typed = np.ascontiguousarray(array, dtype if is_valid else None)
        if not is_valid or (typed != array).any():
            wanted = f"integers from {np.iinfo(dtype).min} to {np.iinfo(dtype).max}, [rows, {width}]"
            raise InputError(f"the molecule at index {index} has {name} that are not {wanted}")
        arrays.append(typed)
    if len(arrays[1]) != len(arrays[2]):
        raise InputError(
            f"the molecule at index {index} has {len(arrays[1])} bonds, but features of {len(arrays[2])} bonds"
        )
    return arrays[0], arrays[1], arrays[2]


def invalid_molecule(
    atom_ptr: np.ndarray,  # integer [G + 1], molecule g has atoms atom_ptr[g]:atom_ptr[g + 1]; not validated yet
    bond_ptr: np.ndarray,  # the same for bonds
    atoms: np.ndarray,  # uint8 [9 A], OGB's features, atom by atom
    begins: np.ndarray,  # integer [M], atoms of each bond, numbered from 0 within their molecule
    ends: np.ndarray,
    bond_type_ids: np.ndarray,  # uint8 [M]
    max_atoms: int = MAX_BOND_ATOMS,
) -> int | None:
    """Return the index of the first molecule that is invalid input for compiled code; None if all are valid."""
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


_CLOCKWISE, _COUNTERCLOCKWISE = (
    ATOM_FEATURES["chirality"].indices[tag] for tag in (ChiralType.CHI_TETRAHEDRAL_CW, ChiralType.CHI_TETRAHEDRAL_CCW)
)


@njit(cache=True)
def renumber(ranks, atom_ptr, bond_ptr, atoms, bonds, bond_type_ids):
    """Sort the atoms of molecules (``MolArrays``) by ``ranks`` (``int32 [A]``), and the bonds by their atoms, in place.

    RDKit's chirality tag is relative to the order of the bonds of the atom, so it is inverted if the new order is an
    odd permutation of the old one. Ranks that are not valid indices of atoms of their molecule are a ValueError.
    """
    if len(ranks) != len(atoms):
        raise ValueError("the number of ranks differs from the number of atoms")
    for g in range(len(atom_ptr) - 1):
        first_atom, first_bond, end_bond = atom_ptr[g], bond_ptr[g], bond_ptr[g + 1]
        rank = ranks[first_atom : atom_ptr[g + 1]]
        old = atoms[first_atom : atom_ptr[g + 1]].copy()
        for i in range(len(rank)):
            if not 0 <= rank[i] < len(rank):
                raise ValueError("a rank is out of range for its molecule")
        for i in range(len(rank)):
            tag = old[i, 1]
            if tag in (_CLOCKWISE, _COUNTERCLOCKWISE) and _is_odd(i, rank, bonds[first_bond:end_bond]):
                old[i, 1] = _CLOCKWISE + _COUNTERCLOCKWISE - tag
        for i in range(len(rank)):
            for f in range(old.shape[1]):  # numba compiles the assignment of a row for a second longer
                atoms[first_atom + rank[i], f] = old[i, f]
        for m in range(first_bond, end_bond):  # insertion sort
            a, b, bond_type = rank[bonds[m, 0]], rank[bonds[m, 1]], bond_type_ids[m]
            if a > b:
                a, b = b, a
            k = m
            while k > first_bond and (bonds[k - 1, 0] > a or (bonds[k - 1, 0] == a and bonds[k - 1, 1] > b)):
                bonds[k, 0], bonds[k, 1], bond_type_ids[k] = bonds[k - 1, 0], bonds[k - 1, 1], bond_type_ids[k - 1]
                k -= 1
            bonds[k, 0], bonds[k, 1], bond_type_ids[k] = a, b, bond_type


@njit(cache=True)
def _is_odd(atom, rank, bonds):
    """True if sorting the neighbours of the atom by rank is an odd permutation."""
    odd = False
    for m in range(len(bonds)):
        if bonds[m, 0] == atom or bonds[m, 1] == atom:
            neighbour_rank = rank[bonds[m, 1] if bonds[m, 0] == atom else bonds[m, 0]]
            for k in range(m + 1, len(bonds)):
                if (bonds[k, 0] == atom and rank[bonds[k, 1]] < neighbour_rank) or (
                    bonds[k, 1] == atom and rank[bonds[k, 0]] < neighbour_rank
                ):
                    odd = not odd
    return odd


#: dtype of :func:`atom_bond_order`.
ORDER_DTYPE = np.uint16


def atom_bond_order(mol: Chem.Mol, level: str, *, canonical: bool = True) -> np.ndarray:
    """Map the n atoms, or bonds, of a SMILES to its graph, in canonical order or that of the SMILES: ``uint16 [n, 2]``.

    The columns are the index of each in the graph (bonds sorted as by :func:`renumber`), and its symmetry class. Only
    molecules with stereocentres have classes of several members: chirality tags depend on the numbers of the
    neighbours, which are arbitrary among symmetric neighbours, so that the graph may distinguish them.
    """
    if not canonical:
        return _order(np.arange(mol.GetNumAtoms() if level == ATOM else mol.GetNumBonds()))
    ranks = np.array(graph_atom_indices(mol), np.int64)
    ends = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()], np.int64).reshape(-1, 2)
    has_stereo = any(atom.GetChiralTag() != Chem.ChiralType.CHI_UNSPECIFIED for atom in mol.GetAtoms())
    if level == ATOM:
        return _order(ranks, _atom_symmetry_classes(mol) if has_stereo else None)
    low, high = np.sort(ranks[ends], axis=1).T
    places = np.empty(len(ends), np.int64)
    places[np.lexsort((high, low))] = np.arange(len(ends))
    return _order(places, _bond_symmetry_classes(mol, ends) if has_stereo else None)


def _order(places: np.ndarray, classes: np.ndarray | None = None) -> np.ndarray:
    classes = np.arange(len(places)) if classes is None else classes
    return np.stack([places, classes], axis=1).astype(ORDER_DTYPE)


def _atom_symmetry_classes(mol: Chem.Mol) -> np.ndarray:
    """RDKit's symmetry classes of the atoms: ``int64 [N]``."""
    return np.array(Chem.CanonicalRankAtoms(mol, breakTies=False, includeAtomMaps=False), np.int64)


def _bond_symmetry_classes(mol: Chem.Mol, ends: np.ndarray) -> np.ndarray:
    """Symmetry classes of the bonds, ``int64 [M]``, by the classes and distances of all atoms seen from both ends:
    those of the two ends alone would not distinguish the two kinds of bonds of prismane."""
    classes, distances = _atom_symmetry_classes(mol), np.rint(Chem.GetDistanceMatrix(mol)).astype(np.int64)
    class_ids: dict[tuple, int] = {}
    groups = []
    for a, b in ends.tolist():
        views = [sorted(zip(classes, distances[i], distances[j], strict=True)) for i, j in ((a, b), (b, a))]
        groups.append(class_ids.setdefault(tuple(min(views)), len(class_ids)))
    return np.array(groups, np.int64)
