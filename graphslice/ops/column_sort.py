"""Column-wise sort of the valid rows of a padded batch.

The network of the CPU kernel is in :mod:`graphslice.program.simd.sorting_network`, the GPU kernel in
:mod:`graphslice.ops.triton_sort`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphslice.ops.dispatch import operator
from graphslice.ops.triton import DTYPES, MAX_SORT_ROWS, MIN_CAPABILITY, capability, triton_runs
from graphslice.program.function import once_differentiable
from graphslice.program.kernels import columns
from graphslice.program.layout import ROW_NUMBER, N
from graphslice.program.trace import Gradient, Trace, Traced, Upstream

if triton_runs():
    from graphslice.ops import triton_sort

#: Orders of :func:`column_sort` by name.
ORDERS = ("ascending", "descending")


@operator
def column_sort(x: Tensor, lengths: Tensor | None = None, order: str | Tensor = "ascending") -> Tensor:
    """Sort each channel of each sample over the valid rows (``Sort_col``; Yuan and Xu, Sliceformer, eq. 4).

    The sort applies a permutation matrix to every channel, so the gradient is the inverse permutation. The sort is
    stable, and nan counts as the largest value, as in :func:`torch.sort`.

    Args:
        x: ``[B, N, C]``, floating point, N at most 65,536.
        lengths: integer ``[B]``, number of valid rows of each sample, or None for all N. Later rows are returned
            unchanged.
        order: ``"ascending"``, ``"descending"``, or a boolean ``[C]`` that is True for descending channels.

    Returns:
        ``[B, N, C]``, dtype of ``x``.

    Raises:
        ValueError: for an unknown order.
    """
    positions = torch.arange(x.shape[1], device=x.device)[:, None]
    valid = positions < all_lengths(x, lengths)[:, None, None]
    if isinstance(order, str):
        rows = _rows_in_order(x, valid, _is_descending(order))
    else:
        rows = torch.where(order, _rows_in_order(x, valid, True), _rows_in_order(x, valid, False))
    return x.gather(1, torch.where(valid, rows, positions))  # padding rows stay in place


def _rows_in_order(x: Tensor, valid: Tensor, descending: bool) -> Tensor:
    # Fill the padding with the last value of the order; a stable sort keeps it behind valid rows of that value.
    key = x.masked_fill(~valid, -torch.inf if descending else torch.nan)
    return torch.sort(key, dim=1, descending=descending, stable=True).indices


def all_lengths(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the lengths ``[B]``, which are N for every sample if ``lengths`` is None."""
    return torch.full((x.shape[0],), x.shape[1], device=x.device) if lengths is None else lengths


def descending_channels(x: Tensor, order: str | Tensor) -> Tensor:
    """Convert an order to a boolean ``[C]``; raises ValueError as :func:`column_sort`."""
    return torch.full((x.shape[2],), _is_descending(order), device=x.device) if isinstance(order, str) else order


def _is_descending(order: str) -> bool:
    if order not in ORDERS:
        raise ValueError(f"order must be 'ascending', 'descending' or a boolean tensor, not {order!r}")
    return order == "descending"


def sort_arguments_valid(x: Tensor, lengths: Tensor | None = None, order: str | Tensor = "ascending") -> bool:
    """True if there is one length per sample and one order per channel; the kernels do not check."""
    integers = (torch.int64, torch.int32)
    if x.dim() != 3 or not (lengths is None or (lengths.shape == x.shape[:1] and lengths.dtype in integers)):
        return False
    return isinstance(order, str) or (order.shape == x.shape[2:] and order.dtype == torch.bool)


@column_sort.kernels(x="B N C", lengths="B int64", order="C bool")
def _rule(trace: Trace, x, lengths=None, order="ascending") -> Traced:
    return trace_sort(trace, x, lengths, order, keep_rows=trace.needs_gradients)[0]


def trace_sort(trace: Trace, x, lengths, order, *, keep_rows: bool) -> tuple[Traced, Traced | int]:
    """Append a sort to a trace; return the sorted values and, if wanted, the source row of each, else 0."""
    trace.require(not isinstance(order, str) or order in ORDERS, f"the order {order}")
    descending = ORDERS.index(order) if isinstance(order, str) else order
    out, sizes = trace.new(x.shape), (N, x.shape[2])
    origins = trace.new(x.shape, ROW_NUMBER) if keep_rows else 0
    trace.forward(columns.column_sort, x, 0 if lengths is None else lengths, descending, out, origins, *sizes)
    trace.backward(columns.column_sort_gradient, Upstream(out), origins, Gradient(x), *sizes)
    return out, origins


if triton_runs():

    @column_sort.backend(
        "triton",
        dtypes=DTYPES,
        fits=lambda x, *args, **kwargs: (
            sort_arguments_valid(x, *args, **kwargs)
            and x.shape[1] <= MAX_SORT_ROWS
            and capability(x.device) >= MIN_CAPABILITY
        ),
        traceable=True,
    )
    def _triton(x: Tensor, lengths: Tensor | None = None, order: str | Tensor = "ascending") -> Tensor:
        descending = None if isinstance(order, str) and not _is_descending(order) else descending_channels(x, order)
        return _TritonSort.apply(x, all_lengths(x, lengths), descending)


class _TritonSort(torch.autograd.Function):
    """Column sort; the backward pass applies the inverse permutation to every channel."""

    @staticmethod
    def forward(ctx, x, lengths, descending):
        out, origins = triton_sort.sort(x, lengths, descending)
        ctx.save_for_backward(origins)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return triton_sort.unsort(grad, *ctx.saved_tensors), None, None
