"""Sort every channel of a padded batch over its valid rows.

:func:`column_sort` is one function with several backends. ``torch`` is the reference and works on any
device. ``numba`` is for float32, float16 and bfloat16 on the CPU: a sorting network, whose
exchanges do not depend on the values, takes a contiguous row of channels at a time. ``triton`` is for
the same dtypes on a GPU, up to 4,096 rows: see :mod:`graphslice.ops.triton_sort`.
"""

from __future__ import annotations

import os
from types import ModuleType

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.simd.lanes import address_of, higher, hold, ints16, load, longs8, lower, store
from graphslice.ops.threads import over_parts

try:  # only where it can run: importing Triton takes a second
    if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
        raise ImportError
    from graphslice.ops import triton_sort as _KERNELS
except ImportError:
    _KERNELS = None

BACKENDS = ("torch", "numba", "triton")


def column_sort(
    x: Tensor, lengths: Tensor | None = None, order: str | Tensor = "ascending", *, backend: str | None = None
) -> Tensor:
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
        backend: one of :data:`BACKENDS`; the fastest for the device and dtype when not given.

    Returns:
        ``[B, N, C]``, the dtype of ``x``.

    Raises:
        ValueError: for another order or backend, or a backend that does not know the device or dtype.
    """
    if isinstance(order, str) and order not in ("ascending", "descending"):
        raise ValueError(f"order is 'ascending', 'descending' or a boolean tensor, not {order!r}")
    able = _able(x)
    if backend is None:
        backend = able[0]
    if backend not in able:
        raise ValueError(
            f"backend {backend!r} does not sort {x.shape[1]} rows of {x.dtype} on {x.device.type}: {able} do"
        )
    if lengths is None:
        lengths = torch.full((x.shape[0],), x.shape[1], device=x.device)
    if isinstance(order, str):
        order = torch.full((x.shape[2],), order == "descending", device=x.device)
    if torch.is_grad_enabled() and x.requires_grad:
        return _sort_with_rows(x, lengths, order, backend)[0]
    return _sort(x, lengths, order, backend)


def _able(x: Tensor) -> list[str]:
    """The backends that sort such a tensor, the fastest first."""
    able = ["torch"]
    if x.device.type == "cpu" and x.dtype in _FAST_DTYPES:
        able.insert(0, "numba")
    kernels = triton_kernels(x.device)
    if kernels and x.dtype in _FAST_DTYPES and x.shape[1] <= kernels.MOST_ROWS:
        able.insert(0 if x.is_cuda else len(able), "triton")
    return able


def triton_kernels(device: torch.device) -> ModuleType | None:
    """:mod:`graphslice.ops.triton_sort`, if it runs on a device: a GPU, or a CPU in Triton's interpreter."""
    return _KERNELS if _KERNELS and (device.type == "cuda" or _KERNELS.INTERPRETED) else None


@torch.library.custom_op("graphslice::column_sort", mutates_args=())
def _sort(x: Tensor, lengths: Tensor, descending: Tensor, backend: str) -> Tensor:
    """The sorted values."""
    if backend == "numba":
        return _numba_sort(x, lengths, descending, None)
    if backend == "triton":
        return triton_kernels(x.device).sort(x, lengths, descending, x.new_empty(x.shape, dtype=_index_dtype(x)))
    return _torch_sort(x, lengths, descending)[0]


@_sort.register_fake
def _(x, lengths, descending, backend):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("graphslice::column_sort_with_rows", mutates_args=())
def _sort_with_rows(x: Tensor, lengths: Tensor, descending: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """The sorted values, and which row each came from."""
    if backend == "numba":
        rows = x.new_empty(x.shape, dtype=_index_dtype(x))
        return _numba_sort(x, lengths, descending, rows), rows
    if backend == "triton":
        rows = x.new_empty(x.shape, dtype=_index_dtype(x))
        return triton_kernels(x.device).sort(x, lengths, descending, rows), rows
    return _torch_sort(x, lengths, descending)


@_sort_with_rows.register_fake
def _(x, lengths, descending, backend):
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(x.shape, dtype=_index_dtype(x))


@torch.library.custom_op("graphslice::column_unsort", mutates_args=())
def _unsort(grad: Tensor, rows: Tensor, backend: str) -> Tensor:
    """The inverse permutation of every channel."""
    grad = grad.contiguous()
    result = torch.empty_like(grad)
    if backend != "numba":
        return result.scatter_(1, rows.long(), grad)
    grad_bits, result_bits = _bits(grad), _bits(result)
    over_parts(lambda begin, end: unsort(grad_bits, rows.numpy(), result_bits, begin, end), len(grad), grad.numel())
    return result


@_unsort.register_fake
def _(grad, rows, backend):
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def _remember(ctx, inputs, output):
    ctx.backend = inputs[3]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx, grad, _):
    rows = ctx.saved_tensors[0]
    return None if grad is None else _unsort(grad, rows, ctx.backend), None, None, None


_sort_with_rows.register_autograd(_backward, setup_context=_remember)


def _index_dtype(x: Tensor) -> torch.dtype:
    """The smallest that numbers the rows."""
    return torch.uint8 if x.shape[1] <= 256 else torch.int32


# --- torch ----------------------------------------------------------------------------------------


def _torch_sort(x: Tensor, lengths: Tensor, descending: Tensor) -> tuple[Tensor, Tensor]:
    valid = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, :, None]
    rows = torch.where(descending, _torch_order(x, valid, True), _torch_order(x, valid, False))
    # The padding stays where it is.
    rows = torch.where(valid, rows, torch.arange(x.shape[1], device=x.device)[:, None])
    return x.gather(1, rows), rows.to(_index_dtype(x))


def _torch_order(x: Tensor, valid: Tensor, descending: bool) -> Tensor:
    # The last value of either order; a stable sort puts the padding behind its equals.
    key = x.masked_fill(~valid, -torch.inf if descending else torch.nan)
    return torch.sort(key, dim=1, descending=descending, stable=True).indices


# --- numba ----------------------------------------------------------------------------------------

_FAST_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


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
    # Channels that a network sorts at a time: few enough that all their rows stay in a near cache.
    block = 256 if x.shape[1] <= 32 else 128 if x.shape[1] <= 128 else 64

    def kernel(begin: int, end: int) -> None:
        if rows is None:
            sort_values(bits, sizes, flip, out_bits, block, begin, end)
        else:
            sort_with_rows(bits, sizes, flip, out_bits, rows.numpy(), block, begin, end)

    over_parts(kernel, x.shape[0], x.numel() * x.shape[1])
    return out.to(x.dtype)


def sort_arguments(out: Tensor, lengths: Tensor, descending: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For :func:`sort_values`: the bits of the result, -1 for a channel that descends, and the lengths within it."""
    flip = descending.numpy().astype(np.int32) * np.int32(-1)
    # Compiled code checks no bounds.
    return _bits(out), flip, lengths.numpy().astype(np.int64).clip(0, out.shape[1])


@njit(cache=True, inline="always")
def _to_key(bits):
    """An integer that is ordered as the float is; nan the largest, -0.0 equal to 0.0."""
    magnitude = bits & np.int32(0x7FFFFFFF)
    bits = np.int32(0x7FFFFFFF) if magnitude > np.int32(0x7F800000) else bits
    bits = np.int32(0) if magnitude == 0 else bits
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@njit(cache=True, inline="always")
def _from_key(key):
    return key ^ ((key >> np.int32(31)) & np.int32(0x7FFFFFFF))


# The compiler makes vector instructions of a loop over slices that come as arguments; of a loop over
# rows of one array it does not, since it cannot tell that they do not overlap.


@njit(cache=True)
def _read(bits, flip, keys):
    for c in range(len(bits)):
        keys[c] = _to_key(bits[c]) ^ flip[c]


@njit(cache=True)
def _write(keys, flip, bits):
    for c in range(len(bits)):
        bits[c] = _from_key(keys[c] ^ flip[c])


@njit(cache=True)
def _read_with_row(bits, flip, row, keys):
    for c in range(len(bits)):
        keys[c] = (np.int64(_to_key(bits[c]) ^ flip[c]) << np.int64(32)) | row


@njit(cache=True)
def _write_with_row(keys, flip, bits, rows):
    for c in range(len(bits)):
        bits[c] = _from_key(np.int32(keys[c] >> np.int64(32)) ^ flip[c])
    for c in range(len(bits)):
        rows[c] = keys[c] & np.int64(0xFFFFFFFF)


@njit(cache=True)
def _network(like, keys, rows, width, channels):
    """Batcher's merge exchange (Knuth, The Art of Computer Programming 3, algorithm 5.2.2M).

    ``keys`` is their address, the rows ``width`` apart; ``like`` are lanes that divide ``width``.
    """
    count = len(like)
    half = 1
    while 2 * half < rows:
        half *= 2
    p = half if rows > 1 else 0
    while p > 0:
        q, r, d = half, 0, p
        while True:
            for i in range(rows - d):
                if i & p == r:
                    one, other = i * width, (i + d) * width
                    for c in range(0, channels, count):
                        x, y = load(like, keys, one + c), load(like, keys, other + c)
                        store(keys, one + c, lower(x, y))
                        store(keys, other + c, higher(x, y))
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1


@njit(cache=True, nogil=True)
def sort_values(bits, lengths, flip, out, block, begin, end):
    """Sort samples ``begin`` to ``end`` of ``int32 [B, N, C]``, the bits of floats; ``block`` channels at a time."""
    width, channels = bits.shape[1:]
    keys = np.empty((width, block), np.int32)
    at = address_of(keys)
    for b in range(begin, end):
        rows = lengths[b]
        for first in range(0, channels, block):
            last = min(first + block, channels)
            for i in range(rows):
                _read(bits[b, i, first:last], flip[first:last], keys[i, : last - first])
            _network(ints16(), at, rows, block, last - first)
            for i in range(rows):
                _write(keys[i, : last - first], flip[first:last], out[b, i, first:last])
        out[b, rows:] = bits[b, rows:]
    hold(keys)


@njit(cache=True, nogil=True)
def sort_with_rows(bits, lengths, flip, out, found, block, begin, end):
    """:func:`sort_values`, and in ``found`` the row that each value came from."""
    width, channels = bits.shape[1:]
    # The row behind the value: no two are equal, so the network is stable.
    keys = np.empty((width, block), np.int64)
    at = address_of(keys)
    for b in range(begin, end):
        rows = lengths[b]
        for first in range(0, channels, block):
            last = min(first + block, channels)
            for i in range(rows):
                _read_with_row(bits[b, i, first:last], flip[first:last], np.int64(i), keys[i, : last - first])
            _network(longs8(), at, rows, block, last - first)
            for i in range(rows):
                its = keys[i, : last - first]
                _write_with_row(its, flip[first:last], out[b, i, first:last], found[b, i, first:last])
        out[b, rows:] = bits[b, rows:]
        for i in range(rows, width):
            found[b, i] = i
    hold(keys)


@njit(cache=True, nogil=True)
def unsort(grad, rows, result, begin, end):
    """``result[rows[i]] = grad[i]`` in every channel of samples ``begin`` to ``end``."""
    width, channels = grad.shape[1:]
    for b in range(begin, end):
        for i in range(width):
            for c in range(channels):
                result[b, rows[b, i, c], c] = grad[b, i, c]
