"""Readouts: pooling of token features into one vector per molecule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphslice.ops.column_quantiles import column_quantiles
from graphslice.ops.dispatch import operator
from graphslice.program.kernels import elementwise, pooling
from graphslice.program.layout import N
from graphslice.program.trace import BATCH, Trace, Traced, Upstream

#: Readouts that have kernels, by number; ``quantiles`` has none.
KINDS = ("token", "max", "sum", "mean")
#: Levels of the readout ``quantiles``.
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@operator
def read_out(x: Tensor, lengths: Tensor, kinds: Sequence[str]) -> Tensor:
    """Pool token features into one vector per molecule.

    The numba backend supports float32 with C a multiple of 16, without ``quantiles``.

    Args:
        x: ``[B, N, C]``, floating point; row 0 is the graph token, the atoms follow.
        lengths: int64 ``[B]``, number of valid rows.
        kinds: ``token``, ``max``, ``sum`` and ``mean`` of the atoms, ``[B, C]`` each, or ``quantiles`` (0, 0.25, 0.5,
            0.75 and 1 of every channel), ``[B, 5 C]``.

    Returns:
        The concatenated readouts.
    """
    atoms, count = x[:, 1:], (lengths - 1)[:, None]
    mask = (torch.arange(atoms.shape[1], device=x.device) < count)[:, :, None]
    parts = []
    for kind in kinds:
        if kind == "token":
            parts.append(x[:, 0])
        elif kind == "max":
            parts.append(atoms.masked_fill(~mask, -torch.inf).amax(dim=1))
        elif kind == "quantiles":
            q = torch.tensor(QUANTILES, device=x.device)[:, None]
            parts.append(column_quantiles(atoms, count[:, 0], q).flatten(1))
        else:
            total = atoms.masked_fill(~mask, 0).sum(dim=1)
            parts.append(total if kind == "sum" else total / count)
    return torch.cat(parts, dim=-1)


@read_out.kernels(x="B N C", lengths="B int64")
def _rule(trace: Trace, x: Any, lengths: Any, kinds: Sequence[str]) -> Traced:
    x, rows, channels = trace.activations(x)
    lengths = trace.tensor(lengths, BATCH, dtype=torch.int64)
    trace.require(rows == N and len(kinds) > 0 and set(kinds) <= set(KINDS), f"the readouts {kinds}")
    out = trace.new((BATCH, channels * len(kinds)))
    sizes = [(KINDS.index(kind), place, len(kinds), N, channels) for place, kind in enumerate(kinds)]
    for of_kind in sizes:
        trace.forward(pooling.read_out, x, lengths, out, *of_kind)

    def gradients() -> None:
        grad_x = trace.target(x.value)
        trace.emit_backward(elementwise.zero, grad_x, x.value.size)
        for of_kind in sizes:
            trace.emit_backward(pooling.read_out_gradient, x, lengths, Upstream(out), grad_x, *of_kind)

    trace.on_backward(gradients, keep=[x])
    return out
