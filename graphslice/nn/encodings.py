"""Graphormer's encodings (Ying et al. 2021, section 3.1): atoms with their degrees, and the bias S + E."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.batch import GraphBatch
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS
from graphslice.nn.context import GRAPH_TENSORS, AttentionContext
from graphslice.ops import path_bias, path_softmax, path_values, sum_rows
from graphslice.ops.program import Value
from graphslice.ops.tracer import Tracer

#: Rows that the original code gives to each feature of an atom or a bond.
_GRAPHORMER_ROWS = 512


def feature_rows(dims: tuple[int, ...], embedding_layout: str) -> tuple[list[int], int]:
    """Where each feature's rows begin in its embedding table, and how many rows the table has.

    ``"ogb"`` gives each feature as many rows as it has values; ``"graphormer"`` lays them out as
    the original checkpoints do: 512 rows a feature, from row 2 for atoms and 3 for bonds.
    """
    if embedding_layout == "graphormer":
        first = 2 if dims == ATOM_DIMS else 3
        return [first + _GRAPHORMER_ROWS * i for i in range(len(dims))], _GRAPHORMER_ROWS * len(dims) + 1
    starts = [sum(dims[:i]) for i in range(len(dims))]
    return starts, sum(dims)


def encodings_supported(device: torch.device | str) -> bool:
    """Whether torch has on a device what the encodings are made of: some versions sum no embeddings on Macs."""
    try:
        table = torch.ones(1, 1, device=device, requires_grad=True)
        row, first = (torch.zeros(1, dtype=torch.int32, device=device) for _ in range(2))
        found = F.embedding_bag(row, table, first, mode="sum", per_sample_weights=table.detach()[0])
        found.sum().backward()
    except (NotImplementedError, RuntimeError):
        return False
    return True


class Table(nn.Embedding):
    """An embedding that is read as a whole; ``forward`` gives its weight."""

    def forward(self) -> Tensor:  # type: ignore[override]
        return self.weight


class AtomEncoder(nn.Module):
    """The rows that enter the first layer: the graph token, then the atoms (centrality encoding, eq. 5).

    An atom is the sum of the embeddings of its nine features and of its degree, taken twice (in
    and out) as the original does.
    """

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
        """``[B, N + 1, C]``: row 0 is the token."""
        size, width, _ = batch.atoms.shape
        features = (batch.atoms.long() + self.starts).view(size * width, -1)
        # Row 0 of the original's degree tables is its padding.
        degrees = (batch.degrees.long() + 1).clamp_max(self.in_degree.num_embeddings - 1).view(-1, 1)
        of_degrees = _embedding_sums(self.in_degree.weight + self.out_degree.weight, degrees)
        atoms = (_embedding_sums(self.atom.weight, features) + of_degrees).view(size, width, -1)
        return torch.cat([self.token().expand(size, 1, -1), atoms], dim=1)

    def trace(self, tracer: Tracer) -> Value:
        """:meth:`forward`, on a tape."""
        return tracer.embed(self, self.starts, self.in_degree.num_embeddings)


def _embedding_sums(table: Tensor, rows: Tensor) -> Tensor:
    """``[M, C]``: the sum of the K rows of ``table`` that each of ``rows``, int64 ``[M, K]``, names."""
    begins = torch.arange(len(rows), device=rows.device) * rows.shape[1]
    return sum_rows(table, rows.flatten(), begins, torch.ones(rows.numel(), dtype=table.dtype, device=rows.device))


class PairEncoder(nn.Module):
    """The bias ``S + E`` of every pair of rows, one for all layers (eqs. 6 and 7).

    S is a learned number per distance and head. E is the mean over the first ``max_path`` bonds
    of the shortest path of ``bond(e_n) W_n``. Both depend on the pair's path type alone, so they
    are computed once for each path type of the batch and then looked up.
    """

    bond_rows: Tensor

    def __init__(
        self,
        heads: int,
        embedding_layout: str,
        num_distances: int,
        num_path_positions: int,
        max_path: int,
        distance_start: bool,
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
        """Let head h begin by reading the pairs that are h mod 6 bonds apart."""
        with torch.no_grad():
            for head in range(self.heads):
                self.spatial.weight[head % 6 + 1, head] += 4

    def forward(
        self,
        batch: GraphBatch,
        reads: Sequence[str] = GRAPH_TENSORS,
        mixer_name: str = "a mixer",
        bonds: bool = False,
    ) -> AttentionContext:
        """What the mixers read of a batch, in full precision always; row and column 0 are the token's.

        Args:
            batch: of molecules.
            reads: which tensors to make, of :data:`~graphslice.nn.context.GRAPH_TENSORS`.
            reader: the name of the mixer, for messages.
            bonds: whether the blocks read bonds.

        Raises:
            ValueError: if they do, and the batch has none.
        """
        with torch.autocast(batch.path_types.device.type, enabled=False):
            values = self.path_values(batch)
        lengths, width = batch.lengths + 1, batch.path_types.shape[1] + 1
        if bonds and batch.bonds is None:
            raise ValueError("the model reads bonds, which the batch has not: collate it with bonds=True")
        made = {"bonds": batch.bonds} if bonds else {}
        if "attn_weights" in reads:
            made["attn_weights"] = path_softmax(values, batch.path_types, batch.lengths)
        if "attn_bias" in reads:
            padding = torch.arange(width, device=lengths.device) >= lengths[:, None]
            made["attn_bias"] = path_bias(values, batch.path_types).masked_fill(padding[:, None, None, :], -torch.inf)
        return AttentionContext(lengths, width, has_graph=True, mixer_name=mixer_name, **made)

    def path_values(self, batch: GraphBatch) -> Tensor:
        """``S + E`` of the graph token (row 0) and of every path type of the batch, ``[W + 1, H]``."""
        matrices = self.position().view(-1, self.heads, self.heads)[: self.max_path]
        learned = self.token(), self.spatial(), self.bond(), matrices
        paths = batch.path_distances, batch.path_ptr, batch.path_codes
        return path_values(*learned, self.bond_rows, *paths, batch.path_weights.to(matrices.dtype))
