"""Tile sizes and limits of the Triton kernels; importing this file does not need Triton.

The shared memory of a program stays below 48 KiB, which every GPU provides per block, with all Triton versions that
torch installs, so the limit of the device is never queried. tests/ops/test_triton_compiles.py compiles for several GPU
architectures, without such a GPU, and measures it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

#: Largest number of rows of the column sort and of the fused product and sort.
MAX_SORT_ROWS, MAX_AGGREGATE_ROWS = 4096, 128
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Bytes of shared memory per block that every GPU provides.
SHARED_MEMORY = 48 << 10
#: Oldest supported compute capability (Turing); Triton's compiler aborts for older ones.
MIN_CAPABILITY = 75
# Oldest compute capability with bfloat16 instructions and full 16-bit matrix products (Ampere).
_AMPERE = 80
# Columns, inner and warps of the fastest tiles for 16-bit values on an H100, forward and backward, by number of rows.
_FASTEST_TILES = {
    16: ((32, 16, 1), (32, 16, 1)),
    32: ((32, 16, 1), (16, 32, 2)),
    64: ((16, 16, 1), (16, 64, 2)),
    128: ((32, 16, 2), (16, 64, 4)),
}


class AggregateTile(NamedTuple):
    """Tile of a program of the fused product and sort, forward or backward.

    Attributes:
        rows: rows of a sample, rounded up to a power of two.
        columns: channels of a head that are processed at once.
        inner: rows of V per step of the product (forward), or rows per program (backward).
        in_float32: True if the factors are converted to float32 before the product.
        warps: per program.
    """

    rows: int
    columns: int
    inner: int
    in_float32: bool
    warps: int


def capability(device: torch.device) -> int:
    """Return ten times the compute capability of a GPU; 90 for other devices, on which Triton's interpreter runs."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def supports_dtype(dtype: torch.dtype, capability: int) -> bool:
    """True if kernels with arithmetic support a dtype on a GPU; bfloat16 needs Ampere."""
    return capability >= (_AMPERE if dtype == torch.bfloat16 else MIN_CAPABILITY)


def sort_tile(width: int, channels: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return the rows and columns, powers of two, of a sort of ``width`` rows, at most ``MAX_SORT_ROWS``."""
    rows = _power_of_two(max(2, width))
    # Fewer for float32: with more, Triton 3.2 and 3.3 spill several times as many registers.
    values = 1024 if dtype == torch.float32 else 4096
    return rows, max(1, min(_power_of_two(channels), values // rows, 64))


def aggregate_tile(
    width: int, head_dim: int, dtype: torch.dtype, capability: int, backward: bool = False
) -> AggregateTile:
    """Return the tile for ``Sort_col(P V)`` of ``width <= MAX_AGGREGATE_ROWS`` rows and ``head_dim`` channels."""
    in_float32 = dtype == torch.float32 or capability < _AMPERE
    rows, channels = max(16, _power_of_two(width)), max(16, _power_of_two(head_dim))
    if not in_float32 and rows in _FASTEST_TILES:
        columns, inner, warps = _FASTEST_TILES[rows][backward]
        return AggregateTile(rows, min(channels, columns), inner, in_float32, warps)
    # A float32 packed with its row number takes twice the registers of a packed 16-bit value.
    columns = min(channels, 32, (2048 if dtype == torch.float32 else 4096) // rows)
    return AggregateTile(rows, columns, min(rows, 32 if in_float32 else 64), in_float32, {16: 1, 32: 4}.get(rows, 8))


def _power_of_two(minimum: int) -> int:
    return 1 << (minimum - 1).bit_length()
