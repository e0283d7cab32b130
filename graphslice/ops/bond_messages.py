"""Message passing along bonds (GINE)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dispatch import operator
from graphslice.ops.triton import DTYPES, capability, supports_dtype, triton_runs
from graphslice.program.function import once_differentiable
from graphslice.program.kernels import embedding
from graphslice.program.layout import N
from graphslice.program.trace import Gradient, Trace, Traced, Upstream

if triton_runs():
    from graphslice.ops import triton_bonds


@operator
def bond_messages(x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor) -> Tensor:
    """Sum the messages ``relu(x_j + types_b + rings_r)`` of all neighbours j of each row i, for its bonds (b, r).

    This is the aggregation of GINE (Hu et al. 2020, as in PyTorch Geometric). Unlike the average ``P V``, the sum
    depends on the number of neighbours.

    The numba backend supports float32 with C a multiple of 16; the Triton backend float32 and 16-bit dtypes.

    Args:
        x: ``[B, N, C]``, floating point.
        bonds: int16 ``[B, N, N]``, bond code 1 + b + T r of each pair of rows, for bond type b and ring class r; 0
            without a bond.
        types: ``[T, C]``, embeddings of the bond types, dtype of ``x``.
        rings: ``[R, C]``, embeddings of the classes of the smallest ring, dtype of ``x``.

    Returns:
        ``[B, N, C]``, dtype of ``x``.
    """
    embeddings = (rings[:, None] + types).flatten(0, 1)
    if torch.compiler.is_compiling():  # the number of bonds, and so the shape of bonds.nonzero(), is unknown
        bonded = bonds > 0
        messages = F.relu(x[:, None] + F.embedding((bonds.int() - 1).clamp_min(0), embeddings))
        return messages.masked_fill(~bonded[..., None], 0).sum(dim=2)
    sample, i, j = bonds.nonzero(as_tuple=True)
    width = x.shape[1]
    edges = embeddings.index_select(0, bonds[sample, i, j].long() - 1)
    messages = F.relu(x.flatten(0, 1).index_select(0, sample * width + j) + edges)
    total = torch.zeros_like(x).flatten(0, 1).index_add(0, sample * width + i, messages)
    return total.view_as(x)


def _fits_triton(x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor) -> bool:
    if x.dim() != 3 or bonds.shape != (*x.shape[:2], x.shape[1]) or bonds.dtype != torch.int16:
        return False
    if types.dtype != x.dtype or rings.dtype != x.dtype:
        return False
    if not all(table.dim() == 2 and table.shape[1] == x.shape[2] and len(table) > 0 for table in (types, rings)):
        return False
    return supports_dtype(x.dtype, capability(x.device))


# --- triton ---------------------------------------------------------------------------------------

if triton_runs():

    @bond_messages.backend("triton", dtypes=DTYPES, fits=_fits_triton)
    def _triton(x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor) -> Tensor:
        return _TritonMessages.apply(x, bonds, types, rings)


class _TritonMessages(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bonds, types, rings):
        ctx.save_for_backward(x, bonds, types, rings)
        return triton_bonds.bond_messages(x, bonds, types, rings)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        grad_x, grad_types, grad_rings = triton_bonds.bond_messages_backward(grad, *ctx.saved_tensors)
        return grad_x, None, grad_types, grad_rings


# --- kernels of programs --------------------------------------------------------------------------


def _fits(x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor) -> bool:
    # A code beyond the tables is an error of the reference; the kernels would take it for no bond.
    return 0 <= int(bonds.min()) <= int(bonds.max()) <= len(types) * len(rings)


@bond_messages.kernels(x="B N C", bonds="B N N int16", types="T C", rings="R C", fits=_fits)
def _rule(trace: Trace, x, bonds, types, rings) -> Traced:
    out, sizes = trace.new(x.shape), (types.shape[0], rings.shape[0], N, x.shape[2])
    trace.forward(embedding.bond_messages, x, bonds, types, rings, out, *sizes)
    grads = Gradient(x), Gradient(types), Gradient(rings)
    trace.backward(embedding.bond_messages_gradients, x, bonds, types, rings, Upstream(out), *grads, *sizes)
    return out
