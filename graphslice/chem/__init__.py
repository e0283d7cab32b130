"""Conversion of SMILES to molecular graphs, with RDKit and numpy only."""

from graphslice.chem.molecule import MolGraph, smiles_to_graph
from graphslice.chem.parse import MoleculeError

__all__ = ["MolGraph", "MoleculeError", "smiles_to_graph"]
