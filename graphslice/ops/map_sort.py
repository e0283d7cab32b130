"""``Sort_col(P V)``: the product, the dropout on P and the sort of a sample while it is in the nearest cache."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.column_sort import (
    column_sort,
    sort_arguments,
    sort_values,
    sort_with_rows,
    triton_kernels,
    unsort,
)
from graphslice.ops.dropout import NO_KEYS, draw_keys
from graphslice.ops.map_values import gradients_of_samples, map_values, product_of_samples
from graphslice.ops.simd.lanes import address_of, hold
from graphslice.ops.threads import over_parts


def map_sort(
    maps: Tensor,
    v: Tensor,
    lengths: Tensor,
    order: str | Tensor = "ascending",
    p: float = 0.0,
    *,
    backend: str | None = None,
) -> Tensor:
    """``Sort_col(dropout(P) V)`` for every sample and head (Sliceformer, eq. 4, for graphs).

    Args:
        maps: ``[B, H, N, N]``, P.
        v: ``[B, N, C]``; head h owns channels ``h C / H`` to ``(h + 1) C / H``.
        lengths: integer ``[B]``, the number of valid rows of each sample.
        order: as for :func:`~graphslice.ops.column_sort`.
        p: probability of the dropout on P.
        backend: ``"triton"`` for the kernel on a GPU, up to 128 rows; ``"numba"`` for that on a CPU, in
            float32; ``"torch"`` for one operation after the other; the fastest when not given.

    Returns:
        ``[B, N, C]``, the dtype of ``v``. Rows beyond ``lengths`` hold nothing of use.

    Raises:
        ValueError: for a backend that does not know the device, dtype or size.
    """
    able = _able(maps, v)
    backend = backend or able[0]
    if backend not in able:
        raise ValueError(f"backend {backend!r} does not sort {v.shape[1]} rows of {v.dtype} on {v.device.type}")
    if backend == "torch":
        return column_sort(map_values(maps, v, p), lengths, order)
    if isinstance(order, str):
        order = torch.full((v.shape[2],), order == "descending", device=v.device)
    if backend == "numba":
        keys = draw_keys(p) if p else None
        if torch.is_grad_enabled():
            return _MapSort.apply(maps, v, lengths, order, keys)
        return _sorted(maps, v, lengths, order, keys, None)
    seed = torch.randint(2**31, (1,), device=v.device) if p else torch.zeros(1, dtype=torch.int64, device=v.device)
    return _map_sort(maps.to(v.dtype), v, lengths, order, seed, p)[0]


def _able(maps: Tensor, v: Tensor) -> list[str]:
    """The backends that take such tensors, the fastest first."""
    able = ["torch"]
    own = v.shape[2] // maps.shape[1]
    on_cpu = v.device.type == "cpu" and v.dtype == maps.dtype == torch.float32
    if on_cpu and own >= 8 and v.shape[1] <= _MOST_ROWS and v.numel() and not torch.compiler.is_compiling():
        able.insert(0, "numba")
    kernels = triton_kernels(v.device)
    if kernels and v.shape[1] <= kernels.MOST_MAPPED and v.dtype in kernels.DTYPES:
        able.insert(0 if v.is_cuda else len(able), "triton")
    return able


# --- triton ---------------------------------------------------------------------------------------


@torch.library.custom_op("graphslice::map_sort", mutates_args=())
def _map_sort(
    maps: Tensor, v: Tensor, lengths: Tensor, descending: Tensor, seed: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """The sorted values, and the row that each row went to."""
    return triton_kernels(v.device).map_sort(maps, v, lengths, descending, seed, p)


@_map_sort.register_fake
def _(maps, v, lengths, descending, seed, p):
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    return out, torch.empty_like(out, dtype=torch.uint8)


@torch.library.custom_op("graphslice::map_sort_backward", mutates_args=())
def _map_sort_backward(
    grad: Tensor, maps: Tensor, v: Tensor, lengths: Tensor, seed: Tensor, ranks: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    return triton_kernels(v.device).map_sort_backward(grad, maps, v, lengths, seed, ranks, p)


@_map_sort_backward.register_fake
def _(grad, maps, v, lengths, seed, ranks, p):
    contiguous = torch.contiguous_format
    return torch.empty_like(maps, memory_format=contiguous), torch.empty_like(v, memory_format=contiguous)


def _remember(ctx, inputs, output):
    maps, v, lengths, _, seed, ctx.p = inputs
    ctx.save_for_backward(maps, v, lengths, seed, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gradient(ctx, grad, _):
    if grad is None:
        return (None,) * 6
    maps, v, lengths, seed, ranks = ctx.saved_tensors
    return *_map_sort_backward(grad, maps, v, lengths, seed, ranks, ctx.p), None, None, None, None


_map_sort.register_autograd(_gradient, setup_context=_remember)


# --- numba ----------------------------------------------------------------------------------------

# Beyond these a sample does not stay in a near cache, and a row's number does not fit in a byte.
_MOST_ROWS = 256


def _sorted(
    maps: Tensor, v: Tensor, lengths: Tensor, descending: Tensor, keys: tuple | None, rows: Tensor | None
) -> Tensor:
    """The sorted values; ``rows`` is filled with where they came from, if given."""
    maps, v = maps.contiguous(), v.contiguous()
    out = torch.empty(v.shape)
    bits, flip, sizes = sort_arguments(out, lengths, descending)
    found = np.empty((0, 0, 0), np.uint8) if rows is None else rows.numpy()
    pointers, heads = (maps.data_ptr(), v.data_ptr()), maps.shape[1]

    def kernel(begin: int, end: int) -> None:
        _forward(pointers, heads, sizes, flip, bits, found, keys is not None, keys or NO_KEYS, begin, end)

    over_parts(kernel, len(v), 8 * v.numel())
    return out


class _MapSort(torch.autograd.Function):
    @staticmethod
    def forward(ctx, maps: Tensor, v: Tensor, lengths: Tensor, descending: Tensor, keys: tuple | None) -> Tensor:
        rows = torch.empty(v.shape, dtype=torch.uint8)
        ctx.keys = keys
        ctx.save_for_backward(maps, v, rows)
        return _sorted(maps, v, lengths, descending, keys, rows)

    @staticmethod
    def backward(ctx, grad: Tensor):
        maps, v, rows = ctx.saved_tensors
        maps, v, grad = maps.contiguous(), v.contiguous(), grad.contiguous()
        wanted = ctx.needs_input_grad[0]
        grad_maps, grad_v = torch.empty_like(maps if wanted else maps[:0]), torch.empty_like(v)
        pointers = tuple(t.data_ptr() for t in (maps, v, grad_v, grad_maps))
        arrays, heads = (grad.numpy(), rows.numpy()), maps.shape[1]

        def kernel(begin: int, end: int) -> None:
            _backward(pointers, *arrays, heads, ctx.keys is not None, ctx.keys or NO_KEYS, wanted, begin, end)

        over_parts(kernel, len(v), 16 * v.numel())
        return grad_maps if wanted else None, grad_v, None, None, None


@njit(cache=True, nogil=True)
def _forward(pointers, heads, sizes, flip, out, found, dropped, keys, begin, end):
    maps, v = pointers
    width, channels = out.shape[1:]
    mixed = np.empty((1, width, channels), np.float32)
    bits = mixed.view(np.int32)
    for b in range(begin, end):
        # The product puts sample b where the room for one sample is.
        room = address_of(mixed) - 4 * b * width * channels
        product_of_samples((maps, v, room), heads, width, channels, dropped, keys, b, b + 1)
        if len(found):
            sort_with_rows(bits, sizes[b : b + 1], flip, out[b : b + 1], found[b : b + 1], 256, 0, 1)
        else:
            sort_values(bits, sizes[b : b + 1], flip, out[b : b + 1], 256, 0, 1)
    hold(mixed)


@njit(cache=True, nogil=True)
def _backward(pointers, grad, found, heads, dropped, keys, maps_too, begin, end):
    maps, v, grad_v, grad_maps = pointers
    width, channels = grad.shape[1:]
    unsorted = np.empty((1, width, channels), np.float32)
    for b in range(begin, end):
        unsort(grad[b : b + 1], found[b : b + 1], unsorted, 0, 1)
        room = address_of(unsorted) - 4 * b * width * channels
        gradients_of_samples(
            (maps, v, room, grad_v, grad_maps), heads, width, channels, dropped, keys, maps_too, b, b + 1
        )
    hold(unsorted)
