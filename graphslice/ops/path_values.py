"""Attention bias ``S + E`` of path types (Ying et al. 2021, eqs. 6 and 7)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from graphslice.feature_dims import UNREACHABLE
from graphslice.ops.dispatch import operator
from graphslice.program.function import Shapes, once_differentiable
from graphslice.program.kernels import embedding


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


_INDICES = {"bond_rows": "T F int64", **dict.fromkeys(("distances", "offsets"), "W int32"), "codes": "K int32"}
_SHAPES = Shapes(
    path_values.reference,
    {"token": "1 H", "spatial": "D H", "bond": "R H", "matrices": "M H H", **_INDICES, "weights": "K"},
)


def _fits(*args: Tensor, **kwargs: Tensor) -> bool:
    arguments = _SHAPES.arguments(args, kwargs)
    sizes = None if arguments is None else _SHAPES.sizes(arguments)
    if arguments is None or sizes is None or sizes["H"] % 8 or sizes["D"] < 2 or sizes["F"] < 1:
        return False
    indices = tuple(_SHAPES.prepared(name, arguments[name]) for name in _INDICES)
    types, features, rows, paths, entries, positions = (sizes[letter] for letter in "TFRWKM")
    return bool(
        embedding.path_values_valid(_addresses(*indices), types * features, rows, paths, entries, positions * types)
    )


@path_values.backend("numba", dtypes=(torch.float32,), fits=_fits)
def _numba(*args: Tensor, **kwargs: Tensor) -> Tensor:
    arguments = dict(zip(_SHAPES.names, args, strict=False)) | kwargs
    tensors = [_SHAPES.prepared(name, arguments[name]) for name in _SHAPES.names]
    return _PathValues.apply(*tensors) if torch.is_grad_enabled() else _forward(tensors)[0]


def _sizes(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    _, spatial, _, matrices, bond_rows, distances, _, codes, _ = tensors
    return (*bond_rows.shape, len(matrices), len(spatial), len(distances), len(codes), spatial.shape[1])


def _addresses(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)


def _forward(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the biases and the embeddings ``[T, H]`` of the bond types."""
    types, _, _, _, paths, _, heads = sizes = _sizes(tensors)
    out, bonds = (tensors[0].new_empty(rows, heads) for rows in (paths + 1, types))
    embedding.path_values(_addresses(*tensors, bonds, out), sizes)
    return out, bonds


class _PathValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *tensors: Tensor) -> Tensor:
        out, bonds = _forward(tensors)
        ctx.save_for_backward(*tensors, bonds)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        *tensors, bonds = ctx.saved_tensors
        grads = [torch.zeros_like(tensor) for tensor in tensors[:4]]
        grad = grad.contiguous()  # a variable, so that the memory lives as long as its address is used
        embedding.path_values_gradients(_addresses(grad, *tensors, bonds, *grads), _sizes(tensors))
        return *grads, *[None] * 4, _weights_gradient(grad, bonds, *tensors) if ctx.needs_input_grad[8] else None


def _weights_gradient(grad, bonds, token, spatial, bond, matrices, bond_rows, distances, offsets, codes, weights):
    sizes = torch.diff(offsets, append=offsets.new_tensor([len(codes)]))
    return ((bonds @ matrices).flatten(0, 1)[codes] * grad[1:].repeat_interleave(sizes, dim=0)).sum(dim=1)
