"""Tile sizes of Triton kernels; test_triton_compiles.py measures their shared memory."""

import pytest
import torch

from graphslice.ops import triton_tiles
from graphslice.ops.triton_tiles import aggregate_tile, sort_tile, supports_dtype


def power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


@pytest.mark.parametrize("capability", [75, 80, 89, 90, 120])
@pytest.mark.parametrize("dtype", triton_tiles.DTYPES)
def test_aggregate_tile_holds_sample_and_fits_shared_memory(dtype, capability):
    for width in (1, 2, 16, 17, 32, 33, 64, 65, triton_tiles.MAX_AGGREGATE_ROWS):
        for head_dim in (1, 8, 24, 33, 96, 256):
            for backward in (False, True):
                tile = aggregate_tile(width, head_dim, dtype, capability, backward)
                rows, columns, inner, in_float32, warps = tile
                assert rows >= width and all(map(power_of_two, (rows, columns, inner, warps)))
                assert inner >= 16 and columns >= 16 and rows % inner == 0  # requirement of tl.dot
                # Backward holds INNER rows of P, and all rows of the gradient and of V.
                assert rows * (inner + 2 * columns) * (4 if in_float32 else 2) <= triton_tiles.SHARED_MEMORY, tile


def test_turing_multiplies_in_float32_and_does_not_support_bfloat16():
    half, bf16 = torch.float16, torch.bfloat16
    assert [aggregate_tile(20, 24, half, capability).in_float32 for capability in (75, 85)] == [True, False]
    assert [supports_dtype(half, capability) for capability in (70, 75, 80)] == [False, True, True]
    assert [supports_dtype(bf16, capability) for capability in (70, 75, 80)] == [False, False, True]


@pytest.mark.parametrize("dtype", triton_tiles.DTYPES)
def test_sort_tile_fits_registers(dtype):
    for width in (1, 2, 3, 20, 128, 1000, triton_tiles.MAX_SORT_ROWS):
        for channels in (1, 24, 768):
            rows, columns = sort_tile(width, channels, dtype)
            assert rows >= width and power_of_two(rows) and power_of_two(columns)
            values = rows * columns * (8 if dtype == torch.float32 else 4)
            assert values <= (8 if dtype == torch.float32 else 16) << 10 or columns == 1
