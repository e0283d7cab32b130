"""Vector registers for compiled CPU kernels.

The compiler turns a plain loop into vector instructions only where it can show that nothing
overlaps, and keeps no sum of several numbers in a register. Kernels that matter say what they want:
a ``Lanes`` value holds as many numbers as a wide register, and LLVM makes of it what the machine has.

Memory is named by an address, as ``Tensor.data_ptr()`` gives it, and an offset in elements: that
costs a call a tenth of what arrays cost. Nothing checks bounds.
"""

from __future__ import annotations

import operator

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

_ELEMENTS = {"float32": (types.float32, ir.FloatType()), "int32": (types.int32, ir.IntType(32))}
_ELEMENTS["int64"] = (types.int64, ir.IntType(64))


class Lanes(types.Type):
    """The numba type of ``count`` numbers of one element type."""

    def __init__(self, element: str, count: int) -> None:
        self.element, self.count = element, count
        super().__init__(name=f"Lanes({element}, {count})")

    @property
    def llvm(self) -> ir.VectorType:
        return ir.VectorType(_ELEMENTS[self.element][1], self.count)

    @property
    def scalar(self) -> types.Type:
        return _ELEMENTS[self.element][0]


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, lanes) -> None:
        super().__init__(manager, lanes, lanes.llvm)


@overload(len)
def _count(lanes):
    if isinstance(lanes, Lanes):
        count = lanes.count
        return lambda lanes: count


def _zeros(element: str, count: int):
    lanes = Lanes(element, count)

    @intrinsic
    def zeros(typing):
        return lanes(), lambda context, builder, signature, args: ir.Constant(lanes.llvm, None)

    return zeros


#: ``floats16()`` and so on: lanes of zeros; also what says to :func:`load` how much to read.
floats16, floats8 = _zeros("float32", 16), _zeros("float32", 8)
ints16, longs8 = _zeros("int32", 16), _zeros("int64", 8)


def _pointer(builder, address, offset, element):
    """To an element ``offset`` places behind an address."""
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [offset])


@intrinsic
def load(typing, like, address, offset):
    """The numbers from ``offset`` on, as many as there are lanes in ``like``."""

    def generate(context, builder, signature, args):
        pointer = _pointer(builder, args[1], args[2], like.llvm.element)
        loaded = builder.load(builder.bitcast(pointer, like.llvm.as_pointer()))
        loaded.align = like.scalar.bitwidth // 8
        return loaded

    return like(like, types.intp, types.intp), generate


@intrinsic
def store(typing, address, offset, value):
    """Write lanes to the place of the number at ``offset`` and those after it."""

    def generate(context, builder, signature, args):
        pointer = _pointer(builder, args[0], args[1], value.llvm.element)
        stored = builder.store(args[2], builder.bitcast(pointer, value.llvm.as_pointer()))
        stored.align = value.scalar.bitwidth // 8
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, value), generate


@intrinsic
def value_at(typing, like, address, offset):
    """The number at ``offset``, of the type that the lanes ``like`` hold."""

    def generate(context, builder, signature, args):
        return builder.load(_pointer(builder, args[1], args[2], like.llvm.element))

    return like.scalar(like, types.intp, types.intp), generate


@intrinsic
def put(typing, address, offset, value):
    """Write one number, of the type it has."""

    def generate(context, builder, signature, args):
        builder.store(args[2], _pointer(builder, args[0], args[1], args[2].type))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, value), generate


@intrinsic
def address_of(typing, array):
    """Where a contiguous array begins: for room that a kernel makes for itself, up to :func:`hold`."""

    def generate(context, builder, signature, args):
        data = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.intp(array), generate


@intrinsic
def hold(typing, array):
    """Keep an array up to here, although only its address was used."""
    return types.void(array), lambda context, builder, signature, args: context.get_dummy_value()


@intrinsic
def spread(typing, like, value):
    """Lanes such as ``like`` that all hold ``value``."""

    def generate(context, builder, signature, args):
        value = context.cast(builder, args[1], signature.args[1], like.scalar)
        nothing = ir.Constant(like.llvm, ir.Undefined)
        one = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), like.count), None))

    return like(like, value), generate


@intrinsic
def numbered(typing, like):
    """The integers 0, 1, 2 ... as lanes such as ``like``."""

    def generate(context, builder, signature, args):
        return ir.Constant(like.llvm, list(range(like.count)))

    return like(like), generate


def _operator(operation, integers: str, floats: str | None = None) -> None:
    """Give lanes an operator of Python's, lane by lane."""

    @intrinsic
    def lane_by_lane(typing, one, other):
        def generate(context, builder, signature, args):
            if one.element == "float32":  # a product and a sum may become one instruction
                return getattr(builder, floats)(*args, flags=("contract",))
            return getattr(builder, integers)(*args)

        return one(one, other), generate

    @overload(operation, inline="always")
    def operate(one, other):
        if isinstance(one, Lanes) and one == other:
            return lambda one, other: lane_by_lane(one, other)


_operator(operator.add, "add", "fadd")
_operator(operator.sub, "sub", "fsub")
_operator(operator.mul, "mul", "fmul")
_operator(operator.truediv, "sdiv", "fdiv")
_operator(operator.lshift, "shl")
_operator(operator.xor, "xor")
_operator(operator.and_, "and_")
_operator(operator.rshift, "lshr")


@intrinsic
def total(typing, lanes):
    """The sum of lanes of floats."""

    def generate(context, builder, signature, args):
        zero = ir.Constant(ir.FloatType(), 0.0)
        return _reduced(builder, "fadd", lanes, [zero, args[0]], ("reassoc",))

    return lanes.scalar(lanes), generate


@intrinsic
def largest(typing, lanes):
    """The largest of lanes of floats, none of them nan."""

    def generate(context, builder, signature, args):
        return _reduced(builder, "fmax", lanes, args, ("nnan",))

    return lanes.scalar(lanes), generate


def _reduced(builder, operation: str, lanes: Lanes, args, flags):
    function = ir.FunctionType(ir.FloatType(), [arg.type for arg in args])
    name = f"llvm.vector.reduce.{operation}.v{lanes.count}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), args, fastmath=flags)


@intrinsic
def where_at_least(typing, one, other, chosen, instead):
    """``chosen`` where ``one >= other``, ``instead`` elsewhere, lane by lane."""

    def generate(context, builder, signature, args):
        compare = builder.fcmp_ordered if one.element == "float32" else builder.icmp_signed
        return builder.select(compare(">=", args[0], args[1]), args[2], args[3])

    return chosen(one, other, chosen, instead), generate


def _chosen(comparison: str):
    @intrinsic
    def chosen(typing, one, other):
        def generate(context, builder, signature, args):
            compare = builder.fcmp_ordered if one.element == "float32" else builder.icmp_signed
            return builder.select(compare(comparison, *args), *args)

        return one(one, other), generate

    return chosen


#: The smaller and the larger of two lanes, lane by lane; of floats the second where one is nan.
lower, higher = _chosen("<"), _chosen(">=")


def _same_bits(element: str):
    @intrinsic
    def same_bits(typing, lanes):
        other = Lanes(element, lanes.count)
        return other(lanes), lambda context, builder, signature, args: builder.bitcast(args[0], other.llvm)

    return same_bits


#: The bits of 32-bit lanes, taken for integers or for floats.
as_ints, as_floats = _same_bits("int32"), _same_bits("float32")


@njit(inline="always")
def exponential(x):
    """``e^x`` of lanes of floats, to 2 units in the last place; 0 below -64, above 88 as for 88.

    Where the largest part is 1, one below e^-64 adds nothing, and its products with gradients would be
    denormal numbers, which make a matrix product many times as slow.
    """
    given = x
    x = lower(higher(x, spread(x, -64.0)), spread(x, 88.0))
    # Adding 1.5 x 2^23 rounds to a whole number, which then stands in the last bits.
    magic = spread(x, 12582912.0)
    shifted = x * spread(x, 1.4426950408889634) + magic
    whole = shifted - magic
    r = x - whole * spread(x, 0.693145751953125) - whole * spread(x, 1.4286068203094172e-06)
    series = spread(x, 1 / 720) * r + spread(x, 1 / 120)
    series = series * r + spread(x, 1 / 24)
    series = series * r + spread(x, 1 / 6)
    series = series * r + spread(x, 0.5)
    series = series * r + spread(x, 1.0)
    series = series * r + spread(x, 1.0)
    bits = as_ints(shifted)
    power = as_floats(as_ints(series) + (bits << spread(bits, 23)))
    return where_at_least(given, spread(x, -64.0), power, spread(x, 0.0))
