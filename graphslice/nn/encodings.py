"""Graphormer's encodings (Ying et al. 2021, section 3.1): atoms with their degrees, and the bias S + E."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.batch import GraphBatch
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS, NUM_BOND_TYPES, UNREACHABLE
from graphslice.nn.mixers import Structure
from graphslice.ops import walk_bias, walk_softmax

#: Rows that the original code gives to each feature of an atom or a bond.
_GRAPHORMER_ROWS = 512


def feature_rows(dims: tuple[int, ...], vocabulary: str) -> tuple[list[int], int]:
    """Where each feature's rows begin in its embedding table, and how many rows the table has.

    ``"ogb"`` gives each feature as many rows as it has values; ``"graphormer"`` lays them out as
    the original checkpoints do: 512 rows a feature, from row 2 for atoms and 3 for bonds.
    """
    if vocabulary == "graphormer":
        first = 2 if dims == ATOM_DIMS else 3
        return [first + _GRAPHORMER_ROWS * i for i in range(len(dims))], _GRAPHORMER_ROWS * len(dims) + 1
    starts = [sum(dims[:i]) for i in range(len(dims))]
    return starts, sum(dims)


class AtomEncoder(nn.Module):
    """The rows that enter the first layer: the graph token, then the atoms (centrality encoding, eq. 5).

    An atom is the sum of the embeddings of its nine features and of its degree, taken twice (in
    and out) as the original does.
    """

    starts: Tensor

    def __init__(self, dim: int, vocabulary: str, degree_rows: int) -> None:
        super().__init__()
        starts, rows = feature_rows(ATOM_DIMS, vocabulary)
        self.atom = nn.Embedding(rows, dim)
        self.in_degree = nn.Embedding(degree_rows, dim)
        self.out_degree = nn.Embedding(degree_rows, dim)
        self.token = nn.Embedding(1, dim)
        self.register_buffer("starts", torch.tensor(starts), persistent=False)

    def forward(self, batch: GraphBatch) -> Tensor:
        """``[B, N + 1, C]``: row 0 is the token."""
        size, width, _ = batch.atoms.shape
        rows = (batch.atoms.long() + self.starts).view(size * width, -1)
        atoms = F.embedding_bag(rows, self.atom.weight, mode="sum").view(size, width, -1)
        # Row 0 of the original's degree tables is its padding.
        degrees = (batch.degrees.long() + 1).clamp_max(self.in_degree.num_embeddings - 1)
        atoms = atoms + F.embedding(degrees, self.in_degree.weight + self.out_degree.weight)
        return torch.cat([self.token.weight.expand(size, 1, -1), atoms], dim=1)


class PairEncoder(nn.Module):
    """The bias ``S + E`` of every pair of rows, one for all layers (eqs. 6 and 7).

    S is a learned number per distance and head. E is the mean over the first ``max_path`` bonds
    of the shortest path of ``bond(e_n) W_n``. Both depend on the pair's walk alone, so they are
    computed once for each distinct walk of the batch and then looked up.
    """

    words: Tensor

    def __init__(
        self, heads: int, vocabulary: str, distance_rows: int, path_rows: int, max_path: int, distance_start: bool
    ) -> None:
        super().__init__()
        self.heads, self.max_path, self.distance_start = heads, max_path, distance_start
        starts, rows = feature_rows(BOND_DIMS, vocabulary)
        self.bond = nn.Embedding(rows, heads)
        self.position = nn.Embedding(path_rows * heads * heads, 1)
        self.spatial = nn.Embedding(distance_rows, heads)
        self.token = nn.Embedding(1, heads)
        words = torch.tensor(list(product(*map(range, BOND_DIMS)))) + torch.tensor(starts)
        self.register_buffer("words", words, persistent=False)

    def start_from_distances(self) -> None:
        """Let head h begin by reading the pairs that are h mod 6 bonds apart."""
        with torch.no_grad():
            for head in range(self.heads):
                self.spatial.weight[head % 6 + 1, head] += 4

    def forward(self, batch: GraphBatch) -> Structure:
        """The structure of a batch; row and column 0 are the token's. In full precision always."""
        with torch.autocast(batch.pairs.device.type, enabled=False):
            values = torch.cat([self.token.weight, self.walk_values(batch)])
        return Structure(
            batch.lengths + 1,
            batch.pairs.shape[1] + 1,
            bias=lambda: walk_bias(values, batch.pairs),
            map=lambda: walk_softmax(values, batch.pairs, batch.lengths),
        )

    def walk_values(self, batch: GraphBatch) -> Tensor:
        """``S + E`` of every walk of the batch, ``[W, H]``."""
        # Row s + 1 for distance s; the last row for pairs that no path joins.
        last = self.spatial.num_embeddings - 1
        distances = batch.walk_distances.long()
        rows = torch.where(distances == UNREACHABLE, last, (distances + 1).clamp_max(last - 1))
        spatial = F.embedding(rows, self.spatial.weight)

        bonds = F.embedding_bag(self.words, self.bond.weight, mode="mean")
        maps = self.position.weight.view(-1, self.heads, self.heads)[: self.max_path]
        table = (bonds @ maps).view(self.max_path * NUM_BOND_TYPES, self.heads)
        edges = F.embedding_bag(
            batch.walk_codes, table, batch.walk_ptr, mode="sum", per_sample_weights=batch.walk_weights.to(table.dtype)
        )
        return spatial + edges
