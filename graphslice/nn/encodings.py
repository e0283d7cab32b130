"""Graphormer's structural encodings (Ying et al. 2021, section 3.1): centrality, spatial and edge encoding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor, nn

from graphslice.batch import GraphBatch
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS
from graphslice.nn.compiled import product_dtype
from graphslice.nn.context import GRAPH_TENSORS, AttentionContext
from graphslice.ops import embed_atoms, path_bias, path_softmax, path_values

#: Rows of the embedding table per atom or bond feature in the original checkpoints.
_GRAPHORMER_ROWS = 512


def feature_rows(dims: tuple[int, ...], embedding_layout: str) -> tuple[list[int], int]:
    """Return the first row of each feature in a shared embedding table, and its number of rows, for ``ATOM_DIMS`` or
    ``BOND_DIMS``. The layout ``"ogb"`` has as many rows per feature as it has values; ``"graphormer"`` that of the
    original checkpoints, 512 rows per feature, from row 2 for atoms and row 3 for bonds."""
    if embedding_layout == "graphormer":
        first = 2 if dims == ATOM_DIMS else 3
        return [first + _GRAPHORMER_ROWS * i for i in range(len(dims))], _GRAPHORMER_ROWS * len(dims) + 1
    starts = [sum(dims[:i]) for i in range(len(dims))]
    return starts, sum(dims)


class Table(nn.Embedding):
    """Embedding whose ``forward`` returns the complete weight matrix, ``[rows, dim]``."""

    def forward(self) -> Tensor:  # type: ignore[override]
        return self.weight


class AtomEncoder(nn.Module):
    """Embedding of the graph token and the atoms, with centrality encoding (Ying et al. 2021, eq. 5).
    ``h_i = sum_f x_f(i) + z_in(deg(i)) + z_out(deg(i))``: the sum of the embeddings of the nine OGB atom features
    and of two embeddings of the degree, for in- and out-degree as in the original code; degrees from ``num_degrees``
    share the last row."""

    starts: Tensor

    def __init__(self, dim: int, embedding_layout: str, num_degrees: int) -> None:
        super().__init__()
        starts, rows = feature_rows(ATOM_DIMS, embedding_layout)
        self.atom = nn.EmbeddingBag(rows, dim, mode="sum")
        self.in_degree = nn.Embedding(num_degrees, dim)
        self.out_degree = nn.Embedding(num_degrees, dim)
        self.token = Table(1, dim)
        self.register_buffer("starts", torch.tensor(starts), persistent=False)

    def forward(self, batch: GraphBatch) -> Tensor:
        """Embed a batch: ``[B, N + 1, C]``; row 0 is the graph token."""
        inputs = batch.atoms, batch.degrees, batch.row_lengths, self.starts
        return embed_atoms(*inputs, self.atom.weight, self.in_degree.weight, self.out_degree.weight, self.token.weight)


class PairEncoder(nn.Module):
    """Attention bias ``S + E`` of every pair of tokens, shared by all layers (Ying et al. 2021, eqs. 6 and 7).

    S is the spatial encoding, ``S_ij = b(distance(i, j))``: one parameter per shortest-path distance and head. E is
    the edge encoding, ``E_ij = 1/L sum_{n=1..L} bond(e_n) W_n`` over the first L = min(distance, max_path) bonds e_n
    of the shortest path, averaged over all shortest paths; ``bond(e)`` is ``[H]`` and ``W_n`` is ``[H, H]``. Pairs
    with the graph token have a parameter per head instead. Both depend on the path type of the pair alone
    (:class:`~graphslice.batch.GraphBatch`): they are computed once per path type of the batch and then looked up.
    """

    bond_rows: Tensor

    def __init__(
        self,
        heads: int,
        embedding_layout: str,
        num_distances: int,  # the last row is for atoms that no path connects
        num_path_positions: int,  # number of matrices W_n
        max_path: int,  # number of bonds of a path that E uses, at most num_path_positions
        distance_start: bool,  # the model calls init_from_distances
    ) -> None:
        super().__init__()
        self.heads, self.max_path, self.distance_start = heads, max_path, distance_start
        starts, rows = feature_rows(BOND_DIMS, embedding_layout)
        self.bond = Table(rows, heads)
        self.position = Table(num_path_positions * heads * heads, 1)
        self.spatial = Table(num_distances, heads)
        self.token = Table(1, heads)
        bond_rows = torch.tensor(list(product(*map(range, BOND_DIMS)))) + torch.tensor(starts)
        self.register_buffer("bond_rows", bond_rows, persistent=False)

    def init_from_distances(self) -> None:
        """Initialise head h to attend to pairs of atoms at a distance of h mod 6 bonds, by adding 4 to their bias."""
        with torch.no_grad():
            for head in range(self.heads):
                self.spatial.weight[head % 6 + 1, head] += 4

    def forward(
        self,
        batch: GraphBatch,
        reads: Sequence[str] = GRAPH_TENSORS,
        mixer_name: str = "a mixer",
        bonds: bool = False,
        values: Tensor | None = None,  # result of path_values, if known
    ) -> AttentionContext:
        """Compute the graph tensors ``reads`` of a batch in full precision, cast to the dtype of autocast, so that all
        layers share one copy: the context of N + 1 rows; row 0 is the graph token. Raises ValueError if ``bonds`` is
        True and the batch has none."""
        if bonds and batch.bonds is None:
            raise ValueError("the model expects bonds, but the batch has none: collate it with bonds=True")
        lengths, types = batch.row_lengths, batch.path_types
        with torch.autocast(types.device.type, enabled=False):
            values = self.path_values(batch) if values is None else values
        dtype = product_dtype(values)
        return AttentionContext(
            lengths,
            types.shape[1] + 1,
            attn_weights=path_softmax(values, types, lengths).to(dtype) if "attn_weights" in reads else None,
            attn_bias=path_bias(values, types, lengths).to(dtype) if "attn_bias" in reads else None,
            bonds=batch.bonds if bonds else None,
            has_graph=True,
            mixer_name=mixer_name,
        )

    def path_values(self, batch: GraphBatch) -> Tensor:
        """Compute ``S + E`` of the graph token (row 0) and of the W path types of the batch: ``[W + 1, H]``."""
        matrices = self.position().view(-1, self.heads, self.heads)[: self.max_path]
        parameters = self.token(), self.spatial(), self.bond(), matrices
        paths = batch.path_distances, batch.path_ptr, batch.path_codes
        return path_values(*parameters, self.bond_rows, *paths, batch.path_weights.to(matrices.dtype))
