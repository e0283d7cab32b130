"""``P = Softmax(S + E)`` and the bias ``S + E`` of all pairs, from the bias of each path type."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dispatch import operator
from graphslice.program.kernels import attention as kernels
from graphslice.program.layout import ATOMS, N
from graphslice.program.trace import BATCH, Gradient, Trace, Traced, Upstream


@operator
def path_softmax(values: Tensor, path_types: Tensor, lengths: Tensor) -> Tensor:
    """Compute attention weights that depend on the molecular graph alone (Ying et al. 2021, eqs. 6 and 7).

    The numba backend supports float32.

    Args:
        values: ``[W + 1, H]``, floating point, bias ``S + E`` of the graph token (row 0) and of each path type.
        path_types: integer ``[B, N - 1, N - 1]``, path type of each pair of atoms, from 0 to ``W - 1``.
        lengths: integer ``[B]``, number of valid rows, graph token included.

    Returns:
        ``[B, H, N, N]``, dtype of ``values``; row and column 0 belong to the graph token. Padding is 0 and, on the CPU,
        so are weights below 1e-28 of the largest of a row.
    """
    bias = path_bias.reference(values, path_types, lengths)
    valid = torch.arange(bias.shape[-1], device=values.device) < lengths[:, None]
    return torch.softmax(bias, dim=-1).masked_fill(~valid[:, None, :, None], 0)


@operator
def path_bias(values: Tensor, path_types: Tensor, lengths: Tensor) -> Tensor:
    """Expand the bias of path types to all pairs of rows.

    Args:
        values, path_types, lengths: as for :func:`path_softmax`.

    Returns:
        ``[B, H, N, N]``, dtype of ``values``; -inf in the columns of the padding, undefined in its rows.
    """
    index = F.pad(path_types.clamp_min(0).long() + 1, (1, 0, 1, 0))
    bias = F.embedding(index, values).permute(0, 3, 1, 2).contiguous()
    padding = torch.arange(bias.shape[-1], device=values.device) >= lengths[:, None]
    return bias.masked_fill(padding[:, None, None, :], -torch.inf)


def _fits(values: Tensor, path_types: Tensor, lengths: Tensor) -> bool:
    # A path type beyond the values is an error of the reference; the kernels would take the last one.
    return path_types.numel() == 0 or int(path_types.max()) <= len(values) - 2


_INPUTS = {"values": "* H", "path_types": "B A A int32", "lengths": "B int64"}


def _arguments(trace: Trace, values: Any, path_types: Any, lengths: Any) -> tuple[tuple[Traced, ...], tuple]:
    """Return the tensors, and the sizes that are operands of the kernels."""
    values, lengths = trace.tensor(values, None, None), trace.tensor(lengths, BATCH, dtype=torch.int64)
    path_types = trace.tensor(path_types, BATCH, ATOMS, ATOMS, dtype=torch.int32)
    return (values, path_types, lengths), (*values.shape, N)


@path_softmax.kernels(**_INPUTS, fits=_fits)
def _softmax_rule(trace: Trace, values: Any, path_types: Any, lengths: Any) -> Traced:
    tensors, sizes = _arguments(trace, values, path_types, lengths)
    out = trace.new((BATCH, sizes[1], N, N))
    trace.forward(kernels.path_softmax, *tensors, out, *sizes)
    trace.backward(kernels.path_softmax_gradient, *tensors[1:], out, Upstream(out), Gradient(tensors[0]), *sizes)
    return out


@path_bias.kernels(**_INPUTS, fits=_fits)
def _bias_rule(trace: Trace, values: Any, path_types: Any, lengths: Any) -> Traced:
    tensors, sizes = _arguments(trace, values, path_types, lengths)
    out = trace.new((BATCH, sizes[1], N, N))
    trace.forward(kernels.path_bias, *tensors, out, *sizes)
    trace.backward(kernels.path_bias_gradient, *tensors[1:], Upstream(out), Gradient(tensors[0]), *sizes)
    return out
