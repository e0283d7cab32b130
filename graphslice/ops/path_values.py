"""Attention bias ``S + E`` of path types (Ying et al. 2021, eqs. 6 and 7)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from graphslice.feature_dims import UNREACHABLE
from graphslice.ops.dispatch import operator
from graphslice.program.double_backward import once_differentiable
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


def _fits(
    token: Tensor,
    spatial: Tensor,
    bond: Tensor,
    matrices: Tensor,
    bond_rows: Tensor,
    distances: Tensor,
    offsets: Tensor,
    codes: Tensor,
    weights: Tensor,
) -> bool:
    dims = [tensor.dim() for tensor in (token, spatial, bond, matrices, bond_rows, distances, offsets, codes, weights)]
    if dims != [2, 2, 2, 3, 2, 1, 1, 1, 1]:
        return False
    heads, entries = spatial.shape[1], len(codes)
    if not (
        heads % 8 == 0
        and token.dtype == spatial.dtype == bond.dtype == matrices.dtype == weights.dtype
        and len(spatial) > 1
        and token.shape == (1, heads)
        and bond.shape[1:] == (heads,)
        and matrices.shape[1:] == (heads, heads)
        and distances.dtype == offsets.dtype == codes.dtype == torch.int32
        and bond_rows.dtype == torch.int64
        and bond_rows.shape[1] > 0
        and offsets.shape == distances.shape
        and weights.shape == codes.shape
    ):
        return False
    indices = bond_rows.contiguous(), distances.contiguous(), offsets.contiguous(), codes.contiguous()
    bonds = len(matrices) * len(bond_rows)
    return bool(kernels.valid(_addresses(*indices), bond_rows.numel(), len(bond), len(distances), entries, bonds))


@path_values.backend("numba", dtypes=(torch.float32,), fits=_fits)
def _numba(
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
    parameters = tuple(tensor.contiguous() for tensor in (token, spatial, bond, matrices))
    inputs = tuple(tensor.contiguous() for tensor in (bond_rows, distances, offsets, codes, weights))
    if torch.is_grad_enabled():
        return _PathValues.apply(*parameters, *inputs)
    return _forward(parameters, inputs)[0]


def _sizes(parameters: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[int, ...]:
    spatial, matrices, bond_rows, distances, codes = (
        parameters[1],
        parameters[3],
        inputs[0],
        inputs[1],
        inputs[3],
    )
    return (*bond_rows.shape, len(matrices), len(spatial), len(distances), len(codes), spatial.shape[1])


def _addresses(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)


def _forward(parameters: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Return the biases and the embeddings ``[T, H]`` of the bond types."""
    sizes = _sizes(parameters, inputs)
    out, bonds = (parameters[1].new_empty(rows, sizes[-1]) for rows in (len(inputs[1]) + 1, sizes[0]))
    kernels.values(_addresses(*parameters, *inputs, bonds, out), sizes)
    return out, bonds


class _PathValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *tensors: Tensor) -> Tensor:
        out, bonds = _forward(tensors[:4], tensors[4:])
        ctx.save_for_backward(*tensors, bonds)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        *tensors, bonds = ctx.saved_tensors
        parameters, inputs = tuple(tensors[:4]), tuple(tensors[4:])
        grads = [torch.zeros_like(tensor) for tensor in parameters]
        grad = grad.contiguous()  # a variable, so that the memory lives as long as its address is used
        kernels.gradients(_addresses(grad, *parameters, *inputs, bonds, *grads), _sizes(parameters, inputs))
        grad_weights = _weights_gradient(grad, bonds, parameters[3], inputs) if ctx.needs_input_grad[8] else None
        return *grads, *[None] * (len(inputs) - 1), grad_weights


def _weights_gradient(grad: Tensor, bonds: Tensor, matrices: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    _, _, offsets, codes, _ = inputs
    sizes = torch.diff(offsets, append=offsets.new_tensor([len(codes)]))
    return ((bonds @ matrices).flatten(0, 1)[codes] * grad[1:].repeat_interleave(sizes, dim=0)).sum(dim=1)
