"""``Sort_col(P V)``: on a GPU the product, the dropout on P and the sort in one kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from graphslice.ops.column_sort import column_sort, triton_kernels
from graphslice.ops.map_values import map_values


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
        backend: ``"triton"`` for the kernel, on a GPU and up to 128 rows; ``"torch"`` for one operation
            after the other; whichever is faster when not given.

    Returns:
        ``[B, N, C]``, the dtype of ``v``. Rows beyond ``lengths`` hold nothing of use and have no gradient
        with ``"triton"``.

    Raises:
        ValueError: for a backend that does not know the device, dtype or size.
    """
    kernels = triton_kernels(v.device)
    able = kernels is not None and v.shape[1] <= kernels.MOST_MAPPED and v.dtype in kernels.DTYPES
    if backend not in (None, "torch", "triton") or (backend == "triton" and not able):
        raise ValueError(f"backend {backend!r} does not sort {v.shape[1]} rows of {v.dtype} on {v.device.type}")
    if backend == "torch" or not (able and (v.is_cuda or backend)):
        return column_sort(map_values(maps, v, p), lengths, order)
    if isinstance(order, str):
        order = torch.full((v.shape[2],), order == "descending", device=v.device)
    seed = torch.randint(2**31, (1,), device=v.device) if p else torch.zeros(1, dtype=torch.int64, device=v.device)
    return _map_sort(maps.to(v.dtype), v, lengths, order, seed, p)[0]


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
