"""How the kernels of programs read their operands: integers of 64 bits, one behind the other."""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

from graphslice.ops.dropout import DropoutKeys
from graphslice.ops.simd.lanes import float32x16, int64x8, load_scalar


@njit(inline="always")
def operand(at, number):
    """The operand of a kernel with this number: of a value or a tensor the address of the first of its samples."""
    return load_scalar(int64x8(), at, number)


@njit(inline="always")
def float_operand(at, number):
    """An operand that :func:`float_bits` made."""
    return load_scalar(float32x16(), at, 2 * number)


def float_bits(value: float) -> int:
    """A float32 as an operand."""
    return int(np.float32(value).view(np.uint32))


@intrinsic
def _pointer(typing, address, kind):
    """An address as :func:`numba.carray` takes it."""

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(kind.dtype)(types.intp, kind), generate


@njit(inline="always")
def floats_at(address, shape):
    """The float32 array of some shape at an address."""
    return carray(_pointer(address, np.float32), shape)


@njit(inline="always")
def ints_at(address, shape):
    """The int32 array of some shape at an address."""
    return carray(_pointer(address, np.int32), shape)


@njit(inline="always")
def bytes_at(address, shape):
    """The uint8 array of some shape at an address."""
    return carray(_pointer(address, np.uint8), shape)


@njit(inline="always")
def keys_at(at, number):
    """Five operands: whether any are dropped, two keys, a threshold, and the scale of those that stay."""
    return DropoutKeys(
        operand(at, number) != 0,
        operand(at, number + 1),
        operand(at, number + 2),
        operand(at, number + 3),
        np.float64(float_operand(at, number + 4)),
    )


@njit(inline="always")
def lengths_at(address, samples, width):
    """``int64 [samples]``: lengths, from 0 to N."""
    lengths = np.empty(samples, np.int64)
    for b in range(samples):
        lengths[b] = min(max(operand(address, b), 0), width)
    return lengths
