"""Collation of molecules of a store into a :class:`~graphslice.batch.GraphBatch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphslice.batch import GraphBatch
from graphslice.chem.molecule import MolArrays, MolGraph
from graphslice.data.batch_arrays import batch_arrays
from graphslice.data.store import GraphStore


def collate_rows(store: GraphStore, rows: np.ndarray, **settings: Any) -> GraphBatch:
    """Collate rows of a store into a batch.

    Args:
        store: the molecules.
        rows: ``int [B]``, at least one row; each needs a molecule with at least one atom.
        settings: keyword arguments of :func:`~graphslice.data.batch_arrays.batch_arrays`.

    Raises:
        InputError: as :func:`~graphslice.data.batch_arrays.batch_arrays`.
    """
    return GraphBatch.from_arrays(batch_arrays(store, rows, **settings))  # the store was checked when it was opened


def collate(graphs: Sequence[MolGraph], values: Mapping[str, np.ndarray] | None = None, **settings) -> GraphBatch:
    """Collate graphs into a batch.

    Args:
        graphs: molecules, each with at least one atom.
        values: their descriptors by name, as for :meth:`GraphStore.from_arrays`.
        settings: keyword arguments of :func:`~graphslice.data.batch_arrays.batch_arrays`.

    Raises:
        InputError: as :func:`~graphslice.data.batch_arrays.batch_arrays`, or if a molecule is invalid.
    """
    store = GraphStore.from_arrays(MolArrays.from_graphs(graphs), descriptors=values)
    return collate_rows(store, np.arange(len(graphs)), **settings)
