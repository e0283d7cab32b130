"""Triton kernels for message passing along bonds.

Only bonded pairs are read, and the host does not wait for the number of bonds. Importing this file needs ``triton``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphslice.ops.triton import launch

# Number of programs in the backward pass, and number of their tables that are summed at once. Each program accumulates
# into a table of its own, so no atomics are needed and the order of summation is fixed.
_PROGRAMS, _ROWS = 512, 16


@triton.jit
def _edge(types, rings, code, T, C, columns, inside):
    """Return the embedding of a bond: that of its type plus that of its ring class."""
    edge = tl.load(types + code % T * C + columns, mask=inside, other=0.0).to(tl.float32)
    return edge + tl.load(rings + code // T * C + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _messages_kernel(x, bonds, types, rings, out, N, C, T, CODES, COLUMNS: tl.constexpr):
    """Compute some channels of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < C
    first = row // N * N
    total = tl.zeros((COLUMNS,), tl.float32)
    for j in range(N):
        code = tl.load(bonds + row * N + j).to(tl.int32) - 1
        if (code >= 0) & (code < CODES):
            message = tl.load(x + (first + j) * C + columns, mask=inside, other=0.0).to(tl.float32)
            message += _edge(types, rings, code, T, C, columns, inside)
            total += tl.where(message <= 0, 0.0, message)  # nan stays nan
    tl.store(out + row * C + columns, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gradients_kernel(
    x, bonds, types, rings, grad, grad_x, tables, seen, rows, rows_per_program, N, C, T, CODES, ENTRIES,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of some channels of consecutive rows, and add those of the embeddings to a program's table.

    Consecutive rows are mostly of the same sample, whose memory then stays in the cache. Tables are not initialised;
    ``seen`` marks the entries that hold values, as a program meets few of them.
    """
    program = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < C
    own = tables + program * ENTRIES * C + columns
    own_seen = seen + (program * tl.num_programs(1) + tl.program_id(1)) * ENTRIES
    for step in range(rows_per_program):
        row = program * rows_per_program + step
        if row < rows:
            first, j = row // N * N, row % N
            value = tl.load(x + row * C + columns, mask=inside, other=0.0).to(tl.float32)
            total = tl.zeros((COLUMNS,), tl.float32)
            for i in range(N):
                code = tl.load(bonds + (first + i) * N + j).to(tl.int32) - 1
                if (code >= 0) & (code < CODES):
                    kind, ring = code % T, T + code // T
                    type_sum, ring_sum = own + kind * C, own + ring * C
                    # All loads come before the stores, so that they do not wait for each other.
                    message_grad = tl.load(grad + (first + i) * C + columns, mask=inside, other=0.0).to(tl.float32)
                    type_value = tl.load(type_sum, mask=inside, other=0.0)
                    ring_value = tl.load(ring_sum, mask=inside, other=0.0)
                    type_value = tl.where(tl.load(own_seen + kind) != 0, type_value, 0.0)
                    ring_value = tl.where(tl.load(own_seen + ring) != 0, ring_value, 0.0)
                    message = value + _edge(types, rings, code, T, C, columns, inside)
                    message_grad = tl.where(message > 0, message_grad, 0.0)
                    total += message_grad
                    tl.store(type_sum, type_value + message_grad, mask=inside)
                    tl.store(ring_sum, ring_value + message_grad, mask=inside)
                    tl.store(own_seen + kind, 1)
                    tl.store(own_seen + ring, 1)
                    tl.debug_barrier()  # the next bond may read the entries written here
            tl.store(grad_x + row * C + columns, total.to(grad_x.dtype.element_ty), mask=inside)


@triton.jit
def _sums_kernel(tables, seen, out, programs, C, ENTRIES, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Sum some channels of one entry over the tables that contain it, in the order of the programs."""
    entry = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < C
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, programs, ROWS):
        program = (first + tl.arange(0, ROWS)).to(tl.int64)
        own_seen = seen + (program * tl.num_programs(1) + tl.program_id(1)) * ENTRIES + entry
        is_seen = tl.load(own_seen, mask=program < programs, other=0) != 0
        table = tables + (program * ENTRIES + entry)[:, None] * C + columns[None, :]
        total += tl.load(table, mask=is_seen[:, None] & inside[None, :], other=0.0)
    tl.store(out + entry.to(tl.int64) * C + columns, tl.sum(total, 0), mask=inside)


def _blocks(channels: int) -> tuple[int, int]:
    """Return the number of channels of a program, and that of programs."""
    columns = min(128, triton.next_power_of_2(channels))
    return columns, triton.cdiv(channels, columns)


def bond_messages(x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor) -> Tensor:
    """Compute :func:`graphslice.ops.bond_messages`; bond codes beyond the tables count as no bond."""
    x, bonds, types, rings = (tensor.contiguous() for tensor in (x, bonds, types, rings))
    out = torch.empty_like(x)
    batch, width, channels = x.shape
    columns, blocks = _blocks(channels)
    sizes = width, channels, len(types), len(types) * len(rings)
    launch(_messages_kernel, (batch * width, blocks), x, bonds, types, rings, out, *sizes, COLUMNS=columns, num_warps=1)
    return out


def bond_messages_backward(
    grad: Tensor, x: Tensor, bonds: Tensor, types: Tensor, rings: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, types and rings; deterministic."""
    grad, x, bonds, types, rings = (tensor.contiguous() for tensor in (grad, x, bonds, types, rings))
    grad_x = torch.empty_like(x)
    batch, width, channels = x.shape
    rows, entries, (columns, blocks) = batch * width, len(types) + len(rings), _blocks(channels)
    programs = min(_PROGRAMS, rows)
    tables = torch.empty(programs, entries, channels, device=x.device)
    seen = torch.zeros(programs, blocks, entries, dtype=torch.int8, device=x.device)
    sums = torch.empty(entries, channels, device=x.device)
    operands = x, bonds, types, rings, grad, grad_x, tables, seen, rows, triton.cdiv(rows, programs)
    sizes = width, channels, len(types), len(types) * len(rings), entries
    launch(_gradients_kernel, (programs, blocks), *operands, *sizes, COLUMNS=columns, num_warps=1)
    tensors, constants = (tables, seen, sums), {"COLUMNS": columns, "ROWS": _ROWS, "num_warps": 4}
    launch(_sums_kernel, (entries, blocks), *tensors, programs, channels, entries, **constants)
    grad_types, grad_rings = sums.split([len(types), len(rings)])
    return grad_x, grad_types.to(types.dtype, copy=True), grad_rings.to(rings.dtype, copy=True)
