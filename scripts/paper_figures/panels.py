"""What the figures share: the size of a panel, and the molecules they are drawn from."""

from __future__ import annotations

from itertools import islice

import pandas as pd

import graphslice as gs
from graphslice.chem.molecule import MolGraph
from graphslice.system.machine import DEMO_CSV

#: Size of a panel in inches.
PANEL = (4.2, 3.6)


def demo_molecules(count: int) -> list[MolGraph]:
    """The first ``count`` molecules of the demo set with 19 to 40 atoms."""
    graphs = map(gs.smiles_to_graph, pd.read_csv(DEMO_CSV)["smiles"])
    return list(islice((graph for graph in graphs if 19 <= graph.num_atoms <= 40), count))
