"""Access to the operands of program kernels, which are consecutive 64-bit integers."""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

from graphslice.ops.dropout import DropoutKeys
from graphslice.ops.simd.lanes import float32x16, int64x8, load_scalar


@njit(inline="always")
def operand(at, number):
    """Return an operand by its number; for a value or tensor it is the address of the first sample."""
    return load_scalar(int64x8(), at, number)


@njit(inline="always")
def float_operand(at, number):
    """Return an operand encoded by :func:`float_bits`."""
    return load_scalar(float32x16(), at, 2 * number)


def float_bits(value: float) -> int:
    """Encode a float32 as an operand."""
    return int(np.float32(value).view(np.uint32))


@intrinsic
def _pointer(typing, address, kind):
    """Convert an address to a pointer for :func:`numba.carray`."""

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(kind.dtype)(types.intp, kind), generate


@njit(inline="always")
def floats_at(address, shape):
    """Return the float32 array at an address."""
    return carray(_pointer(address, np.float32), shape)


@njit(inline="always")
def ints_at(address, shape):
    """Return the int32 array at an address."""
    return carray(_pointer(address, np.int32), shape)


@njit(inline="always")
def bytes_at(address, shape):
    """Return the uint8 array at an address."""
    return carray(_pointer(address, np.uint8), shape)


@njit(inline="always")
def keys_at(at, number):
    """Read dropout keys from five operands: active flag, two keys, threshold, scale."""
    return DropoutKeys(
        operand(at, number) != 0,
        operand(at, number + 1),
        operand(at, number + 2),
        operand(at, number + 3),
        np.float64(float_operand(at, number + 4)),
    )


@njit(inline="always")
def lengths_at(address, samples, width):
    """Return the lengths clamped to 0 ... N, int64 ``[samples]``."""
    lengths = np.empty(samples, np.int64)
    for b in range(samples):
        lengths[b] = min(max(operand(address, b), 0), width)
    return lengths
