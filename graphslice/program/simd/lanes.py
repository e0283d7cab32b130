"""Explicit SIMD vectors for compiled CPU kernels.

The compiler vectorises a plain loop only if it can prove that the memory does not overlap, and it does not keep vector
sums in registers. Time-critical kernels therefore use vectors explicitly: a ``Lanes`` value holds as many numbers as a
wide register, and LLVM maps it to the registers of the machine.

Memory is accessed by an address, as from ``Tensor.data_ptr()``, and an offset in elements; the call overhead is a tenth
of that of arrays. Nothing checks bounds.
"""

from __future__ import annotations

import operator

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

_ELEMENTS = {"float32": (types.float32, ir.FloatType()), "int32": (types.int32, ir.IntType(32))}
_ELEMENTS["float64"] = (types.float64, ir.DoubleType())


class Lanes(types.Type):
    """Numba type of a vector of ``count`` numbers of one element type."""

    def __init__(self, element: str, count: int) -> None:
        self.element, self.count = element, count
        super().__init__(name=f"Lanes({element}, {count})")

    @property
    def llvm(self) -> ir.VectorType:
        return ir.VectorType(_ELEMENTS[self.element][1], self.count)

    @property
    def scalar(self) -> types.Type:
        return _ELEMENTS[self.element][0]

    @property
    def align(self) -> int:
        return self.scalar.bitwidth // 8


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, lanes) -> None:
        super().__init__(manager, lanes, lanes.llvm)


def _zeros(element: str, count: int):
    lanes = Lanes(element, count)

    @intrinsic
    def zeros(typing):
        return lanes(), lambda context, builder, signature, args: ir.Constant(lanes.llvm, None)

    return zeros


#: ``float32x16()`` and so on are lanes of zeros; they also serve as the argument ``lane_type`` of :func:`load` etc.
float32x16, float32x8 = _zeros("float32", 16), _zeros("float32", 8)
int32x16, float64x8 = _zeros("int32", 16), _zeros("float64", 8)


def _pointer(builder, address, offset, element):
    """Return a pointer to the element at ``offset`` from an address."""
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [offset])


def _lanes_pointer(builder, address, offset, lanes: Lanes):
    return builder.bitcast(_pointer(builder, address, offset, lanes.llvm.element), lanes.llvm.as_pointer())


@intrinsic
def load(typing, lane_type, address, offset):
    """Load the numbers from ``offset`` on, as many as ``lane_type`` has lanes."""

    def generate(context, builder, signature, args):
        return builder.load(_lanes_pointer(builder, *args[1:], lane_type), align=lane_type.align)

    return lane_type(lane_type, types.intp, types.intp), generate


@intrinsic
def store(typing, address, offset, value):
    """Store lanes at ``offset`` and the following elements."""

    def generate(context, builder, signature, args):
        builder.store(args[2], _lanes_pointer(builder, *args[:2], value), align=value.align)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, value), generate


@intrinsic
def transpose_block(typing, lane_type, source, source_columns, target, target_columns):
    """Write the transpose of a square block with as many rows and columns as lanes, a power of 2.

    ``source_columns`` and ``target_columns`` are the row strides of the two matrices, in elements.
    """

    def generate(context, builder, signature, args):
        lanes, (_, source, source_columns, target, target_columns) = signature.args[0], args

        def row(address, columns, i):
            return _lanes_pointer(builder, address, builder.mul(columns, ir.Constant(ir.IntType(64), i)), lanes)

        rows = [builder.load(row(source, source_columns, i), align=lanes.align) for i in range(lanes.count)]
        index = ir.VectorType(ir.IntType(32), lanes.count)
        size = 1
        while size < lanes.count:  # swap neighbouring off-diagonal blocks of this size
            ahead = [lane if not lane & size else lanes.count + lane - size for lane in range(lanes.count)]
            behind = [lane + size if not lane & size else lanes.count + lane for lane in range(lanes.count)]
            for i in range(lanes.count):
                if not i & size:
                    pair = rows[i], rows[i + size]
                    rows[i] = builder.shuffle_vector(*pair, ir.Constant(index, ahead))
                    rows[i + size] = builder.shuffle_vector(*pair, ir.Constant(index, behind))
            size *= 2
        for i, lane_row in enumerate(rows):
            builder.store(lane_row, row(target, target_columns, i), align=lanes.align)
        return context.get_dummy_value()

    return types.void(lane_type, types.intp, types.intp, types.intp, types.intp), generate


def _loader(element: ir.Type, extend: str | None = None):
    @intrinsic
    def load_number(typing, address, offset):
        def generate(context, builder, signature, args):
            loaded = builder.load(_pointer(builder, *args, element))
            return getattr(builder, extend)(loaded, ir.IntType(64)) if extend else loaded

        return (types.int64 if extend else types.float32)(types.intp, types.intp), generate

    return load_number


#: Load the float32 at an offset from an address.
load_float = _loader(ir.FloatType())
#: Load the unsigned byte or the signed 16-bit, 32-bit or 64-bit integer at an offset from an address as int64.
load_byte, load_short = _loader(ir.IntType(8), "zext"), _loader(ir.IntType(16), "sext")
load_int, load_long = _loader(ir.IntType(32), "sext"), _loader(ir.IntType(64), "sext")


@njit(inline="always")
def length_at(lengths, b, width):
    """Return the number of valid rows of sample b, from 0 to N."""
    return min(max(load_long(lengths, b), 0), width)


def float_bits(value: float) -> int:
    """Encode a float32 as an operand of a kernel, a 64-bit integer."""
    return int(np.float32(value).view(np.uint32))


@intrinsic
def as_float(typing, bits):
    """Decode an operand encoded by :func:`float_bits`."""

    def generate(context, builder, signature, args):
        low = builder.trunc(args[0], context.get_value_type(types.int32))
        return builder.bitcast(low, context.get_value_type(types.float32))

    return types.float32(types.intp), generate


@intrinsic
def prefetch(typing, address):
    """Begin to load the cache line of an address that will be read or written; the address may be invalid."""

    def generate(context, builder, signature, args):
        int32 = ir.IntType(32)
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        function = ir.FunctionType(ir.VoidType(), [pointer.type, int32, int32, int32])
        flags = [ir.Constant(int32, flag) for flag in (1, 3, 1)]  # for writing, to the nearest cache, as data
        builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0"), [pointer, *flags])
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic
def store_bytes(typing, address, offset, value):
    """Store the low byte of each lane of integers at ``offset`` and the following bytes."""

    def generate(context, builder, signature, args):
        pointer = _pointer(builder, args[0], args[1], ir.IntType(8))
        byte_lanes = ir.VectorType(ir.IntType(8), value.count)
        builder.store(builder.trunc(args[2], byte_lanes), builder.bitcast(pointer, byte_lanes.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, value), generate


@intrinsic
def interleave(typing, low, high):
    """Combine int32 lanes to float64 lanes with the bits of ``low`` in the lower half; return those of both halves."""
    pair = types.UniTuple(Lanes("float64", low.count // 2), 2)

    def generate(context, builder, signature, args):
        index, halves = ir.VectorType(ir.IntType(32), low.count), []
        for first in (0, low.count // 2):
            order = [first + lane // 2 + lane % 2 * low.count for lane in range(low.count)]
            halves.append(builder.shuffle_vector(*args, ir.Constant(index, order)))
        halves = [builder.bitcast(half, pair.dtype.llvm) for half in halves]
        return context.make_tuple(builder, signature.return_type, halves)

    return pair(low, high), generate


@intrinsic
def deinterleave(typing, first, second):
    """Undo :func:`interleave`: return the lower and the upper half of each float64 lane as int32 lanes."""
    pair = types.UniTuple(Lanes("int32", 2 * first.count), 2)

    def generate(context, builder, signature, args):
        count, lanes = pair.dtype.count, [builder.bitcast(half, pair.dtype.llvm) for half in args]
        index = ir.VectorType(ir.IntType(32), count)
        orders = [ir.Constant(index, list(range(parity, 2 * count, 2))) for parity in (0, 1)]
        halves = [builder.shuffle_vector(*lanes, order) for order in orders]
        return context.make_tuple(builder, signature.return_type, halves)

    return pair(first, second), generate


@intrinsic
def store_scalar(typing, address, offset, value):
    """Store one number in its own type."""

    def generate(context, builder, signature, args):
        builder.store(args[2], _pointer(builder, args[0], args[1], args[2].type))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, value), generate


@intrinsic
def address_of(typing, array):
    """Return the address of a contiguous array, valid until its :func:`keep_alive`; for scratch memory of kernels."""

    def generate(context, builder, signature, args):
        data = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.intp(array), generate


@intrinsic
def keep_alive(typing, array):
    """Keep the memory of an array alive up to this call; use of its address alone does not."""
    return types.void(array), lambda context, builder, signature, args: context.get_dummy_value()


@intrinsic
def splat(typing, lane_type, value):
    """Return ``lane_type`` lanes that all hold ``value``."""

    def generate(context, builder, signature, args):
        value = context.cast(builder, args[1], signature.args[1], lane_type.scalar)
        undefined = ir.Constant(lane_type.llvm, ir.Undefined)
        first = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), lane_type.count), None)
        return builder.shuffle_vector(first, undefined, zeros)

    return lane_type(lane_type, value), generate


@intrinsic
def iota(typing, lane_type):
    """Return the integers 0, 1, 2 ... as ``lane_type`` lanes."""

    def generate(context, builder, signature, args):
        return ir.Constant(lane_type.llvm, list(range(lane_type.count)))

    return lane_type(lane_type), generate


def _operator(operation, integers: str, floats: str | None = None) -> None:
    """Define a Python operator on lanes, element by element."""

    @intrinsic
    def lane_by_lane(typing, a, b):
        def generate(context, builder, signature, args):
            if a.element == "float32":  # allow fused multiply-add
                return getattr(builder, floats)(*args, flags=("contract",))
            return getattr(builder, integers)(*args)

        return a(a, b), generate

    @overload(operation, inline="always")
    def operate(a, b):
        if isinstance(a, Lanes) and a == b:
            return lambda a, b: lane_by_lane(a, b)


_operator(operator.add, "add", "fadd")
_operator(operator.sub, "sub", "fsub")
_operator(operator.mul, "mul", "fmul")
_operator(operator.truediv, "sdiv", "fdiv")
_operator(operator.lshift, "shl")
_operator(operator.xor, "xor")
_operator(operator.and_, "and_")
_operator(operator.rshift, "lshr")


@intrinsic
def reduce_sum(typing, lanes):
    """Return the sum of the lanes of floats."""

    def generate(context, builder, signature, args):
        zero = ir.Constant(ir.FloatType(), 0.0)
        return _reduced(builder, "fadd", lanes, [zero, args[0]], ("reassoc",))

    return lanes.scalar(lanes), generate


@intrinsic
def reduce_max(typing, lanes):
    """Return the maximum of the lanes of floats, none of them nan."""

    def generate(context, builder, signature, args):
        return _reduced(builder, "fmax", lanes, args, ("nnan",))

    return lanes.scalar(lanes), generate


def _reduced(builder, operation: str, lanes: Lanes, args, flags):
    function = ir.FunctionType(ir.FloatType(), [arg.type for arg in args])
    name = f"llvm.vector.reduce.{operation}.v{lanes.count}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), args, fastmath=flags)


@intrinsic
def select_ge(typing, a, b, x, y):
    """Return ``x`` where ``a >= b`` and ``y`` elsewhere, element by element."""

    def generate(context, builder, signature, args):
        compare = builder.fcmp_ordered if a.element == "float32" else builder.icmp_signed
        return builder.select(compare(">=", args[0], args[1]), args[2], args[3])

    return x(a, b, x, y), generate


def _selected(comparison: str):
    @intrinsic
    def selected(typing, a, b):
        def generate(context, builder, signature, args):
            return builder.select(builder.fcmp_ordered(comparison, *args), *args)

        return a(a, b), generate

    return selected


#: Minimum and maximum of two lanes of floats, element by element; the second argument if the first is nan.
minimum, maximum = _selected("<"), _selected(">=")


def exchanges_in_registers(networks: dict[int, list[tuple[int, int]]]):
    """Make ``exchange(lane_type, address, rows)``: comparisons of rows of lanes of floats, none of them nan, that stay
    in registers; ``networks``: for every number of rows the pairs of rows, of which the first gets the minima and the
    second the maxima, in their order."""

    @intrinsic
    def exchange(typing, lane_type, address, rows):
        def generate(context, builder, signature, args):
            end = builder.append_basic_block()
            chosen = builder.switch(args[2], end)
            for count, pairs in networks.items():
                chosen.add_case(ir.Constant(ir.IntType(64), count), block := builder.append_basic_block())
                builder.position_at_end(block)
                _exchange(builder, lane_type, args[1], count, pairs)
                builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        return types.void(lane_type, types.intp, types.intp), generate

    return exchange


def _exchange(builder, lanes: Lanes, address, count: int, pairs: list[tuple[int, int]]) -> None:
    first, align = builder.inttoptr(address, lanes.llvm.as_pointer()), lanes.align
    pointers = [builder.gep(first, [ir.Constant(ir.IntType(64), i)]) for i in range(count)]
    rows = [builder.load(pointer, align=align) for pointer in pointers]
    for low, high in pairs:
        pair, flags = (rows[low], rows[high]), ("nnan", "nsz")
        rows[low] = builder.select(builder.fcmp_ordered("<", *pair, flags=flags), *pair, flags=flags)
        rows[high] = builder.select(builder.fcmp_ordered(">", *pair, flags=flags), *pair, flags=flags)
    for pointer, row in zip(pointers, rows, strict=True):
        builder.store(row, pointer, align=align)


def _bitcast(element: str):
    @intrinsic
    def bitcast(typing, lanes):
        target = Lanes(element, lanes.count)
        return target(lanes), lambda context, builder, signature, args: builder.bitcast(args[0], target.llvm)

    return bitcast


#: Reinterpret the bits of 32-bit lanes as integers or floats.
as_int32, as_float32 = _bitcast("int32"), _bitcast("float32")


@njit(inline="always")
def exp(x):
    """Compute ``e^x`` of lanes of floats to 3 units in the last place; 0 below -64, ``e^88`` above 88, and nan of nan.

    In a softmax, whose largest term is 1, a term below e^-64 does not change the sum. Its products with gradients would
    be denormal numbers, which make a matrix product many times slower.
    """
    argument = x
    x = minimum(maximum(x, splat(x, -64.0)), splat(x, 88.0))
    # Adding 1.5 x 2^23 rounds to an integer and leaves it in the low bits.
    magic = splat(x, 12582912.0)
    shifted = x * splat(x, 1.4426950408889634) + magic
    rounded = shifted - magic
    r = x - rounded * splat(x, 0.693145751953125) - rounded * splat(x, 1.4286068203094172e-06)
    series = splat(x, 1 / 720) * r + splat(x, 1 / 120)
    series = series * r + splat(x, 1 / 24)
    series = series * r + splat(x, 1 / 6)
    series = series * r + splat(x, 0.5)
    series = series * r + splat(x, 1.0)
    series = series * r + splat(x, 1.0)
    bits = as_int32(shifted)
    power = as_float32(as_int32(series) + (bits << splat(bits, 23)))
    zero_or_nan = select_ge(splat(x, -64.0), argument, splat(x, 0.0), argument)
    return select_ge(argument, splat(x, -64.0), power, zero_or_nan)
