"""Column-wise sort of the valid rows of a padded batch.

The CPU kernel is in :mod:`graphslice.ops.simd.sorting_network`, the GPU kernel in :mod:`graphslice.ops.triton_sort`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphslice.ops.dispatch import operator, triton_runs
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.simd.sorting_network import parts_of, sort_values, sort_with_rows, unsort
from graphslice.ops.threads import parallel_for
from graphslice.ops.triton_tiles import DTYPES, MAX_SORT_ROWS, MIN_CAPABILITY, capability

if triton_runs():
    from graphslice.ops import triton_sort


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
    rows = torch.where(descending_channels(x, order), _rows_in_order(x, valid, True), _rows_in_order(x, valid, False))
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
    if not isinstance(order, str):
        return order
    if order not in ("ascending", "descending"):
        raise ValueError(f"order must be 'ascending', 'descending' or a boolean tensor, not {order!r}")
    return torch.full((x.shape[2],), order == "descending", device=x.device)


def sort_arguments_valid(x: Tensor, lengths: Tensor | None = None, order: str | Tensor = "ascending") -> bool:
    """True if there is one length per sample and one order per channel; the kernels do not check shapes."""
    if x.dim() != 3 or not (lengths is None or (lengths.shape == x.shape[:1] and not lengths.is_floating_point())):
        return False
    return isinstance(order, str) or (order.shape == x.shape[2:] and order.dtype == torch.bool)


@column_sort.backend("numba", dtypes=DTYPES, fits=sort_arguments_valid, compiles=True)
def _numba(x: Tensor, lengths: Tensor | None = None, order: str | Tensor = "ascending") -> Tensor:
    lengths, descending = all_lengths(x, lengths), descending_channels(x, order)
    if torch.compiler.is_compiling():
        return _sorted(x, lengths, descending, "numba")
    # Not through torch.library: the first call of a custom operator loads the compiler, which takes longer than
    # predicting a molecule.
    if torch.is_grad_enabled() and x.requires_grad:
        return _NumbaSort.apply(x, lengths, descending)
    return _numba_sort(x, lengths, descending, None)


if triton_runs():

    @column_sort.backend(
        "triton",
        dtypes=DTYPES,
        fits=lambda x, *args, **kwargs: (
            sort_arguments_valid(x, *args, **kwargs)
            and x.shape[1] <= MAX_SORT_ROWS
            and capability(x.device) >= MIN_CAPABILITY
        ),
        compiles=True,
    )
    def _triton(x: Tensor, lengths: Tensor | None = None, order: str | Tensor = "ascending") -> Tensor:
        return _sorted(x, all_lengths(x, lengths), descending_channels(x, order), "triton")


def _sorted(x: Tensor, lengths: Tensor, descending: Tensor, backend: str) -> Tensor:
    if torch.is_grad_enabled() and x.requires_grad:
        return _sort_with_rows(x, lengths, descending, backend)[0]
    return _sort(x, lengths, descending, backend)


@torch.library.custom_op("graphslice::column_sort", mutates_args=())
def _sort(x: Tensor, lengths: Tensor, descending: Tensor, backend: str) -> Tensor:
    """Return the sorted values."""
    if backend == "numba":
        return _numba_sort(x, lengths, descending, None)
    return triton_sort.sort(x, lengths, descending, x.new_empty(x.shape, dtype=_index_dtype(x)))


@_sort.register_fake
def _(x, lengths, descending, backend):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("graphslice::column_sort_with_rows", mutates_args=())
def _sort_with_rows(x: Tensor, lengths: Tensor, descending: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """Return the sorted values and the source row of each."""
    rows = x.new_empty(x.shape, dtype=_index_dtype(x))
    sort = _numba_sort if backend == "numba" else triton_sort.sort
    return sort(x, lengths, descending, rows), rows


@_sort_with_rows.register_fake
def _(x, lengths, descending, backend):
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(x.shape, dtype=_index_dtype(x))


@torch.library.custom_op("graphslice::column_unsort", mutates_args=())
def _unsort(grad: Tensor, rows: Tensor, backend: str) -> Tensor:
    """Apply the inverse permutation to every channel."""
    if backend == "numba":
        return _numba_unsort(grad, rows)
    return torch.empty_like(grad, memory_format=torch.contiguous_format).scatter_(1, rows.long(), grad)


@_unsort.register_fake
def _(grad, rows, backend):
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def _save(ctx, inputs, output):
    ctx.backend = inputs[3]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx, grad, _):
    rows = ctx.saved_tensors[0]
    return None if grad is None else _unsort(grad, rows, ctx.backend), None, None, None


_sort_with_rows.register_autograd(_backward, setup_context=_save)


def _index_dtype(x: Tensor) -> torch.dtype:
    """Return the smallest dtype that holds the row numbers."""
    return torch.uint8 if x.shape[1] <= 256 else torch.int32


# --- numba ----------------------------------------------------------------------------------------


def _bits(x: Tensor) -> np.ndarray:
    """View a tensor as integers of the same size; numpy has no bfloat16."""
    return x.detach().view({2: torch.int16, 4: torch.int32}[x.element_size()]).numpy()


def _numba_sort(x: Tensor, lengths: Tensor, descending: Tensor, rows: Tensor | None) -> Tensor:
    """Return the sorted values; write the source row of each to ``rows`` unless it is None."""
    # Exact: float32 holds every float16 and bfloat16 value.
    values = x.detach().contiguous().float()
    out = torch.empty_like(values)
    bits = _bits(values)
    out_bits, flip, sizes = sort_arguments(out, lengths, descending)
    block = _block(x)

    def kernel(begin: int, end: int) -> None:
        if rows is None:
            sort_values(bits, sizes, flip, out_bits, block, begin, end)
        else:
            sort_with_rows(bits, sizes, flip, out_bits, rows.numpy(), block, begin, end)

    parallel_for(kernel, x.shape[0] * parts_of(x.shape[2], block), x.numel() * x.shape[1])
    return out.to(x.dtype)


def _block(x: Tensor) -> int:
    """Return the number of channels sorted at once: few enough that all their rows stay in the L1 or L2 cache."""
    return 256 if x.shape[1] <= 32 else 128 if x.shape[1] <= 128 else 64


def sort_arguments(out: Tensor, lengths: Tensor, descending: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return arguments of :func:`sort_values`: bits of the result, -1 per descending channel, lengths clipped to N."""
    flip = descending.numpy().astype(np.int32) * np.int32(-1)
    # Clipped, since compiled code does not check bounds.
    return _bits(out), flip, lengths.numpy().astype(np.int64).clip(0, out.shape[1])


def _numba_unsort(grad: Tensor, rows: Tensor) -> Tensor:
    values, rows = grad.contiguous().float(), rows.contiguous()
    result = torch.empty_like(values)
    addresses, wide = tuple(tensor.data_ptr() for tensor in (values, rows, result)), rows.dtype == torch.int32
    shape, block = (values.shape[1], values.shape[2]), _block(values)
    parts = len(values) * parts_of(values.shape[2], block)
    parallel_for(lambda begin, end: unsort(addresses, wide, *shape, block, begin, end), parts, values.numel())
    return result.to(grad.dtype)


class _NumbaSort(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, lengths: Tensor, descending: Tensor) -> Tensor:
        rows = x.new_empty(x.shape, dtype=_index_dtype(x))
        ctx.save_for_backward(rows)
        return _numba_sort(x, lengths, descending, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        return _numba_unsort(grad, ctx.saved_tensors[0]), None, None
