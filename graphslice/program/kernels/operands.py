"""Access to the operands of kernels, which are 64-bit integers."""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from graphslice.program.simd.lanes import load_long


@njit(inline="always")
def length_at(lengths, b, width):
    """Return the number of valid rows of sample b, from 0 to N."""
    return min(max(load_long(lengths, b), 0), width)


def float_bits(value: float) -> int:
    """Encode a float32 as an operand."""
    return int(np.float32(value).view(np.uint32))


@intrinsic
def as_float(typing, bits):
    """Decode an operand encoded by :func:`float_bits`."""

    def generate(context, builder, signature, args):
        low = builder.trunc(args[0], context.get_value_type(types.int32))
        return builder.bitcast(low, context.get_value_type(types.float32))

    return types.float32(types.intp), generate
