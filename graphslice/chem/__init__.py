"""From SMILES to molecular graphs, with RDKit and numpy only."""

from graphslice.chem.molecule import MoleculeError, MolGraph, smiles_to_graph

__all__ = ["MolGraph", "MoleculeError", "smiles_to_graph"]
