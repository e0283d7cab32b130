"""``P = Softmax(S + E)`` and the bias ``S + E`` of all pairs, from the bias of each path type."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from graphslice.ops.dispatch import operator
from graphslice.program.kernels import attention as kernels
from graphslice.program.layout import N
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


@path_softmax.kernels(**_INPUTS, fits=_fits)
def _softmax_rule(trace: Trace, values, path_types, lengths) -> Traced:
    out, sizes = trace.new((BATCH, values.shape[1], N, N)), (*values.shape, N)
    trace.forward(kernels.path_softmax, values, path_types, lengths, out, *sizes)
    operands = path_types, lengths, out, Upstream(out), Gradient(values)
    trace.backward(kernels.path_softmax_gradient, *operands, *sizes)
    return out


@path_bias.kernels(**_INPUTS, fits=_fits)
def _bias_rule(trace: Trace, values, path_types, lengths) -> Traced:
    out, sizes = trace.new((BATCH, values.shape[1], N, N)), (*values.shape, N)
    trace.forward(kernels.path_bias, values, path_types, lengths, out, *sizes)
    trace.backward(kernels.path_bias_gradient, path_types, lengths, Upstream(out), Gradient(values), *sizes)
    return out
