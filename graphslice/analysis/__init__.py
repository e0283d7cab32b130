"""Model analysis: atom contributions, and the arrays inside the network."""

from graphslice.analysis.activations import Activations, activations
from graphslice.analysis.attribution import Attribution, attribute

__all__ = ["Activations", "Attribution", "activations", "attribute"]
