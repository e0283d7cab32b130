"""Message passing along bonds (GINE)."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dispatch import operator, triton_runs
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.simd.lanes import float32x16, load, load_short, maximum, select_ge, store
from graphslice.ops.triton_tiles import DTYPES, capability, supports_dtype

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


def _shapes_agree(x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor) -> bool:
    if x.dim() != 3 or bonds.shape != (*x.shape[:2], x.shape[1]) or bonds.dtype != torch.int16:
        return False
    return all(table.dim() == 2 and table.shape[1] == x.shape[2] and len(table) > 0 for table in (types, rings))


# --- triton ---------------------------------------------------------------------------------------

if triton_runs():

    @bond_messages.backend(
        "triton",
        dtypes=DTYPES,
        fits=lambda x, *args: _shapes_agree(x, *args) and supports_dtype(x.dtype, capability(x.device)),
        compiles=True,
    )
    def _triton(x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor) -> Tensor:
        return _triton_messages(x, bonds, types, rings)


@torch.library.custom_op("graphslice::bond_messages", mutates_args=())
def _triton_messages(x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor) -> Tensor:
    return triton_bonds.bond_messages(x, bonds, types, rings)


@_triton_messages.register_fake
def _(x, bonds, types, rings):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("graphslice::bond_messages_backward", mutates_args=())
def _triton_backward(
    grad: Tensor, x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return triton_bonds.bond_messages_backward(grad, x, bonds, types, rings)


@_triton_backward.register_fake
def _(grad, x, bonds, types, rings):
    return tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (x, types, rings))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _gradient(ctx, grad):
    grad_x, grad_types, grad_rings = _triton_backward(grad, *ctx.saved_tensors)
    return grad_x, None, grad_types, grad_rings


_triton_messages.register_autograd(_gradient, setup_context=_save)


# --- numba ----------------------------------------------------------------------------------------


def _fits(x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor) -> bool:
    if not _shapes_agree(x, bonds, types, rings) or x.shape[2] % 16:
        return False
    return bonds.numel() == 0 or 0 <= int(bonds.min()) <= int(bonds.max()) <= len(types) * len(rings)


@bond_messages.backend("numba", dtypes=(torch.float32,), fits=_fits)
def _numba(x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor) -> Tensor:
    return _BondMessages.apply(x, bonds, types, rings)


class _BondMessages(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *tensors: Tensor) -> Tensor:
        x, bonds, types, rings = (tensor.contiguous() for tensor in tensors)
        out = torch.empty_like(x)
        tables = types.data_ptr(), rings.data_ptr(), len(types)
        add_messages(x.data_ptr(), bonds.data_ptr(), tables, out.data_ptr(), tuple(x.shape))
        ctx.save_for_backward(x, bonds, types, rings)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, bonds, types, rings = ctx.saved_tensors
        grad = grad.contiguous()
        grads = torch.empty_like(x), torch.zeros_like(types), torch.zeros_like(rings)
        tables = types.data_ptr(), rings.data_ptr(), len(types)
        addresses = grads[0].data_ptr(), grads[1].data_ptr(), grads[2].data_ptr()
        message_gradients(x.data_ptr(), bonds.data_ptr(), tables, grad.data_ptr(), addresses, tuple(x.shape))
        return grads[0], None, grads[1], grads[2]


@njit(cache=True, nogil=True)
def add_messages(x, bonds, tables, out, shape):
    """Compute messages; arguments: addresses of x, bonds, tables (types, rings; T) and result; shape (B, N, C)."""
    samples, width, channels = shape
    types, rings, count = tables
    lanes, zero = float32x16(), float32x16()
    for i in range(samples * width):
        first, row = i // width * width, i * channels
        for c in range(0, channels, 16):
            store(out, row + c, zero)
        for j in range(width):
            code = np.int64(load_short(bonds, i * width + j)) - 1
            if code >= 0:
                source, kind, ring = (first + j) * channels, code % count * channels, code // count * channels
                for c in range(0, channels, 16):
                    edge = load(lanes, types, kind + c) + load(lanes, rings, ring + c)
                    message = maximum(zero, load(lanes, x, source + c) + edge)
                    store(out, row + c, load(lanes, out, row + c) + message)


@njit(cache=True, nogil=True)
def message_gradients(x, bonds, tables, grad, grads, shape):
    """Compute the gradient of x and accumulate those of the tables.

    Arguments: addresses of x, bonds, tables (types, rings; T), upstream gradient, gradients of x and both tables; shape
    (B, N, C).
    """
    samples, width, channels = shape
    types, rings, count = tables
    grad_x, grad_types, grad_rings = grads
    lanes, zero = float32x16(), float32x16()
    for j in range(samples * width):
        first, row = j // width * width, j * channels
        for c in range(0, channels, 16):
            store(grad_x, row + c, zero)
        for i in range(width):
            code = np.int64(load_short(bonds, (first + i) * width + j - first)) - 1
            if code >= 0:
                target, kind, ring = (first + i) * channels, code % count * channels, code // count * channels
                for c in range(0, channels, 16):
                    edge = load(lanes, types, kind + c) + load(lanes, rings, ring + c)
                    message_grad = select_ge(zero, load(lanes, x, row + c) + edge, zero, load(lanes, grad, target + c))
                    store(grad_x, row + c, load(lanes, grad_x, row + c) + message_grad)
                    store(grad_types, kind + c, load(lanes, grad_types, kind + c) + message_grad)
                    store(grad_rings, ring + c, load(lanes, grad_rings, ring + c) + message_grad)
