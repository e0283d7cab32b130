"""GraphStore: many molecules in a few flat arrays, and how SMILES become one."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import overload

import numpy as np

from graphslice.chem.molecule import MoleculeError, MolGraph, smiles_to_graph
from graphslice.config import GraphConfig

_CHUNK = 512


class GraphStore(Sequence[MolGraph]):
    """Molecules one behind another; item i is a :class:`MolGraph` that shares its memory.

    Attributes:
        atom_ptr: ``int64 [G + 1]``, molecule i has atoms ``atom_ptr[i]:atom_ptr[i + 1]``.
        bond_ptr: ``int64 [G + 1]``, the same for bonds.
        atoms, bonds, bond_features: as in :class:`MolGraph`, of all molecules.
    """

    def __init__(
        self,
        atom_ptr: np.ndarray,
        bond_ptr: np.ndarray,
        atoms: np.ndarray,
        bonds: np.ndarray,
        bond_features: np.ndarray,
    ) -> None:
        self.atom_ptr, self.bond_ptr = atom_ptr, bond_ptr
        self.atoms, self.bonds, self.bond_features = atoms, bonds, bond_features

    @classmethod
    def from_graphs(cls, graphs: Sequence[MolGraph]) -> GraphStore:
        """Copy molecules into a store."""
        return cls(
            np.cumsum([0, *(graph.num_atoms for graph in graphs)], dtype=np.int64),
            np.cumsum([0, *(graph.num_bonds for graph in graphs)], dtype=np.int64),
            np.concatenate([np.empty((0, 9), np.uint8), *(graph.atoms for graph in graphs)]),
            np.concatenate([np.empty((0, 2), np.int32), *(graph.bonds for graph in graphs)]),
            np.concatenate([np.empty((0, 3), np.uint8), *(graph.bond_features for graph in graphs)]),
        )

    @classmethod
    def join(cls, stores: Sequence[GraphStore]) -> GraphStore:
        """One store of the molecules of several, in their order."""

        def pointers(parts: list[np.ndarray]) -> np.ndarray:
            return np.cumsum(np.concatenate([[0], *(np.diff(part) for part in parts)]), dtype=np.int64)

        return cls(
            pointers([store.atom_ptr for store in stores]),
            pointers([store.bond_ptr for store in stores]),
            np.concatenate([store.atoms for store in stores]),
            np.concatenate([store.bonds for store in stores]),
            np.concatenate([store.bond_features for store in stores]),
        )

    @property
    def sizes(self) -> np.ndarray:
        """``int64 [G]``, the number of atoms of each molecule."""
        return np.diff(self.atom_ptr)

    def __len__(self) -> int:
        return len(self.atom_ptr) - 1

    @overload
    def __getitem__(self, index: int) -> MolGraph: ...
    @overload
    def __getitem__(self, index: slice) -> list[MolGraph]: ...
    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"molecule {index} of {len(self)}")
        index %= len(self)
        atoms = slice(self.atom_ptr[index], self.atom_ptr[index + 1])
        bonds = slice(self.bond_ptr[index], self.bond_ptr[index + 1])
        return MolGraph(self.atoms[atoms], self.bonds[bonds], self.bond_features[bonds])


@contextmanager
def featurizers(rows: int | None = None, workers: int | None = None) -> Iterator[ProcessPoolExecutor | None]:
    """Processes for :func:`featurize`: every core by default, none where few rows would not pay for them."""
    workers = os.cpu_count() or 1 if workers is None else workers
    if workers < 2 or (rows is not None and rows < 4 * _CHUNK):
        yield None
        return
    # Forked where that exists: the children touch neither torch nor a GPU.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    with ProcessPoolExecutor(workers, multiprocessing.get_context(method)) as pool:
        yield pool


def featurize(
    smiles: Sequence[str],
    config: GraphConfig,
    *,
    pool: ProcessPoolExecutor | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[GraphStore, list[str | None]]:
    """Parse SMILES.

    Args:
        smiles: any texts.
        config: atom order and largest molecule.
        pool: of :func:`featurizers`; in this process without one.
        progress: called with the number of rows done, from time to time.

    Returns:
        The molecules that could be read, in their order, and for every row None or the reason why
        it is not among them.
    """
    chunks: Iterable[Sequence[str]] = (smiles[i : i + _CHUNK] for i in range(0, len(smiles), _CHUNK))
    work = partial(_featurize_chunk, atom_order=config.atom_order, max_atoms=config.max_atoms)
    stores, reasons = [GraphStore.from_graphs([])], []
    for store, chunk_reasons in pool.map(work, chunks) if pool else map(work, chunks):
        stores.append(store)
        reasons += chunk_reasons
        if progress:
            progress(len(chunk_reasons))
    return GraphStore.join(stores), reasons


def _featurize_chunk(smiles: Sequence[str], atom_order, max_atoms: int) -> tuple[GraphStore, list[str | None]]:
    graphs, reasons = [], []
    for text in smiles:
        try:
            graphs.append(smiles_to_graph(text, atom_order=atom_order, max_atoms=max_atoms))
            reasons.append(None)
        except MoleculeError as reason:
            reasons.append(str(reason))
    return GraphStore.from_graphs(graphs), reasons
