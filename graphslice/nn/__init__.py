"""Neural networks: structural encodings, mixers and the graph transformer; independent of RDKit and Lightning."""

from graphslice.nn.model import GraphTransformer

__all__ = ["GraphTransformer"]
