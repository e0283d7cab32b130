"""``S + E`` of path types: what the bias of a pair of atoms is made of (Ying et al. 2021, equations 6 and 7)."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from graphslice.feature_dims import UNREACHABLE
from graphslice.ops.dispatch import operator
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.simd.lanes import (
    address_of,
    float32x8,
    int32x16,
    int64x8,
    keep_alive,
    load,
    load_scalar,
    reduce_sum,
    splat,
    store,
    store_scalar,
)


@operator
def path_values(
    token: Tensor,
    spatial: Tensor,
    bond: Tensor,
    matrices: Tensor,
    bond_rows: Tensor,
    distances: Tensor,
    begins: Tensor,
    codes: Tensor,
    shares: Tensor,
) -> Tensor:
    """The bias of the graph token, and of each path type that of its distance and of the bonds on it.

    A bond is the mean of the embeddings of its features, times the matrix of its position on the path; a path has the
    sum of its entries, each times its share.

    Args:
        token: ``[1, H]``, floating point, the bias of all pairs with the graph token.
        spatial: ``[D, H]``: row s + 1 for distance s, the last but one for all that are further, the last for pairs
            that no path joins.
        bond: ``[R, H]``, the embeddings of the features of bonds.
        matrices: ``[M, H, H]``, one for each position on a path.
        bond_rows: int64 ``[T, F]``, the rows of ``bond`` that each bond type has.
        distances: int32 ``[W]``, in bonds.
        begins: int32 ``[W]``, where the entries of each path type begin, ascending from 0.
        codes: int32 ``[K]``, of each entry its position times T, plus its bond type.
        shares: ``[K]``, the dtype of the others.

    Returns:
        ``[W + 1, H]``, the dtype of ``spatial``; row 0 is the token's.
    """
    last = len(spatial) - 1
    rows = torch.where(distances == UNREACHABLE, last, (distances + 1).clamp_max(last - 1))
    table = (F.embedding_bag(bond_rows, bond, mode="mean") @ matrices).flatten(0, 1)
    edges = F.embedding_bag(codes.long(), table, begins.long(), mode="sum", per_sample_weights=shares)
    return torch.cat([token, F.embedding(rows.long(), spatial) + edges])


def _fits(
    token: Tensor,
    spatial: Tensor,
    bond: Tensor,
    matrices: Tensor,
    bond_rows: Tensor,
    distances: Tensor,
    begins: Tensor,
    codes: Tensor,
    shares: Tensor,
) -> bool:
    dims = [tensor.dim() for tensor in (token, spatial, bond, matrices, bond_rows, distances, begins, codes, shares)]
    if dims != [2, 2, 2, 3, 2, 1, 1, 1, 1]:
        return False
    heads, entries = spatial.shape[1], len(codes)
    if not (
        heads % 8 == 0
        and len(spatial) > 1
        and token.shape == (1, heads)
        and bond.shape[1:] == (heads,)
        and matrices.shape[1:] == (heads, heads)
        and distances.dtype == begins.dtype == codes.dtype == torch.int32
        and bond_rows.dtype == torch.int64
        and bond_rows.shape[1] > 0
        and begins.shape == distances.shape
        and shares.shape == codes.shape
    ):
        return False
    given = bond_rows.contiguous(), distances.contiguous(), begins.contiguous(), codes.contiguous()
    bonds = len(matrices) * len(bond_rows)
    return bool(_valid(_addresses(*given), bond_rows.numel(), len(bond), len(distances), entries, bonds))


@path_values.backend("numba", dtypes=(torch.float32,), fits=_fits)
def _numba(
    token: Tensor,
    spatial: Tensor,
    bond: Tensor,
    matrices: Tensor,
    bond_rows: Tensor,
    distances: Tensor,
    begins: Tensor,
    codes: Tensor,
    shares: Tensor,
) -> Tensor:
    learned = tuple(tensor.contiguous() for tensor in (token, spatial, bond, matrices))
    given = tuple(tensor.contiguous() for tensor in (bond_rows, distances, begins, codes, shares))
    if torch.is_grad_enabled():
        return _PathValues.apply(*learned, *given)
    return _forward(learned, given)[0]


def _sizes(learned: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> tuple[int, ...]:
    spatial, matrices, bond_rows, distances, codes = learned[1], learned[3], given[0], given[1], given[3]
    return (*bond_rows.shape, len(matrices), len(spatial), len(distances), len(codes), spatial.shape[1])


def _addresses(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)


def _forward(learned: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The values, and the embeddings ``[T, H]`` of bonds."""
    sizes = _sizes(learned, given)
    out, bonds = (learned[1].new_empty(rows, sizes[-1]) for rows in (len(given[1]) + 1, sizes[0]))
    _values(_addresses(*learned, *given, bonds, out), sizes)
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
        learned, given = tuple(tensors[:4]), tuple(tensors[4:])
        made = [torch.zeros_like(tensor) for tensor in learned]
        grad = grad.contiguous()  # named, so that it lives as long as its address is used
        _gradients(_addresses(grad, *learned, *given, bonds, *made), _sizes(learned, given))
        of_shares = _of_shares(grad, bonds, learned[3], given) if ctx.needs_input_grad[8] else None
        return *made, *[None] * (len(given) - 1), of_shares


def _of_shares(grad: Tensor, bonds: Tensor, matrices: Tensor, given: tuple[Tensor, ...]) -> Tensor:
    _, _, begins, codes, _ = given
    sizes = torch.diff(begins, append=begins.new_tensor([len(codes)]))
    return ((bonds @ matrices).flatten(0, 1)[codes] * grad[1:].repeat_interleave(sizes, dim=0)).sum(dim=1)


@njit(inline="always")
def _short(address, offset):
    return np.int64(load_scalar(int32x16(), address, offset))


@njit(inline="always")
def _row_of(distance, count):
    return count - 1 if distance == UNREACHABLE else min(distance + 1, count - 2)


@njit(inline="always")
def _end(begins, path, paths, entries):
    return _short(begins, path + 1) if path + 1 < paths else entries


@njit(cache=True, nogil=True)
def _valid(addresses, features, rows, paths, entries, bonds):
    """Whether all that is an index names what is there."""
    bond_rows, distances, begins, codes = addresses
    for i in range(features):
        if not 0 <= load_scalar(int64x8(), bond_rows, i) < rows:
            return False
    before = 0
    for w in range(paths):
        first = _short(begins, w)
        if _short(distances, w) < 0 or first < before or (w == 0 and first != 0):
            return False
        before = first
    for e in range(entries):
        if not 0 <= _short(codes, e) < bonds:
            return False
    return before <= entries and (paths > 0 or entries == 0)


@njit(inline="always")
def _table(bonds, matrices, table, types, positions, heads):
    """What each bond type adds at each position."""
    lanes = float32x8()
    for m in range(positions):
        for t in range(types):
            for c in range(0, heads, 8):
                total = float32x8()
                for j in range(heads):
                    factor = splat(lanes, load_scalar(lanes, bonds, t * heads + j))
                    total = total + factor * load(lanes, matrices, (m * heads + j) * heads + c)
                store(table, (m * types + t) * heads + c, total)


@njit(cache=True, nogil=True)
def _values(addresses, sizes):
    token, spatial, bond, matrices, bond_rows, distances, begins, codes, shares, bonds, out = addresses
    types, features, positions, count, paths, entries, heads = sizes
    lanes, scratch = float32x8(), np.empty(types * positions * heads, np.float32)
    table = address_of(scratch)
    for t in range(types):
        for c in range(0, heads, 8):
            total = float32x8()
            for f in range(features):
                total = total + load(lanes, bond, load_scalar(int64x8(), bond_rows, t * features + f) * heads + c)
            store(bonds, t * heads + c, total / splat(lanes, np.float32(features)))
    _table(bonds, matrices, table, types, positions, heads)
    for c in range(0, heads, 8):
        store(out, c, load(lanes, token, c))
    for w in range(paths):
        first, last = _short(begins, w), _end(begins, w, paths, entries)
        distance = _row_of(_short(distances, w), count) * heads
        for c in range(0, heads, 8):
            total = float32x8()
            for e in range(first, last):
                share = splat(lanes, load_scalar(lanes, shares, e))
                total = total + load(lanes, table, _short(codes, e) * heads + c) * share
            store(out, (w + 1) * heads + c, load(lanes, spatial, distance + c) + total)
    keep_alive(scratch)


@njit(cache=True, nogil=True)
def _gradients(addresses, sizes):
    grad, _, _, _, matrices, bond_rows, distances, begins, codes, shares, bonds = addresses[:11]
    of_token, of_spatial, of_bond, of_matrices = addresses[11:]
    types, features, positions, count, paths, entries, heads = sizes
    lanes, scratch = float32x8(), np.zeros(types * positions * heads, np.float32)
    table = address_of(scratch)
    for c in range(0, heads, 8):
        store(of_token, c, load(lanes, grad, c))
    for w in range(paths):
        first, last = _short(begins, w), _end(begins, w, paths, entries)
        distance = _row_of(_short(distances, w), count) * heads
        for c in range(0, heads, 8):
            upstream = load(lanes, grad, (w + 1) * heads + c)
            store(of_spatial, distance + c, load(lanes, of_spatial, distance + c) + upstream)
            for e in range(first, last):
                at = _short(codes, e) * heads + c
                share = splat(lanes, load_scalar(lanes, shares, e))
                store(table, at, load(lanes, table, at) + upstream * share)
    for t in range(types):
        for j in range(heads):
            of_bonds, factor = float32x8(), splat(lanes, load_scalar(lanes, bonds, t * heads + j))
            for m in range(positions):
                for c in range(0, heads, 8):
                    at, upstream = (m * heads + j) * heads + c, load(lanes, table, (m * types + t) * heads + c)
                    store(of_matrices, at, load(lanes, of_matrices, at) + upstream * factor)
                    of_bonds = of_bonds + upstream * load(lanes, matrices, at)
            value = reduce_sum(of_bonds) / np.float32(features)
            for f in range(features):
                at = load_scalar(int64x8(), bond_rows, t * features + f) * heads + j
                store_scalar(of_bond, at, load_scalar(lanes, of_bond, at) + value)
    keep_alive(scratch)
