"""Attention bias ``S + E`` of path types (Ying et al. 2021, eqs. 6 and 7)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from graphslice.feature_dims import UNREACHABLE
from graphslice.ops.dispatch import operator
from graphslice.program.function import once_differentiable
from graphslice.program.kernels import path_values as kernels


@operator
def path_values(
    token: Tensor,
    spatial: Tensor,
    bond: Tensor,
    matrices: Tensor,
    bond_rows: Tensor,
    distances: Tensor,
    offsets: Tensor,
    codes: Tensor,
    weights: Tensor,
) -> Tensor:
    """Compute the attention bias of the graph token and of each path type.

    The bias of a path type is that of its distance (S) plus the weighted sum of its bond entries (E). An entry is the
    mean embedding of the features of a bond, times the matrix of the position of the bond on the path.

    The numba backend supports float32 with H a multiple of 8.

    Args:
        token: ``[1, H]``, floating point, bias of all pairs with the graph token.
        spatial: ``[D, H]``, bias of distances: row s + 1 for distance s, row D - 2 for all larger distances, row D - 1
            for disconnected pairs.
        bond: ``[R, H]``, embeddings of bond features.
        matrices: ``[M, H, H]``, one for each position on a path.
        bond_rows: int64 ``[T, F]``, the rows of ``bond`` of each bond type.
        distances: int32 ``[W]``, in bonds; ``UNREACHABLE`` for disconnected pairs.
        offsets: int32 ``[W]``, first entry of each path type, ascending from 0.
        codes: int32 ``[K]``, position times T plus bond type of each entry.
        weights: ``[K]``, weight of each entry, of the dtype of the embeddings.

    Returns:
        ``[W + 1, H]``, dtype of ``spatial``; row 0 belongs to the graph token.
    """
    last = len(spatial) - 1
    rows = torch.where(distances == UNREACHABLE, last, (distances + 1).clamp_max(last - 1))
    table = (F.embedding_bag(bond_rows, bond, mode="mean") @ matrices).flatten(0, 1)
    edges = F.embedding_bag(codes.long(), table, offsets.long(), mode="sum", per_sample_weights=weights)
    return torch.cat([token, F.embedding(rows.long(), spatial) + edges])


class _Arguments(NamedTuple):
    """Arguments of the operator: four with gradients, five without."""

    token: Tensor
    spatial: Tensor
    bond: Tensor
    matrices: Tensor
    bond_rows: Tensor
    distances: Tensor
    offsets: Tensor
    codes: Tensor
    weights: Tensor


def _fits(*args: Tensor, **kwargs: Tensor) -> bool:
    a = _Arguments(*args, **kwargs)
    if [tensor.dim() for tensor in a] != [2, 2, 2, 3, 2, 1, 1, 1, 1]:
        return False
    heads, entries = a.spatial.shape[1], len(a.codes)
    if not (
        heads % 8 == 0
        and a.token.dtype == a.spatial.dtype == a.bond.dtype == a.matrices.dtype == a.weights.dtype
        and len(a.spatial) > 1
        and a.token.shape == (1, heads)
        and a.bond.shape[1:] == (heads,)
        and a.matrices.shape[1:] == (heads, heads)
        and a.distances.dtype == a.offsets.dtype == a.codes.dtype == torch.int32
        and a.bond_rows.dtype == torch.int64
        and a.bond_rows.shape[1] > 0
        and a.offsets.shape == a.distances.shape
        and a.weights.shape == a.codes.shape
    ):
        return False
    indices = tuple(tensor.contiguous() for tensor in (a.bond_rows, a.distances, a.offsets, a.codes))
    bonds = len(a.matrices) * len(a.bond_rows)
    addresses = _addresses(*indices)
    return bool(kernels.valid(addresses, a.bond_rows.numel(), len(a.bond), len(a.distances), entries, bonds))


@path_values.backend("numba", dtypes=(torch.float32,), fits=_fits)
def _numba(*args: Tensor, **kwargs: Tensor) -> Tensor:
    a = _Arguments(*(tensor.contiguous() for tensor in _Arguments(*args, **kwargs)))
    return _PathValues.apply(*a) if torch.is_grad_enabled() else _forward(a)[0]


def _sizes(a: _Arguments) -> tuple[int, ...]:
    return (*a.bond_rows.shape, len(a.matrices), len(a.spatial), len(a.distances), len(a.codes), a.spatial.shape[1])


def _addresses(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)


def _forward(a: _Arguments) -> tuple[Tensor, Tensor]:
    """Return the biases and the embeddings ``[T, H]`` of the bond types."""
    sizes = _sizes(a)
    out, bonds = (a.spatial.new_empty(rows, sizes[-1]) for rows in (len(a.distances) + 1, sizes[0]))
    kernels.values(_addresses(*a, bonds, out), sizes)
    return out, bonds


class _PathValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *tensors: Tensor) -> Tensor:
        out, bonds = _forward(_Arguments(*tensors))
        ctx.save_for_backward(*tensors, bonds)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        *tensors, bonds = ctx.saved_tensors
        a = _Arguments(*tensors)
        grads = [torch.zeros_like(tensor) for tensor in a[:4]]
        grad = grad.contiguous()  # a variable, so that the memory lives as long as its address is used
        kernels.gradients(_addresses(grad, *a, bonds, *grads), _sizes(a))
        return *grads, *[None] * 4, _weights_gradient(grad, bonds, a) if ctx.needs_input_grad[8] else None


def _weights_gradient(grad: Tensor, bonds: Tensor, a: _Arguments) -> Tensor:
    sizes = torch.diff(a.offsets, append=a.offsets.new_tensor([len(a.codes)]))
    return ((bonds @ a.matrices).flatten(0, 1)[a.codes] * grad[1:].repeat_interleave(sizes, dim=0)).sum(dim=1)
