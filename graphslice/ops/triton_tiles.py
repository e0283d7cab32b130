"""How the kernels of :mod:`graphslice.ops.triton_sort` cut their work, and what a GPU's kernels take. Needs no Triton.

What a program holds in shared memory stays below the 48 KiB that any card gives to a block, in all the versions of
Triton that torch brings, so that no card is asked how much it has; tests/ops/test_triton_compiles.py compiles for cards
that are not there, and measures it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

#: Rows that the plain sort takes, and those that the sort behind the product takes.
MAX_SORT_ROWS, MAX_AGGREGATE_ROWS = 4096, 128
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: The bytes of shared memory that a block may have on any card.
SHARED_MEMORY = 48 << 10
#: The oldest compute capability that the kernels are for, Turing's: for older ones Triton's compiler aborts.
MIN_CAPABILITY = (7, 5)
# The oldest that has units for products of 16 bits, and instructions for bfloat16 (Ampere).
_AMPERE = (8, 0)


class SortTile(NamedTuple):
    """What a program of the plain sort takes: rows and columns, powers of two."""

    rows: int
    columns: int


class AggregateTile(NamedTuple):
    """What a program of the product and its sort takes.

    Attributes:
        rows: all of a sample, a power of two.
        columns: of a head, at a time.
        inner: rows of V that the forward pass multiplies at a time; rows that a program of the backward pass treats.
        in_float32: whether what is multiplied becomes float32 first.
        warps: of a program.
    """

    rows: int
    columns: int
    inner: int
    in_float32: bool
    warps: int


def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a GPU; of any other device, where Triton's interpreter runs, a recent one."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


# torch.compile calls it and does not trace it: what torch.compiler.assume_constant_result sets, and loads much for it.
capability._dynamo_marked_constant = True  # type: ignore[attr-defined]


def aggregate_fits(width: int, dtype: torch.dtype, capability: tuple[int, int]) -> bool:
    """Whether the kernels of ``Sort_col(P V)`` take a sample."""
    return width <= MAX_AGGREGATE_ROWS and supports_dtype(dtype, capability)


def supports_dtype(dtype: torch.dtype, capability: tuple[int, int]) -> bool:
    """Whether kernels that calculate take a dtype on a GPU; bfloat16 has instructions since Ampere only."""
    return capability >= (_AMPERE if dtype == torch.bfloat16 else MIN_CAPABILITY)


def sort_tile(width: int, channels: int, dtype: torch.dtype) -> SortTile:
    """The tile of a sort of ``width`` rows, at most ``MAX_SORT_ROWS``."""
    rows = _power_of_two(max(2, width))
    # Of float32 fewer: on Triton 3.2 and 3.3 more spill several times as many registers.
    values = 1024 if dtype == torch.float32 else 4096
    return SortTile(rows, max(1, min(_power_of_two(channels), values // rows, 64)))


def aggregate_tile(width: int, head_dim: int, dtype: torch.dtype, capability: tuple[int, int]) -> AggregateTile:
    """The tile of ``Sort_col(P V)`` of ``width`` rows, at most ``MAX_AGGREGATE_ROWS``, and ``head_dim`` channels."""
    in_float32 = dtype == torch.float32 or capability < _AMPERE
    rows = max(16, _power_of_two(width))
    # A float32 and its row take twice the registers of a value of 16 bits and its row.
    columns = min(max(16, _power_of_two(head_dim)), 32, (2048 if dtype == torch.float32 else 4096) // rows)
    return AggregateTile(rows, columns, min(rows, 32 if in_float32 else 64), in_float32, {16: 1, 32: 4}.get(rows, 8))


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()
