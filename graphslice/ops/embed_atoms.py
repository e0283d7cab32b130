"""Embedding of the graph token and the atoms, with centrality encoding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dispatch import operator
from graphslice.program.kernels import embedding
from graphslice.program.layout import N
from graphslice.program.trace import BATCH, Gradient, Trace, Traced, Upstream


@operator
def embed_atoms(
    atoms: Tensor,
    degrees: Tensor,
    lengths: Tensor,
    starts: Tensor,
    table: Tensor,
    in_degree: Tensor,
    out_degree: Tensor,
    token: Tensor,
) -> Tensor:
    """Compute ``h_i = sum_f x_f(i) + z_in(deg(i)) + z_out(deg(i))`` for all atoms (Ying et al. 2021, eq. 5).

    Args:
        atoms: uint8 ``[B, N - 1, 9]``, OGB atom features.
        degrees: uint8 ``[B, N - 1]``, number of bonds.
        lengths: int64 ``[B]``, number of valid rows, graph token included.
        starts: int64 ``[9]``, first row of each feature in ``table``.
        table: ``[R, C]``, floating point, embeddings of all features.
        in_degree, out_degree: ``[D, C]``, embeddings of degrees in row ``degree + 1``, the last one for higher degrees.
        token: ``[1, C]``, the graph token.

    Returns:
        ``[B, N, C]``; row 0 is the graph token. The padding is undefined.
    """
    size, width, _ = atoms.shape
    rows = (degrees.long() + 1).clamp_max(len(in_degree) - 1)
    degree_embeddings = F.embedding(rows, in_degree + out_degree)
    sums = F.embedding_bag((atoms.long() + starts).flatten(0, 1), table, mode="sum").view(size, width, -1)
    return torch.cat([token.expand(size, 1, -1), sums + degree_embeddings], dim=1)


@embed_atoms.kernels(
    atoms="B A 9 uint8",
    degrees="B A uint8",
    lengths="B int64",
    starts="9 int64",
    table="R C",
    in_degree="D C",
    out_degree="D C",
    token="1 C",
)
def _rule(trace: Trace, atoms, degrees, lengths, starts, table, in_degree, out_degree, token) -> Traced:
    (count, channels), tables = table.shape, (table, in_degree, out_degree, token)
    trace.require(count > 0 and in_degree.shape[0] > 0, f"embeddings {table.shape}")
    out, sizes = trace.new((BATCH, N, channels)), (count, in_degree.shape[0], N, channels)
    trace.forward(embedding.embed_atoms, atoms, degrees, starts, *tables, out, *sizes)
    inputs, grads = (atoms, degrees, starts, lengths), map(Gradient, tables)
    trace.backward(embedding.embed_atoms_gradients, *inputs, Upstream(out), *grads, *sizes)
    return out
