"""Exchange of the maximum of every channel with the value of the first row."""

from __future__ import annotations

import torch
from torch import Tensor

from graphslice.ops.dispatch import operator
from graphslice.program.kernels import columns
from graphslice.program.layout import N
from graphslice.program.simd.lanes import float_bits
from graphslice.program.trace import Gradient, Trace, Traced, Upstream

#: Distances to the maximum, relative to the size of the exchange, between which the weight of a row falls from 1 to 0.
TIE = (1e-3, 0.1)


@operator
def max_exchange(v: Tensor, lengths: Tensor, hard: bool = False) -> Tensor:
    """Exchange the maximum of every channel with the value of the first row (Sliceformer, section 3.3).

    Symmetric molecules have many equal rows, of which a hard exchange chooses one by the order of the atoms or by
    rounding errors. In a soft exchange tied rows share it: row j has a weight w_j that is 1 while its distance to the
    maximum is below ``TIE[0]`` times the size of the exchange and falls linearly to 0 at ``TIE[1]`` times it; the
    weights are normalised to sum to 1. The map is doubly stochastic and continuous in v; without ties it swaps two
    entries. The weights have no gradient, like the indices of a hard exchange.

    Args:
        v: ``[B, N, C]``, floating point.
        lengths: int64 ``[B]``, number of valid rows, at least 1.
        hard: swap two entries, as in the paper; of equal maxima the first counts.

    Returns:
        ``[B, N, C]``, dtype of ``v``; later rows are unchanged.
    """
    first, mask = v[:, :1], torch.arange(v.shape[1], device=v.device) < lengths[:, None]
    if hard:
        largest = v.masked_fill(~mask[:, :, None], -torch.inf).argmax(dim=1, keepdim=True)
        return torch.cat([v.gather(1, largest), v.scatter(1, largest, first)[:, 1:]], dim=1)
    with torch.no_grad():
        others = v.masked_fill(~mask[:, :, None], -torch.inf)
        others[:, 0] = -torch.inf
        largest = others.amax(dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).min)
        exchange = (largest - first).clamp_min(0)  # 0 if the first row already has the maximum
        steepness = 1 / ((TIE[1] - TIE[0]) * exchange).clamp_min(torch.finfo(v.dtype).tiny)
        weight = ((others - largest + TIE[1] * exchange) * steepness).clamp(0, 1)
        weight = weight / weight.sum(dim=1, keepdim=True).clamp_min(1)
    moved = weight * (v[:, :1] - v).masked_fill(~mask[:, :, None], 0)
    return torch.cat([v[:, :1] - moved.sum(dim=1, keepdim=True), (v + moved)[:, 1:]], dim=1)


@max_exchange.kernels(v="B N C", lengths="B int64")
def _rule(trace: Trace, v, lengths, hard: bool = False) -> Traced:
    out, weights, sizes = trace.new(v.shape), trace.new(v.shape), (N, v.shape[2])
    if hard:
        trace.forward(columns.swap_maximum, v, lengths, out, weights, *sizes)
    else:
        trace.forward(columns.max_exchange, v, lengths, out, weights, *sizes, *map(float_bits, TIE))
    trace.backward(columns.max_exchange_gradient, weights, Upstream(out), Gradient(v), *sizes)
    return out
