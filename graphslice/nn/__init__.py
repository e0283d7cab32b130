"""The model: encodings, mixers and the graph transformer. No RDKit, no Lightning."""

from graphslice.nn.model import GraphTransformer

__all__ = ["GraphTransformer"]
