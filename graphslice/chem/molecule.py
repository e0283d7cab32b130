"""Molecular graphs (:class:`MolGraph`) from SMILES, with exactly the features of OGB (``features.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphslice.chem.atom_bond_order import ORDER_DTYPE, atom_bond_order
from graphslice.chem.features import molecule_features
from graphslice.chem.molecule_check import invalid_molecule, typed_arrays
from graphslice.chem.parse import MAX_ATOMS, MoleculeError, canonical_ranks, normalize_stereo, parse_molecule
from graphslice.chem.quiet import rdkit_messages_blocked
from graphslice.chem.rdkit_pickle import read_binaries
from graphslice.chem.renumber import renumber
from graphslice.config import ATOM, MOLECULE
from graphslice.errors import InputError
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS

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
    """G molecules in concatenated arrays, the input of compiled code.

    Attributes:
        atom_ptr: ``int64 [G + 1]``, molecule g has atoms ``atom_ptr[g]:atom_ptr[g + 1]``; none if it is invalid.
        bond_ptr: ``int64 [G + 1]``, the same for bonds.
        atoms: ``uint8 [A, 9]``, OGB's atom features.
        bonds: ``int32 [M, 2]``, atoms numbered from 0 within their molecule.
        bond_type_ids: ``uint8 [M]``, the three features of each bond as one number (see :func:`bond_type_ids`).
    """

    atom_ptr: np.ndarray
    bond_ptr: np.ndarray
    atoms: np.ndarray
    bonds: np.ndarray
    bond_type_ids: np.ndarray

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
        """Copy molecules into arrays.

        Raises:
            InputError: for a graph with arrays of the wrong shape, or with values that are not integers in range.
        """
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
        atoms = slice(self.atom_ptr[index], self.atom_ptr[index + 1])
        bonds = slice(self.bond_ptr[index], self.bond_ptr[index + 1])
        return MolGraph(self.atoms[atoms], self.bonds[bonds], bond_features(self.bond_type_ids[bonds]))


def bond_type_ids(features: np.ndarray) -> np.ndarray:
    """Encode the three features of each bond as one number below ``NUM_BOND_TYPES``: ``[M, 3]`` to ``uint8 [M]``.

    Features outside OGB's values give 255, which :func:`check_molecules` rejects.
    """
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
    """Validate a graph from outside, and return it in the dtypes of :class:`MolGraph`.

    Raises:
        MoleculeError: with the reason: wrong shape, a bond to a missing atom, a self-loop, a duplicate bond, or values
            outside OGB's.
    """
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
            ``max_atoms`` atoms.
    """
    arrays, (reason,), _ = read_smiles([smiles], atom_order=atom_order, max_atoms=max_atoms)
    if reason is not None:
        raise MoleculeError(reason)
    return arrays.graph(0)


def read_smiles(
    smiles: Sequence[str], level: str = MOLECULE, *, atom_order: str = "canonical", max_atoms: int = MAX_ATOMS
) -> tuple[MolArrays, list[str | None], np.ndarray]:
    """Parse many SMILES, and map their atoms, or bonds, to those of the graphs.

    Args:
        smiles, atom_order, max_atoms: as for :func:`smiles_to_graph`.
        level: atom or bond; or molecule for no mapping.

    Returns:
        The molecules, row by row (an invalid one has no atoms); for each row None or the reason why it is invalid; and
        ``uint16 [S, 2]`` for the S atoms or bonds of all molecules, as
        :func:`~graphslice.chem.atom_bond_order.atom_bond_order` returns them (S = 0 for molecule).
    """
    if atom_order not in ("canonical", "input"):
        raise ValueError(f"atom_order must be 'canonical' or 'input', not {atom_order!r}")
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
