"""Sort every channel of a padded batch over its valid rows.

The kernel for a CPU is in :mod:`graphslice.ops.simd.sorting_network`, that for a GPU in
:mod:`graphslice.ops.triton_sort`.
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
    """``Sort_col``: each channel of each sample sorted over the sample's rows.

    The implicit map of every channel is a permutation matrix, so the gradient is the inverse
    permutation (Yuan and Xu, Sliceformer, equation 4). Ties keep their order; nan counts as the
    largest value, as in :func:`torch.sort`.

    Args:
        x: ``[B, N, C]``, floating point, N at most 65,536.
        lengths: integer ``[B]``, the number of valid rows of each sample, or None for all N. The
            rows after them stay as they are and take no part.
        order: ``"ascending"``, ``"descending"``, or a boolean ``[C]``: True sorts a channel
            descending.

    Returns:
        ``[B, N, C]``, the dtype of ``x``.

    Raises:
        ValueError: for another order.
    """
    positions = torch.arange(x.shape[1], device=x.device)[:, None]
    valid = positions < all_lengths(x, lengths)[:, None, None]
    rows = torch.where(descending_channels(x, order), _rows_in_order(x, valid, True), _rows_in_order(x, valid, False))
    return x.gather(1, torch.where(valid, rows, positions))  # the padding stays where it is


def _rows_in_order(x: Tensor, valid: Tensor, descending: bool) -> Tensor:
    # The last value of either order; a stable sort puts the padding behind its equals.
    key = x.masked_fill(~valid, -torch.inf if descending else torch.nan)
    return torch.sort(key, dim=1, descending=descending, stable=True).indices


def all_lengths(x: Tensor, lengths: Tensor | None) -> Tensor:
    """``[B]``, N for all where there are none."""
    return torch.full((x.shape[0],), x.shape[1], device=x.device) if lengths is None else lengths


def descending_channels(x: Tensor, order: str | Tensor) -> Tensor:
    """An order as a boolean ``[C]``; raises ValueError as :func:`column_sort`."""
    if not isinstance(order, str):
        return order
    if order not in ("ascending", "descending"):
        raise ValueError(f"order is 'ascending', 'descending' or a boolean tensor, not {order!r}")
    return torch.full((x.shape[2],), order == "descending", device=x.device)


def sort_arguments_valid(x: Tensor, lengths: Tensor | None = None, order: str | Tensor = "ascending") -> bool:
    """Whether there is a length for every sample and an order for every channel: compiled code believes it."""
    if x.dim() != 3 or not (lengths is None or (lengths.shape == x.shape[:1] and not lengths.is_floating_point())):
        return False
    return isinstance(order, str) or (order.shape == x.shape[2:] and order.dtype == torch.bool)


@column_sort.backend("numba", dtypes=DTYPES, fits=sort_arguments_valid, compiles=True)
def _numba(x: Tensor, lengths: Tensor | None = None, order: str | Tensor = "ascending") -> Tensor:
    lengths, descending = all_lengths(x, lengths), descending_channels(x, order)
    if torch.compiler.is_compiling():
        return _sorted(x, lengths, descending, "numba")
    # Past torch.library: calling a custom operator loads the compiler, which takes longer than predicting a molecule.
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
    """The sorted values."""
    if backend == "numba":
        return _numba_sort(x, lengths, descending, None)
    return triton_sort.sort(x, lengths, descending, x.new_empty(x.shape, dtype=_index_dtype(x)))


@_sort.register_fake
def _(x, lengths, descending, backend):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("graphslice::column_sort_with_rows", mutates_args=())
def _sort_with_rows(x: Tensor, lengths: Tensor, descending: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """The sorted values, and which row each came from."""
    rows = x.new_empty(x.shape, dtype=_index_dtype(x))
    sort = _numba_sort if backend == "numba" else triton_sort.sort
    return sort(x, lengths, descending, rows), rows


@_sort_with_rows.register_fake
def _(x, lengths, descending, backend):
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(x.shape, dtype=_index_dtype(x))


@torch.library.custom_op("graphslice::column_unsort", mutates_args=())
def _unsort(grad: Tensor, rows: Tensor, backend: str) -> Tensor:
    """The inverse permutation of every channel."""
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
    """The smallest that numbers the rows."""
    return torch.uint8 if x.shape[1] <= 256 else torch.int32


# --- numba ----------------------------------------------------------------------------------------


def _bits(x: Tensor) -> np.ndarray:
    """The bytes of a tensor as integers of the same size; numpy has no bfloat16."""
    return x.detach().view({2: torch.int16, 4: torch.int32}[x.element_size()]).numpy()


def _numba_sort(x: Tensor, lengths: Tensor, descending: Tensor, rows: Tensor | None) -> Tensor:
    """The sorted values; ``rows`` is filled with where they came from, if given."""
    # Every float16 and bfloat16 is a float32.
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
    """Channels that a network sorts at a time: few enough that all their rows stay in a near cache."""
    return 256 if x.shape[1] <= 32 else 128 if x.shape[1] <= 128 else 64


def sort_arguments(out: Tensor, lengths: Tensor, descending: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For :func:`sort_values`: the bits of the result, -1 for a channel that descends, and the lengths within it."""
    flip = descending.numpy().astype(np.int32) * np.int32(-1)
    # Compiled code checks no bounds.
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
