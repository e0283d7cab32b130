"""What the atoms that are bonded to an atom tell it over their bonds."""

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
    """For every row i the sum of ``relu(x_j + types_b + rings_r)`` over the rows j that a bond (b, r) joins to it.

    That is the sum of GINE (Hu et al. 2020, as PyTorch Geometric has it). A sum, where ``P V`` averages: it tells how
    many there are.

    Args:
        x: ``[B, N, C]``, floating point.
        bonds: int16 ``[B, N, N]``: 1 + b + T r of the bond between two rows; 0 without one.
        types: ``[T, C]``, the embeddings of the types of bonds, the dtype of ``x``.
        rings: ``[R, C]``, those of the classes of their smallest rings, the dtype of ``x``.

    Returns:
        ``[B, N, C]``, the dtype of ``x``.
    """
    words = (rings[:, None] + types).flatten(0, 1)
    if torch.compiler.is_compiling():  # how many bonds there are, a compiler cannot know
        there = bonds > 0
        messages = F.relu(x[:, None] + F.embedding((bonds.int() - 1).clamp_min(0), words))
        return messages.masked_fill(~there[..., None], 0).sum(dim=2)
    sample, i, j = bonds.nonzero(as_tuple=True)
    width = x.shape[1]
    of_bonds = words.index_select(0, bonds[sample, i, j].long() - 1)
    messages = F.relu(x.flatten(0, 1).index_select(0, sample * width + j) + of_bonds)
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
    found = (torch.empty_like(each, memory_format=torch.contiguous_format) for each in (x, types, rings))
    return tuple(found)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _gradient(ctx, grad):
    of_x, of_types, of_rings = _triton_backward(grad, *ctx.saved_tensors)
    return of_x, None, of_types, of_rings


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
        found = torch.empty_like(x), torch.zeros_like(types), torch.zeros_like(rings)
        tables = types.data_ptr(), rings.data_ptr(), len(types)
        addresses = found[0].data_ptr(), found[1].data_ptr(), found[2].data_ptr()
        message_gradients(x.data_ptr(), bonds.data_ptr(), tables, grad.data_ptr(), addresses, tuple(x.shape))
        return found[0], None, found[1], found[2]


@njit(cache=True, nogil=True)
def add_messages(x, bonds, tables, out, shape):
    """Addresses of x, the bonds, the tables (types, rings, and T) and what is made; B, N, C."""
    samples, width, channels = shape
    types, rings, count = tables
    lanes, zero = float32x16(), float32x16()
    for i in range(samples * width):
        first, row = i // width * width, i * channels
        for c in range(0, channels, 16):
            store(out, row + c, zero)
        for j in range(width):
            word = np.int64(load_short(bonds, i * width + j)) - 1
            if word >= 0:
                source, kind, ring = (first + j) * channels, word % count * channels, word // count * channels
                for c in range(0, channels, 16):
                    edge = load(lanes, types, kind + c) + load(lanes, rings, ring + c)
                    message = maximum(zero, load(lanes, x, source + c) + edge)
                    store(out, row + c, load(lanes, out, row + c) + message)


@njit(cache=True, nogil=True)
def message_gradients(x, bonds, tables, grad, grads, shape):
    """Addresses of x, the bonds, the tables (types, rings, and T), the upstream gradient, and those of x and of the
    tables, to which is added; B, N, C."""
    samples, width, channels = shape
    types, rings, count = tables
    grad_x, grad_types, grad_rings = grads
    lanes, zero = float32x16(), float32x16()
    for j in range(samples * width):
        first, row = j // width * width, j * channels
        for c in range(0, channels, 16):
            store(grad_x, row + c, zero)
        for i in range(width):
            word = np.int64(load_short(bonds, (first + i) * width + j - first)) - 1
            if word >= 0:
                target, kind, ring = (first + i) * channels, word % count * channels, word // count * channels
                for c in range(0, channels, 16):
                    edge = load(lanes, types, kind + c) + load(lanes, rings, ring + c)
                    share = select_ge(zero, load(lanes, x, row + c) + edge, zero, load(lanes, grad, target + c))
                    store(grad_x, row + c, load(lanes, grad_x, row + c) + share)
                    store(grad_types, kind + c, load(lanes, grad_types, kind + c) + share)
                    store(grad_rings, ring + c, load(lanes, grad_rings, ring + c) + share)
