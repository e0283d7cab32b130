"""Messages over bonds on a GPU, in Triton: only pairs with a bond are read, and nothing waits for their number.

Importing this file needs ``triton``; with ``TRITON_INTERPRET=1`` in the environment before that, the kernels run on
the CPU, slowly.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Programs that share the rows of the backward pass: each has a table of its own, so that none waits for another and
# sums are in one order. And tables that are added up at a time.
_PROGRAMS, _ROWS = 512, 16


@triton.jit
def _edge(types, rings, word, T, C, columns, there):
    """What is known of a bond: the embeddings of its type and its ring, added."""
    of_type = tl.load(types + word % T * C + columns, mask=there, other=0.0).to(tl.float32)
    return of_type + tl.load(rings + word // T * C + columns, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _messages_kernel(x, bonds, types, rings, out, N, C, T, WORDS, COLUMNS: tl.constexpr):
    """One row, and some of its channels."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < C
    first = row // N * N
    total = tl.zeros((COLUMNS,), tl.float32)
    for j in range(N):
        word = tl.load(bonds + row * N + j).to(tl.int32) - 1
        if (word >= 0) & (word < WORDS):
            message = tl.load(x + (first + j) * C + columns, mask=there, other=0.0).to(tl.float32)
            message += _edge(types, rings, word, T, C, columns, there)
            total += tl.where(message <= 0, 0.0, message)  # nan stays nan
    tl.store(out + row * C + columns, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _gradients_kernel(
    x, bonds, types, rings, grad, grad_x, tables, seen, rows, turns, N, C, T, WORDS, ENTRIES, COLUMNS: tl.constexpr
):
    """Some rows one after the other, which are of the same sample mostly, so that what is read of it is near; and some
    channels: their gradients, and what their bonds add to this program's own table.

    A table holds whatever lay there before, but for the entries that were seen: a program meets few of them.
    """
    program = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < C
    mine = tables + program * ENTRIES * C + columns
    known = seen + (program * tl.num_programs(1) + tl.program_id(1)) * ENTRIES
    for turn in range(turns):
        row = program * turns + turn
        if row < rows:
            first, j = row // N * N, row % N
            value = tl.load(x + row * C + columns, mask=there, other=0.0).to(tl.float32)
            total = tl.zeros((COLUMNS,), tl.float32)
            for i in range(N):
                word = tl.load(bonds + (first + i) * N + j).to(tl.int32) - 1
                if (word >= 0) & (word < WORDS):
                    kind, ring = word % T, T + word // T
                    of_type, of_ring = mine + kind * C, mine + ring * C
                    # All that is read, before anything is written: no two of these wait for each other.
                    share = tl.load(grad + (first + i) * C + columns, mask=there, other=0.0).to(tl.float32)
                    by_type = tl.load(of_type, mask=there, other=0.0)
                    by_ring = tl.load(of_ring, mask=there, other=0.0)
                    by_type = tl.where(tl.load(known + kind) != 0, by_type, 0.0)
                    by_ring = tl.where(tl.load(known + ring) != 0, by_ring, 0.0)
                    message = value + _edge(types, rings, word, T, C, columns, there)
                    share = tl.where(message > 0, share, 0.0)
                    total += share
                    tl.store(of_type, by_type + share, mask=there)
                    tl.store(of_ring, by_ring + share, mask=there)
                    tl.store(known + kind, 1)
                    tl.store(known + ring, 1)
                    tl.debug_barrier()  # the next bond may read what this one wrote
            tl.store(grad_x + row * C + columns, total.to(grad_x.dtype.element_ty), mask=there)


@triton.jit
def _sums_kernel(tables, seen, out, programs, C, ENTRIES, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """An entry, and some channels: those of the tables that have seen it, added up in the order of the programs."""
    entry = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < C
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, programs, ROWS):
        program = (first + tl.arange(0, ROWS)).to(tl.int64)
        known = seen + (program * tl.num_programs(1) + tl.program_id(1)) * ENTRIES + entry
        has = tl.load(known, mask=program < programs, other=0) != 0
        table = tables + (program * ENTRIES + entry)[:, None] * C + columns[None, :]
        total += tl.load(table, mask=has[:, None] & there[None, :], other=0.0)
    tl.store(out + entry.to(tl.int64) * C + columns, tl.sum(total, 0), mask=there)


def _columns(channels: int) -> int:
    return min(128, triton.next_power_of_2(channels))


def bond_messages(x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor) -> Tensor:
    """:func:`graphslice.ops.bond_messages`; words that the tables do not have count as no bond."""
    x, bonds, types, rings = (each.contiguous() for each in (x, bonds, types, rings))
    out = torch.empty_like(x)
    batch, width, channels = x.shape
    columns = _columns(channels)
    if x.numel():
        with torch.cuda.device_of(x):  # Triton starts kernels on the current device, wherever the tensors are
            _messages_kernel[batch * width, triton.cdiv(channels, columns)](
                x,
                bonds,
                types,
                rings,
                out,
                width,
                channels,
                len(types),
                len(types) * len(rings),
                COLUMNS=columns,
                num_warps=1,
            )
    return out


def bond_messages_backward(
    grad: Tensor, x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, of the types and of the rings; the same to the bit each time."""
    grad, x, bonds, types, rings = (each.contiguous() for each in (grad, x, bonds, types, rings))
    grad_x = torch.empty_like(x)
    batch, width, channels = x.shape
    rows, entries, columns = batch * width, len(types) + len(rings), _columns(channels)
    programs, blocks = max(1, min(_PROGRAMS, rows)), triton.cdiv(channels, columns)
    tables = torch.empty(programs, entries, channels, device=x.device)
    seen = torch.zeros(programs, blocks, entries, dtype=torch.int8, device=x.device)
    sums = torch.empty(entries, channels, device=x.device)
    with torch.cuda.device_of(x):
        if x.numel():
            _gradients_kernel[programs, blocks](
                x,
                bonds,
                types,
                rings,
                grad,
                grad_x,
                tables,
                seen,
                rows,
                triton.cdiv(rows, programs),
                width,
                channels,
                len(types),
                len(types) * len(rings),
                entries,
                COLUMNS=columns,
                num_warps=1,
            )
        if channels:
            _sums_kernel[entries, blocks](
                tables, seen, sums, programs, channels, entries, COLUMNS=columns, ROWS=_ROWS, num_warps=4
            )
    # Copies: what an operator gives shares no memory.
    of_types, of_rings = sums[: len(types)].to(types.dtype, copy=True), sums[len(types) :].to(rings.dtype, copy=True)
    return grad_x, of_types, of_rings
