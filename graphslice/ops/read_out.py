"""Readouts: pooling of token features into one vector per molecule."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphslice.ops.column_quantiles import column_quantiles
from graphslice.ops.dispatch import operator
from graphslice.program.kernels import columns, layers
from graphslice.program.layout import N
from graphslice.program.trace import BATCH, Trace, Traced, Upstream

#: Readouts that have kernels, by number; ``quantiles`` has none.
KINDS = ("token", "max", "sum", "mean")
#: Readout that is the sum of the contributions of the atoms.
ATOMWISE = "atomwise"
#: Levels of the readout ``quantiles``.
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@operator
def read_out(x: Tensor, lengths: Tensor, kinds: Sequence[str], contributions: Tensor | None = None) -> Tensor:
    """Pool token features into one vector per molecule.

    The numba backend supports float32 with C a multiple of 16, without ``quantiles``.

    Args:
        x: ``[B, N, C]``, floating point; row 0 is the graph token, the atoms follow.
        lengths: int64 ``[B]``, number of valid rows, at least 2.
        kinds: ``token``, ``max``, ``sum`` and ``mean`` of the atoms, ``[B, C]`` each; ``atomwise``, the sum of the
            contributions of the atoms, ``[B, C]``; or ``quantiles`` (0, 0.25, 0.5, 0.75 and 1 of every channel),
            ``[B, 5 C]``.
        contributions: ``[B, N, C]``, for ``atomwise``; row 0, the graph token, is not read.

    Returns:
        The concatenated readouts.

    Raises:
        ValueError: if a readout is unknown, or ``atomwise`` without contributions.
    """
    if not {*kinds} <= {*KINDS, "quantiles", *([] if contributions is None else [ATOMWISE])}:
        raise ValueError(f"unknown readout, or no contributions: {', '.join(kinds)}")
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
            terms = contributions[:, 1:] if contributions is not None and kind == ATOMWISE else atoms
            total = terms.masked_fill(~mask, 0).sum(dim=1)
            parts.append(total / count if kind == "mean" else total)
    return torch.cat(parts, dim=-1)


@read_out.kernels(x="B N C", lengths="B int64", contributions="B N C")
def _rule(trace: Trace, x, lengths, kinds: Sequence[str], contributions=None) -> Traced:
    known = {*KINDS, *([] if contributions is None else [ATOMWISE])}
    trace.require(len(kinds) > 0 and {*kinds} <= known, f"the readouts {kinds}")
    sources, channels = [x, contributions] if ATOMWISE in kinds else [x], x.shape[2]
    out = trace.new((BATCH, channels * len(kinds)))
    numbers = [KINDS.index("sum" if kind == ATOMWISE else kind) for kind in kinds]
    parts = [(kinds[i] == ATOMWISE, number, i, len(kinds), N, channels) for i, number in enumerate(numbers)]
    for of, *sizes in parts:
        trace.forward(columns.read_out, sources[of], lengths, out, *sizes)

    def gradients() -> None:
        grads = [trace.target(source.value) for source in sources]
        for grad in grads:
            trace.emit_backward(layers.zero, grad, x.value.size)
        for of, *sizes in parts:
            trace.emit_backward(columns.read_out_gradient, sources[of], lengths, Upstream(out), grads[of], *sizes)

    trace.on_backward(gradients, keep=sources)
    return out
