"""PyTorch Geometric: conversion of ``Data`` with OGB features, and labelled datasets of them.

:meth:`MolGraph.to_pyg` is the inverse conversion. torch and PyG are imported where they are used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from graphslice.chem.molecule import EMPTY_GRAPH, MolGraph, smiles_to_graph
from graphslice.chem.parse import MoleculeError
from graphslice.config import MOLECULE, DataConfig
from graphslice.data.columns import MAX_MAGNITUDE, check_unique
from graphslice.data.dataset import LabelledDataset, reject_unlabelled
from graphslice.data.infer_tasks import infer_tasks_from_values
from graphslice.data.labels import Labels
from graphslice.data.splits import SPLIT_METHODS
from graphslice.errors import InputError
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data


def from_pyg(data: Data) -> MolGraph:
    """Convert a ``Data`` with OGB's nine atom and three bond features; the order of atoms is kept.

    Args:
        data: a graph with ``x``, ``edge_index``, ``edge_attr`` and optionally ``smiles``.

    Raises:
        MoleculeError: if the graph has no atoms, lacks the features, has feature values outside OGB's range, other
            elements than its ``smiles`` (if present), or bonds in one direction only.
    """
    import torch

    x, edge_index, edge_attr = (getattr(data, name, None) for name in ("x", "edge_index", "edge_attr"))
    if not isinstance(x, torch.Tensor) or x.dim() != 2 or x.shape[1] != len(ATOM_DIMS):
        raise MoleculeError(f"the graph lacks OGB's {len(ATOM_DIMS)} atom features in x")
    if len(x) == 0:
        raise MoleculeError("the graph has no atoms")
    tensors = [tensor for tensor in (x, edge_index, edge_attr) if isinstance(tensor, torch.Tensor)]
    if any(tensor.layout != torch.strided or tensor.is_complex() for tensor in tensors):
        raise MoleculeError("x, edge_index and edge_attr must be dense tensors of real numbers")
    if edge_index is None:
        edge_index = torch.empty(2, 0, dtype=torch.long)
    if not isinstance(edge_index, torch.Tensor) or edge_index.is_floating_point() or edge_index.shape[:-1] != (2,):
        raise MoleculeError("edge_index must have two rows of atom indices")
    if edge_attr is None and edge_index.shape[1] == 0:
        edge_attr = torch.empty(0, len(BOND_DIMS), dtype=torch.long)
    if not isinstance(edge_attr, torch.Tensor) or edge_attr.shape != (edge_index.shape[1], len(BOND_DIMS)):
        raise MoleculeError(f"the graph lacks OGB's {len(BOND_DIMS)} bond features in edge_attr")
    atoms = _check_range(x, ATOM_DIMS, "atom")
    features = _check_range(edge_attr, BOND_DIMS, "bond")
    edges = edge_index.cpu().numpy().T.astype(np.int64)
    if edges.size and (edges.min() < 0 or edges.max() >= len(atoms)):
        raise MoleculeError("edge_index has atom indices that are out of range")
    forward, backward = edges[:, 0] < edges[:, 1], edges[:, 0] > edges[:, 1]
    bonds = edges[forward]

    def sorted_edges(ends: np.ndarray, attributes: np.ndarray) -> np.ndarray:
        rows = np.concatenate([ends, attributes], axis=1)
        return rows[np.lexsort(rows.T[::-1])]

    forward_edges = sorted_edges(bonds, features[forward])
    backward_edges = sorted_edges(edges[backward][:, ::-1], features[backward])
    if len(bonds) * 2 != len(edges) or not np.array_equal(forward_edges, backward_edges):
        raise MoleculeError("edge_index must contain every bond once in each direction, with the same features")
    if len(np.unique(bonds, axis=0)) != len(bonds):
        raise MoleculeError("edge_index contains a bond twice")
    smiles = getattr(data, "smiles", None)
    if isinstance(smiles, str):
        _check_vocabulary(atoms, smiles)
    return MolGraph(atoms, bonds.astype(np.int32), features[forward])


def _check_vocabulary(atoms: np.ndarray, smiles: str) -> None:
    """Reject graphs of PyG's ``from_smiles``, which encodes elements differently from OGB but stores the SMILES."""
    try:
        expected = smiles_to_graph(smiles, max_atoms=len(atoms)).atoms
    except MoleculeError:
        return
    if not np.array_equal(np.sort(atoms[:, 0]), np.sort(expected[:, 0])):
        raise MoleculeError("the features are not OGB's: the elements differ from those of the graph's SMILES")


def _check_range(features: torch.Tensor, dims: tuple[int, ...], kind: str) -> np.ndarray:
    values = features.detach().cpu().double().numpy()
    if (values != np.floor(values)).any() or (values < 0).any() or (values >= np.array(dims)).any():
        raise MoleculeError(f"{kind} features outside OGB's values")
    return values.astype(np.uint8)


def _graph_targets(item: Data, row: int) -> np.ndarray:
    """Return the targets of a graph, ``float64 [T]``; a single nan if it has none."""
    y = getattr(item, "y", None)
    import torch

    try:
        return np.array([np.nan]) if y is None else torch.as_tensor(y).detach().cpu().numpy().astype(float).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"y of the graph at index {row} does not hold numbers: {y!r}"[:200]) from None


def dataset_from_pyg(
    data: Iterable[Data], targets: Sequence[str] | None = None, config: DataConfig | None = None
) -> LabelledDataset:
    """Load labelled molecules from a PyG dataset or a list of ``Data`` with OGB features and ``y``.

    Args:
        data: graphs with ``x``, ``edge_index``, ``edge_attr`` in the format of :meth:`MolGraph.to_pyg`,
            and ``y`` of T numbers, nan where unknown. The order of atoms is kept.
        targets: T names; y0, y1, ... when not given (y for a single target).
        config: data settings of the user.

    Raises:
        InputError: if no graph is usable, the numbers of targets differ, or the configuration has atom- or bond-level
            targets, or a column as split.
    """
    if config is not None and config.level != MOLECULE:
        raise InputError(
            f"PyG data has molecule-level labels: --level {config.level} needs a table with lists of numbers"
        )
    if config is not None and config.split not in (None, *SPLIT_METHODS):
        raise InputError(f"PyG data cannot be split by {config.split!r}: give {', '.join(SPLIT_METHODS)}")
    graphs: list[MolGraph] = []
    rejected: dict[int, str] = {}
    rows: list[np.ndarray] = []
    for row, item in enumerate(data):
        rows.append(_graph_targets(item, row))
        try:
            graphs.append(from_pyg(item))
        except MoleculeError as reason:
            graphs.append(EMPTY_GRAPH)
            rejected[row] = str(reason)
    widths = sorted({len(row) for row in rows})
    if not rows:
        raise InputError("the PyG dataset is empty")
    if len(widths) > 1:
        raise InputError(f"the graphs of the PyG dataset have different numbers of targets: {widths}")
    values = np.stack(rows)
    values[np.abs(values) > MAX_MAGNITUDE] = np.nan
    rejected = reject_unlabelled(Labels.of_molecules(values), rejected)
    if len(rejected) == len(rows):
        raise InputError(f"no graph of the PyG dataset can be used; the first: {rejected[0]}")
    names = list(targets) if targets else ["y"] if widths == [1] else [f"y{i}" for i in range(widths[0])]
    check_unique(names, names, "the PyG dataset")
    if len(names) != widths[0]:
        raise InputError(f"{len(names)} target names for {widths[0]} targets: {json.dumps(names)}")
    tasks = infer_tasks_from_values(values, names, config or DataConfig(), "the PyG dataset")
    return LabelledDataset("pyg", [], Labels.of_molecules(values), tasks, rejected, graphs=graphs)
