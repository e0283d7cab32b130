"""Triton kernels of the column sort and of its gradient; one thread sorts a column of up to 64 rows in its registers.

Each value becomes an integer with the same order, with its row number in the low bits. These integers are distinct, so
sorting them is stable and also returns the row numbers; the gradient returns to its row by a sort of the row numbers.
Importing this file needs ``triton``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphslice.ops.triton import launch, opaque, sort_tile

# Arguments of both kernels. ``size`` is N C: if Triton knew that it is a multiple of 16, a thread would load several
# columns at once, and threads would exchange values to sort them. C and HEIGHT, N rounded up, are constants: offsets of
# rows then take no registers, and comparisons with rows beyond HEIGHT are left out.
_ARGUMENTS = {"do_not_specialize": ["size", "N"]}


@triton.jit
def _tile(size, N, C: tl.constexpr, HEIGHT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return rows, columns, their number of rows, and offsets of the values of a program's ``[COLUMNS, ROWS]`` tile."""
    rows = tl.arange(0, ROWS)[None, :]
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[:, None]
    at = tl.program_id(0).to(tl.int64) * size + columns + rows * C
    return rows, columns, tl.where(columns < C, N, 0), at


@triton.jit(**_ARGUMENTS)
def _sort_kernel(
    x, lengths, descending, out, origins, size, N,
    C: tl.constexpr, HEIGHT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows, columns, end, at = _tile(size, N, C, HEIGHT, ROWS, COLUMNS)
    length = tl.minimum(tl.load(lengths + tl.program_id(0)), N).to(tl.int32)
    inside, valid = (rows < HEIGHT) & (rows < end), (rows < HEIGHT) & (rows < tl.minimum(end, length))
    values = tl.load(x + at, mask=inside, other=0.0)
    tl.store(out + at, values, mask=inside & ~valid)  # now, as the sort then need not keep them
    # float32 whose order is that of the values: without -0, and with one nan, which integers order behind infinity.
    numbers = values.to(tl.float32) + 0.0
    bits = tl.where(numbers == numbers, numbers, float("nan")).to(tl.int32, bitcast=True)
    flip = 0
    if descending is not None:
        flip = -tl.load(descending + columns, mask=columns < C, other=0).to(tl.int32)
    if x.dtype.element_ty == tl.float32:
        keys = bits ^ ((bits >> 31) & 0x7FFFFFFF) ^ flip
        packed = (tl.where(valid, keys, 0x7FFFFFFF).to(tl.int64) << 32) | rows
        packed = tl.sort(tl.where(rows < HEIGHT, packed, 0x7FFFFFFFFFFFFFFF), dim=1)
        keys = (packed >> 32).to(tl.int32) ^ flip
        bits = keys ^ ((keys >> 31) & 0x7FFFFFFF)
    else:  # the low 13 bits of a widened 16-bit value are 0
        flip = flip & -4096
        keys = bits ^ ((bits >> 31) & 0x7FFFF000)
        packed = tl.where(valid, (keys ^ flip) | rows, 0x7FFFF000 | rows)
        packed = tl.sort(tl.where(rows < HEIGHT, packed, 0x7FFFFFFF), dim=1)
        keys = (packed ^ flip) & -4096
        bits = keys ^ ((keys >> 31) & 0x7FFFF000)
    tl.store(origins + at, (packed & 4095).to(origins.dtype.element_ty), mask=inside)
    tl.store(out + at, bits.to(tl.float32, bitcast=True).to(x.dtype.element_ty), mask=valid)


@triton.jit(**_ARGUMENTS)
def _unsort_kernel(
    grad, origins, out, size, N, C: tl.constexpr, HEIGHT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    rows, _, end, at = _tile(size, N, C, HEIGHT, ROWS, COLUMNS)
    inside = (rows < HEIGHT) & (rows < end)
    values = tl.load(grad + at, mask=inside, other=0.0)
    origin = tl.load(origins + at, mask=inside, other=0)
    if values.dtype == tl.float32:
        packed = (origin.to(tl.int64) << 32) | values.to(tl.uint32, bitcast=True)
        packed = tl.sort(tl.where(inside, packed, 0x7FFFFFFFFFFFFFFF), dim=1)
        tl.store(out + at, packed.to(tl.int32).to(tl.float32, bitcast=True), mask=inside)
    else:
        packed = (origin.to(tl.int32) << 16) | values.to(tl.uint16, bitcast=True)
        packed = tl.sort(tl.where(inside, packed, 0x7FFFFFFF), dim=1)
        tl.store(out + at, packed.to(tl.int16).to(grad.dtype.element_ty, bitcast=True), mask=inside)


def _launch(kernel: object, x: Tensor, *operands: Tensor | None) -> None:
    batch, width, channels = x.shape
    tile = sort_tile(width, channels, x.dtype)
    grid, constants = (batch, triton.cdiv(channels, tile["COLUMNS"])), {"C": channels, **tile}
    launch(kernel, grid, x, *operands, width * channels, width, **constants)


def _sort_outputs(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.uint8 if x.shape[1] <= 256 else torch.int16)


@opaque(_sort_outputs)
def sort(x: Tensor, lengths: Tensor, descending: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sort ``x [B, N, C]``, N at most ``MAX_SORT_ROWS``; return the values and the source row of each. ``descending``:
    bool ``[C]``, or None if no channel is."""
    x, (out, origins) = x.contiguous(), _sort_outputs(x)
    flags = None if descending is None else descending.contiguous().view(torch.int8)
    _launch(_sort_kernel, x, lengths.contiguous(), flags, out, origins)
    return out, origins


@opaque(lambda grad, origins: grad.new_empty(grad.shape))
def unsort(grad: Tensor, origins: Tensor) -> Tensor:
    """Return the gradient ``[B, N, C]`` of the input of :func:`sort`."""
    grad, out = grad.contiguous(), grad.new_empty(grad.shape)
    _launch(_unsort_kernel, grad, origins, out)
    return out
