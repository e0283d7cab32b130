"""From PyTorch Geometric's ``Data`` with OGB features; :meth:`MolGraph.to_pyg` is the other way."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data

from graphslice.chem.molecule import MolGraph, smiles_to_graph
from graphslice.chem.parse import MoleculeError
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS


def from_pyg(data: Data) -> MolGraph:
    """A ``Data`` with OGB's nine atom and three bond features, atoms in the order given.

    Raises:
        MoleculeError: if it has no atoms, lacks the features, has values outside OGB's, elements
            other than those of its ``smiles`` (if it has that), or bonds in one direction only.
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
        raise MoleculeError("edge_index is not two rows of atoms")
    if edge_index.is_floating_point() or edge_index.is_complex():
        raise MoleculeError("edge_index holds no whole numbers")
    if edge_attr is None and edge_index.shape[1] == 0:
        edge_attr = torch.empty(0, len(BOND_DIMS), dtype=torch.long)
    if not isinstance(edge_attr, torch.Tensor) or edge_attr.shape != (edge_index.shape[1], len(BOND_DIMS)):
        raise MoleculeError(f"the graph lacks OGB's {len(BOND_DIMS)} bond features in edge_attr")
    atoms = _within(x, ATOM_DIMS, "atom")
    features = _within(edge_attr, BOND_DIMS, "bond")
    edges = edge_index.cpu().numpy().T.astype(np.int64)
    if edges.size and (edges.min() < 0 or edges.max() >= len(atoms)):
        raise MoleculeError("edge_index points outside the atoms")
    forward, backward = edges[:, 0] < edges[:, 1], edges[:, 0] > edges[:, 1]
    bonds = edges[forward]

    def keyed(ends: np.ndarray, attributes: np.ndarray) -> np.ndarray:
        rows = np.concatenate([ends, attributes], axis=1)
        return rows[np.lexsort(rows.T[::-1])]

    one_way = keyed(bonds, features[forward])
    other_way = keyed(edges[backward][:, ::-1], features[backward])
    if len(bonds) * 2 != len(edges) or not np.array_equal(one_way, other_way):
        raise MoleculeError("every bond must stand in edge_index once in each direction, with the same features")
    if len(np.unique(bonds, axis=0)) != len(bonds):
        raise MoleculeError("a bond stands in edge_index twice")
    smiles = getattr(data, "smiles", None)
    if isinstance(smiles, str):
        _check_vocabulary(atoms, smiles)
    return MolGraph(atoms, bonds.astype(np.int32), features[forward])


def _check_vocabulary(atoms: np.ndarray, smiles: str) -> None:
    """PyG's own ``from_smiles`` numbers elements otherwise than OGB; its graphs carry their SMILES."""
    try:
        expected = smiles_to_graph(smiles, max_atoms=len(atoms)).atoms
    except MoleculeError:
        return
    if not np.array_equal(np.sort(atoms[:, 0]), np.sort(expected[:, 0])):
        raise MoleculeError("its features are not OGB's: its elements are not those of its SMILES")


def _within(features: torch.Tensor, dims: tuple[int, ...], what: str) -> np.ndarray:
    if features.is_complex():
        raise MoleculeError(f"{what} features outside OGB's values")
    values = features.detach().cpu().double().numpy()
    if (values != np.floor(values)).any() or (values < 0).any() or (values >= np.array(dims)).any():
        raise MoleculeError(f"{what} features outside OGB's values")
    return values.astype(np.uint8)
