"""Conversion of PyTorch Geometric ``Data`` with OGB features; :meth:`MolGraph.to_pyg` is the inverse."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data

from graphslice.chem.molecule import MolGraph, smiles_to_graph
from graphslice.chem.parse import MoleculeError
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS


def from_pyg(data: Data) -> MolGraph:
    """Convert a ``Data`` with OGB's nine atom and three bond features; the order of atoms is kept.

    Args:
        data: a graph with ``x``, ``edge_index``, ``edge_attr`` and optionally ``smiles``.

    Raises:
        MoleculeError: if the graph has no atoms, lacks the features, has feature values outside OGB's range, other
            elements than its ``smiles`` (if present), or bonds in one direction only.
    """
    x, edge_index, edge_attr = (getattr(data, name, None) for name in ("x", "edge_index", "edge_attr"))
    if not isinstance(x, torch.Tensor) or x.dim() != 2 or x.shape[1] != len(ATOM_DIMS):
        raise MoleculeError(f"the graph lacks OGB's {len(ATOM_DIMS)} atom features in x")
    if len(x) == 0:
        raise MoleculeError("the graph has no atoms")
    if any(
        isinstance(tensor, torch.Tensor) and tensor.layout != torch.strided for tensor in (x, edge_index, edge_attr)
    ):
        raise MoleculeError("x, edge_index and edge_attr must be dense tensors")
    if edge_index is None:
        edge_index = torch.empty(2, 0, dtype=torch.long)
    if not isinstance(edge_index, torch.Tensor) or edge_index.dim() != 2 or len(edge_index) != 2:
        raise MoleculeError("edge_index must have two rows of atom indices")
    if edge_index.is_floating_point() or edge_index.is_complex():
        raise MoleculeError("edge_index must hold integers")
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
    if features.is_complex():
        raise MoleculeError(f"{kind} features outside OGB's values")
    values = features.detach().cpu().double().numpy()
    if (values != np.floor(values)).any() or (values < 0).any() or (values >= np.array(dims)).any():
        raise MoleculeError(f"{kind} features outside OGB's values")
    return values.astype(np.uint8)
