"""PyTorch Geometric: conversion of ``Data`` with OGB features, and labelled datasets of them.

:meth:`MolGraph.to_pyg` is the inverse conversion. torch and PyG are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from graphslice.chem.molecule import EMPTY_GRAPH, MolGraph, check_graph, smiles_to_graph
from graphslice.chem.parse import MoleculeError
from graphslice.config import MOLECULE, DataConfig
from graphslice.data.columns import MAX_MAGNITUDE, check_unique
from graphslice.data.dataset import LabelledDataset, reject_unlabelled
from graphslice.data.infer_tasks import infer_tasks_from_values
from graphslice.data.labels import Labels
from graphslice.data.splits import SPLIT_METHODS
from graphslice.errors import InputError, first_line
from graphslice.feature_dims import BOND_DIMS

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data


def from_pyg(data: Data) -> MolGraph:
    """Convert a ``Data`` with ``x``, ``edge_index``, ``edge_attr`` of OGB's features; the order of atoms is kept.

    Raises:
        MoleculeError: if the graph has no atoms, lacks the features, has feature values outside OGB's range, other
            elements than its ``smiles`` (if present), or bonds in one direction only.
    """
    from torch_geometric.utils import is_undirected

    edges, features = data.edge_index, data.edge_attr
    try:
        if edges is None:  # a single atom
            edges, features = data.x.new_empty((2, 0)).long(), data.x.new_empty((0, len(BOND_DIMS)))
        forward = edges[0] < edges[1]
        graph = check_graph(MolGraph(*map(_integers, (data.x, edges[:, forward].T, features[forward]))))
        is_whole = 2 * len(graph.bonds) == edges.shape[1] and is_undirected(edges, features, len(graph.atoms))
    except (AttributeError, TypeError, IndexError, RuntimeError) as error:
        raise MoleculeError(f"x, edge_index and edge_attr are not OGB's: {first_line(error)}") from None
    if len(graph.atoms) == 0:
        raise MoleculeError("the graph has no atoms")
    if not is_whole:
        raise MoleculeError("edge_index must contain every bond once in each direction, with the same features")
    if isinstance(smiles := getattr(data, "smiles", None), str):
        _check_elements(graph.atoms, smiles)
    return graph


def _integers(tensor: torch.Tensor) -> np.ndarray:
    values = tensor.detach().cpu().numpy()
    return values.astype(np.int64) if np.array_equal(values, np.rint(values)) else values


def _check_elements(atoms: np.ndarray, smiles: str) -> None:
    """Reject graphs of PyG's ``from_smiles``, which encodes elements differently from OGB but stores the SMILES."""
    try:
        expected = smiles_to_graph(smiles, max_atoms=len(atoms)).atoms
    except MoleculeError:
        return
    if not np.array_equal(np.sort(atoms[:, 0]), np.sort(expected[:, 0])):
        raise MoleculeError("the features are not OGB's: the elements differ from those of the graph's SMILES")


def dataset_from_pyg(
    data: Iterable[Data], targets: Sequence[str] | None = None, config: DataConfig | None = None
) -> LabelledDataset:
    """Load labelled molecules from a PyG dataset or a list of ``Data`` with OGB features and ``y``.

    ``y`` holds T numbers, nan where unknown; their names are y0, y1, ... (y for a single target) if not given.
    """
    import torch

    config = config or DataConfig()
    if config.level != MOLECULE:
        raise InputError(f"PyG data has molecule-level labels: data.level {config.level} needs a table")
    if config.split not in (None, *SPLIT_METHODS):
        raise InputError(f"PyG data cannot be split by {config.split!r}: give {', '.join(SPLIT_METHODS)}")
    graphs: list[MolGraph] = []
    rejected: dict[int, str] = {}
    rows: list[np.ndarray] = []
    for row, item in enumerate(data):
        y = getattr(item, "y", None)
        rows.append(np.array([np.nan] if y is None else torch.as_tensor(y).tolist(), float).reshape(-1))
        try:
            graphs.append(from_pyg(item))
        except MoleculeError as reason:
            graphs.append(EMPTY_GRAPH)
            rejected[row] = str(reason)
    widths = sorted({len(row) for row in rows})
    if len(widths) != 1:
        problem = f"graphs with different numbers of targets: {widths}" if widths else "no graph"
        raise InputError(f"the PyG dataset has {problem}")
    values = np.stack(rows)
    values[np.abs(values) > MAX_MAGNITUDE] = np.nan
    rejected = reject_unlabelled(Labels.of_molecules(values), rejected)
    if len(rejected) == len(rows):
        raise InputError(f"no graph of the PyG dataset can be used; the first: {rejected[0]}")
    names = list(targets) if targets else ["y"] if widths == [1] else [f"y{i}" for i in range(widths[0])]
    check_unique(names, names, "the PyG dataset")
    if len(names) != widths[0]:
        raise InputError(f"{len(names)} target names for {widths[0]} targets: {', '.join(names)}")
    tasks = infer_tasks_from_values(values, names, config, "the PyG dataset")
    return LabelledDataset("pyg", [], Labels.of_molecules(values), tasks, rejected, graphs=graphs)
