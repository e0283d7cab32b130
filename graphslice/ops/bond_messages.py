"""What the atoms that are bonded to an atom tell it over their bonds."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dispatch import operator
from graphslice.ops.simd.lanes import float32x16, load, load_byte, maximum, select_ge, store


@operator
def bond_messages(x: Tensor, bonds: Tensor, table: Tensor) -> Tensor:
    """For every row i the sum of ``relu(x_j + table_b)`` over the rows j that a bond of type b joins to it.

    That is the sum of GINE (Hu et al. 2020, as PyTorch Geometric has it). A sum, where ``P V`` averages: it tells how
    many there are.

    Args:
        x: ``[B, N, C]``, floating point.
        bonds: uint8 ``[B, N, N]``: 1 + the type of the bond between two rows; 0 without one.
        table: ``[T, C]``, the embeddings of the types of bonds, the dtype of ``x``.

    Returns:
        ``[B, N, C]``, the dtype of ``x``.
    """
    if torch.compiler.is_compiling():  # one kernel, which keeps nothing of a pair
        there = bonds > 0
        messages = F.relu(x[:, None] + F.embedding((bonds.int() - 1).clamp_min(0), table))
        return (messages * there[..., None]).sum(dim=2)
    sample, i, j = bonds.nonzero(as_tuple=True)
    width = x.shape[1]
    types = bonds[sample, i, j].long() - 1
    messages = F.relu(x.flatten(0, 1).index_select(0, sample * width + j) + table.index_select(0, types))
    total = torch.zeros_like(x).flatten(0, 1).index_add(0, sample * width + i, messages)
    return total.view_as(x)


def _fits(x: Tensor, bonds: Tensor, table: Tensor) -> bool:
    if x.dim() != 3 or table.dim() != 2 or bonds.shape != (*x.shape[:2], x.shape[1]) or bonds.dtype != torch.uint8:
        return False
    if x.shape[2] % 16 or table.shape[1] != x.shape[2]:
        return False
    return bonds.numel() == 0 or int(bonds.max()) <= len(table)


@bond_messages.backend("numba", dtypes=(torch.float32,), fits=_fits)
def _numba(x: Tensor, bonds: Tensor, table: Tensor) -> Tensor:
    return _BondMessages.apply(x, bonds, table)


class _BondMessages(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, bonds: Tensor, table: Tensor) -> Tensor:
        x, bonds, table = x.contiguous(), bonds.contiguous(), table.contiguous()
        out = torch.empty_like(x)
        _forward(*(tensor.data_ptr() for tensor in (x, bonds, table, out)), *x.shape)
        ctx.save_for_backward(x, bonds, table)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        x, bonds, table = ctx.saved_tensors
        grad = grad.contiguous()
        grad_x, grad_table = torch.empty_like(x), torch.zeros_like(table)
        addresses = (tensor.data_ptr() for tensor in (x, bonds, table, grad, grad_x, grad_table))
        _backward(*addresses, *x.shape)
        return grad_x, None, grad_table


@njit(cache=True, nogil=True)
def _forward(x, bonds, table, out, samples, width, channels):
    add_messages(x, bonds, table, out, samples, width, channels)


@njit(cache=True, nogil=True)
def _backward(x, bonds, table, grad, grad_x, grad_table, samples, width, channels):
    message_gradients(x, bonds, table, grad, grad_x, grad_table, samples, width, channels)


@njit
def add_messages(x, bonds, table, out, samples, width, channels):
    """Addresses of x, the bonds, the table and what is made; B, N, C."""
    lanes, zero = float32x16(), float32x16()
    for i in range(samples * width):
        first, row = i // width * width, i * channels
        for c in range(0, channels, 16):
            store(out, row + c, zero)
        for j in range(width):
            kind = np.int64(load_byte(bonds, i * width + j)) - 1
            if kind >= 0:
                source, edge = (first + j) * channels, kind * channels
                for c in range(0, channels, 16):
                    message = maximum(zero, load(lanes, x, source + c) + load(lanes, table, edge + c))
                    store(out, row + c, load(lanes, out, row + c) + message)


@njit
def message_gradients(x, bonds, table, grad, grad_x, grad_table, samples, width, channels):
    """Addresses of x, the bonds, the table, the upstream gradient and those of x and of the table, to which is added;
    B, N, C."""
    lanes, zero = float32x16(), float32x16()
    for j in range(samples * width):
        first, row = j // width * width, j * channels
        for c in range(0, channels, 16):
            store(grad_x, row + c, zero)
        for i in range(width):
            kind = np.int64(load_byte(bonds, (first + i) * width + j - first)) - 1
            if kind >= 0:
                target, edge = (first + i) * channels, kind * channels
                for c in range(0, channels, 16):
                    told = load(lanes, x, row + c) + load(lanes, table, edge + c)
                    share = select_ge(zero, told, zero, load(lanes, grad, target + c))
                    store(grad_x, row + c, load(lanes, grad_x, row + c) + share)
                    store(grad_table, edge + c, load(lanes, grad_table, edge + c) + share)
