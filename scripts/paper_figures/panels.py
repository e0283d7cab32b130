"""What the figures share: panels side by side, and the molecules they are drawn from."""

from __future__ import annotations

import csv

from matplotlib.figure import Figure

import graphslice as gs
from graphslice.chem.molecule import MolGraph
from graphslice.package_data import DEMO_CSV


def panels(columns: int, rows: int = 1, width: float = 4.2, height: float = 3.6):
    """A figure, and its axes row by row."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, i + 1) for i in range(columns * rows)]


def demo_molecules(count: int) -> list[MolGraph]:
    """The first ``count`` molecules of the demo set with 19 to 40 atoms."""
    with open(DEMO_CSV) as file:
        graphs = (gs.smiles_to_graph(row["smiles"]) for row in csv.DictReader(file))
        graphs = [graph for graph in graphs if 19 <= graph.num_atoms <= 40]
    return graphs[:count]
