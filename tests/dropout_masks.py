"""Dropout masks of the kernels, computed by numpy."""

import numpy as np


def kept_by_hash(count: int, first: int, second: int, p: float) -> np.ndarray:
    """Return which of ``count`` values are kept: C. Wellons' triple32 of their indices, with two keys."""
    h = np.arange(count, dtype=np.uint32) + np.uint32(first % 2**32)
    for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51)):
        h = (h ^ h >> np.uint32(shift)) * np.uint32(factor)
    h ^= np.uint32(second % 2**32)
    h = (h ^ h >> np.uint32(15)) * np.uint32(0x31848BAB)
    h ^= h >> np.uint32(14)
    return h.view(np.int32) >= round(p * 2**32) - 2**31
