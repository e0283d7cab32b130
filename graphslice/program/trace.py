"""Trace functions into programs: run them on symbolic tensors whose operations record kernels.

The operators of :mod:`graphslice.ops` and the functions of torch in :data:`RULES` have a rule each, which appends their
kernels to the trace. Any other function raises NotTraceable. Residual sums and dropout are deferred until they are
used, so that a layer norm after them becomes one kernel with them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from graphslice.program.kernels import layers
from graphslice.program.layout import Argument, Instruction, Kernel, NotTraceable, Operand, Size, Value
from graphslice.program.run import FIRST, GRAD_OUT, OUT, Input, Program
from graphslice.program.simd.lanes import float_bits

#: Rules by function: ``rule(trace, *arguments)`` appends kernels and returns the result.
RULES: dict[Any, Callable[..., Traced]] = {}


class _Batch:
    """The number of samples in symbolic shapes."""

    def __repr__(self) -> str:
        return "B"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            self._unknown()
        return self is other

    def _unknown(self, *_: Any) -> Any:
        raise NotTraceable("the number of samples is unknown")

    __hash__ = object.__hash__
    __index__ = __bool__ = __lt__ = __le__ = __gt__ = __ge__ = _unknown


BATCH = _Batch()


class Traced:
    """Symbolic tensor ``[B, ...]``, the result of a traced operation (float32) or an input of the function; ``value``
    is its array in the program."""

    device, is_cuda = torch.device("cpu"), False

    def __init__(self, trace: Trace, value: Value, dtype: torch.dtype = torch.float32) -> None:
        self.trace, self.value, self.dtype = trace, value, dtype

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The type for ``isinstance``, which a function may ask for."""
        return Tensor

    @property
    def shape(self) -> tuple:
        return self.value.shape if self.value.shared else (BATCH, *self.value.shape)

    def dim(self) -> int:
        return len(self.shape)

    def to(self, dtype: torch.dtype) -> Traced:
        if dtype != torch.float32:
            raise NotTraceable(f"conversion to {dtype}")
        return self

    def contiguous(self) -> Traced:
        return self

    def _unknown(self, *_: Any) -> Any:
        raise NotTraceable("the values of a tensor are unknown, and it is not changed in place")

    __hash__ = object.__hash__
    __len__ = __bool__ = __iter__ = __index__ = __float__ = __getitem__ = __setitem__ = _unknown
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __iadd__ = __isub__ = __imul__ = __itruediv__ = _unknown

    def __getattr__(self, name: str) -> Any:
        raise NotTraceable(f"Tensor.{name}")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple = (), kwargs: Mapping | None = None) -> Any:
        for value in (*args, *(kwargs or {}).values()):
            if isinstance(value, Traced):
                return value.trace.call(function, args, kwargs)
        raise NotTraceable(getattr(function, "__name__", repr(function)))  # a function of a list of tensors

    def __add__(self, other: Any) -> Traced:
        return self.trace.call(torch.add, (self, other))

    def __sub__(self, other: Any) -> Traced:
        return self.trace.call(torch.sub, (self, other))

    def __mul__(self, other: Any) -> Traced:
        return self.trace.call(torch.mul, (self, other))

    def __neg__(self) -> Traced:
        return self.trace.call(torch.mul, (self, -1.0))

    __radd__, __rmul__ = __add__, __mul__


_READS = ("__bool__", "__int__", "__float__", "__complex__", "__index__", "__array__", "__contains__", "__format__")
#: Functions of torch that make Python objects of the values of tensors.
VALUE_READERS = {getattr(Tensor, name) for name in (*_READS, "item", "tolist", "numpy", "equal", "allclose")}
VALUE_READERS |= {torch.equal, torch.allclose, torch.is_nonzero}


class ValuesUnknown(TorchFunctionMode):
    """Mode that raises NotTraceable if the values of real tensors are read, which may differ in the next call."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: Mapping | None = None) -> Any:
        if function in VALUE_READERS:
            raise NotTraceable("the values of parameters and buffers are unknown")
        return function(*args, **(kwargs or {}))


class _Dropped(NamedTuple):
    """Deferred ``dropout(x)``."""

    x: Value
    keys: tuple[Operand, ...]


class _Sum(NamedTuple):
    """Deferred ``a + dropout(b)``."""

    a: Value
    b: Value
    keys: tuple[Operand, ...]


class Upstream(NamedTuple):
    """Operand of a backward kernel: the gradient of a result."""

    of: Traced


class Gradient(NamedTuple):
    """Operand of a backward kernel: where to write the gradient of an argument. If ``onto``, the kernel can add to an
    existing gradient, whose address is the next operand, or 0."""

    of: Traced
    onto: bool = False


class Trace:
    """Instructions of a forward and, if wanted, a backward pass; ``tensors``: parameters and buffers that the function
    may use, with their names, by ``id()``."""

    def __init__(self, *, backward: bool, tensors: Mapping[int, tuple[Tensor, str]] | None = None) -> None:
        self.needs_gradients = backward
        self._tensors = tensors or {}
        self._inputs: list[Input] = []
        self._by_name: dict[str, Traced] = {}
        self._forward: list[Instruction] = []
        self._backward: list[Instruction] = []
        self._callbacks: list[Callable[[], None]] = []
        self._kept: list[Value] = []
        self._gradients: dict[Value, Value] = {}
        self._shared_gradients: set[Value] = set()
        self._unfinished: list[tuple[Value, Value]] = []
        self._places = FIRST
        self._keys: list[int] = []

    # --- for rules ------------------------------------------------------------------------------------------------

    def new(self, shape: Sequence, itemsize: int = 4) -> Traced:
        """Return a new value of a shape ``[B, ...]`` for the result of a kernel."""
        self.require(len(shape) > 0 and shape[0] is BATCH, "a result without samples")
        return Traced(self, Value(tuple(shape[1:]), itemsize))

    def tensor(self, tensor: Any, *dims: Any, dtype: torch.dtype = torch.float32) -> Traced:
        """Return the symbolic tensor of an argument; a real tensor must be a parameter or a buffer: constants that a
        function computes may be other ones in its next call. ``dims`` are the expected sizes, without which the
        shape is not checked: :data:`BATCH` for the number of samples, None for any size that does not depend on the
        batch."""
        if not isinstance(tensor, Traced):
            known = self._tensors.get(id(tensor))
            if known is None or known[0] is not tensor:
                raise NotTraceable("a tensor that is neither a parameter nor a buffer")
            name = known[1]
            in_memory = tensor.is_contiguous() and tensor.device.type == "cpu"
            self.require(in_memory, f"{name} is not contiguous in the memory of the CPU")
            if name not in self._by_name:
                self._by_name[name] = self.input(name, tuple(tensor.shape), tensor.dtype, shared=True)
            tensor = self._by_name[name]
        self.require(tensor.dtype == dtype, f"{tensor.dtype} instead of {dtype}")
        if dims:
            pairs = zip(dims, tensor.shape, strict=False)
            fit = all(n == m if n is not None else isinstance(m, int | Argument) for n, m in pairs)
            self.require(tensor.dim() == len(dims) and fit, f"{tensor.shape} instead of {dims}")
        return tensor

    def activations(self, x: Any) -> tuple[Traced, Size | int, int]:
        """Return a symbolic tensor ``[B, ..., C]``, its number of rows per sample and C, a multiple of 16."""
        x = self.tensor(x)
        fits = not x.value.shared and isinstance(x.shape[-1], int) and x.shape[-1] % 16 == 0
        self.require(fits, f"activations {x.shape}")
        return x, math.prod(x.value.shape[:-1], start=Size(1)), x.shape[-1]

    def require(self, condition: bool, what: str) -> None:
        """Raise NotTraceable, for ``what``, if a condition does not hold."""
        if not condition:
            raise NotTraceable(what)

    def forward(self, kernel: Kernel, *operands: Any) -> None:
        """Append an instruction to the forward pass; a symbolic tensor stands for its address."""
        plain = [operand.value if isinstance(operand, Traced) else operand for operand in operands]
        for operand in plain:
            if isinstance(operand, Value):
                self._materialise(operand)
        self._forward.append((kernel, plain))

    def backward(self, kernel: Kernel, *operands: Any) -> None:
        """Register an instruction of the backward pass, with :class:`Upstream` and :class:`Gradient` operands; all
        other operands are saved by the forward pass."""
        self.on_backward(lambda: self.emit_backward(kernel, *operands), keep=operands)

    def on_backward(self, function: Callable[[], None], keep: Sequence[Any] = ()) -> None:
        """Register a function that emits instructions of the backward pass, and values that it needs."""
        if not self.needs_gradients:
            return
        self._callbacks.append(function)
        for operand in keep:
            value = operand.value if isinstance(operand, Traced) else operand
            if isinstance(value, Value) and value.argument is None and not value.kept:
                value.kept = True
                self._kept.append(value)

    def emit_backward(self, kernel: Kernel, *operands: Any) -> None:
        """Append an instruction to the backward pass; only inside functions passed to :meth:`on_backward`."""
        plain: list[Operand] = []
        for operand in operands:
            if isinstance(operand, Upstream):
                plain.append(self.gradient(operand.of.value))
            elif isinstance(operand, Gradient):
                plain += self._target(operand.of.value, onto=operand.onto)
            else:
                plain.append(operand.value if isinstance(operand, Traced) else operand)
        self._backward.append((kernel, plain))

    def gradient(self, value: Value) -> Value:
        """Return the gradient of a value; 0 if nothing depends on it."""
        if value not in self._gradients:
            self._gradients[value] = Value(value.shape)
            self._backward.append((layers.zero, [self._gradients[value], value.size]))
        return self._gradients[value]

    def target(self, value: Value) -> Value:
        """Return where the next instruction of the backward pass writes a gradient; see :class:`Gradient`."""
        return self._target(value, onto=False)[0]  # type: ignore[return-value]

    def share_gradient(self, value: Value, gradient: Value) -> None:
        """Add an existing gradient to that of a value, as for the summands of a sum."""
        if value in self._gradients:
            self._add_gradient(value, gradient)
        else:
            self._gradients[value] = gradient
            self._shared_gradients.add(gradient)

    def dropout_operands(self, p: float, size: Size) -> tuple[Operand, ...]:
        """Return the operands of a dropout with probability p on values of this size: see ``DropoutKeys``."""
        if not p:
            return 0, 0, 0
        self.require(0 < p < 1, f"dropout with probability {p}")
        first, second = self._new_place(), self._new_place()
        self._keys += [first, second]
        return min(round(p * 2**32), 2**32 - 1), Argument(first, size), Argument(second)

    def call(self, function: Any, args: Sequence, kwargs: Mapping | None = None) -> Any:
        """Call a function on symbolic tensors by its rule."""
        self.require(function in RULES, getattr(function, "__name__", repr(function)))
        return RULES[function](self, *args, **(kwargs or {}))

    def defer(self, shape: Sequence, what: _Dropped | _Sum) -> Traced:
        """Return a value that is computed when it is first used."""
        out = self.new(shape)
        out.value.deferred = what
        return out

    # --- inputs and result ----------------------------------------------------------------------------------------

    def input(
        self, source: int | str, dims: Sequence, dtype: torch.dtype = torch.float32, *, shared: bool = False
    ) -> Traced:
        """Add an input of the function: an argument by position, or a parameter or buffer by name; ``dims``: shape of a
        sample, or of the input itself if it is ``shared`` by all samples, whose first size may then be None, which
        stands for any."""
        shape: Any = tuple(Argument(self._new_place()) if size is None else size for size in dims)
        value = Value(shape, dtype.itemsize, shared=shared)
        step = Size() if shared else value.size * value.itemsize
        value.argument = Argument(self._new_place(), step)
        if dtype == torch.float32 and self.needs_gradients:
            value.gradient = Argument(self._new_place(), step)
        self._inputs.append(Input(value, str(dtype).removeprefix("torch."), source))
        return Traced(self, value, dtype)

    def finish(self, out: Any) -> Program:
        """Return the program that computes ``out``."""
        out = self.tensor(out)
        out = (_multiply(self, out, 1.0) if out.value.argument is not None else out).value
        self._materialise(out)
        if out.kept:  # the caller keeps it
            out.kept = False
            self._kept.remove(out)
        out.argument = Argument(OUT, out.size * 4)
        if self.needs_gradients:
            self.share_gradient(out, Value(out.shape, argument=Argument(GRAD_OUT, out.size * 4)))  # the caller's
            for callback in reversed(self._callbacks):
                callback()
                for value, summand in self._unfinished:
                    self._add_gradient(value, summand)
                self._unfinished.clear()
            # A gradient in the memory of that of another input is copied before the other one is overwritten.
            for value in sorted((value for value, _, _ in self._inputs), key=self._gradient_is_in_scratch):
                self._finish_input_gradient(value)
            written = {
                operand for _, operands in self._backward for operand in operands if isinstance(operand, Argument)
            }
            for value, _, _ in self._inputs:
                if value.shared and value.gradient not in written:  # nothing reads it: it has no gradient, as in torch
                    value.gradient = None
        return Program(self._inputs, self._forward, self._backward, self._kept, self._keys, self._places, out)

    def _gradient_is_in_scratch(self, value: Value) -> bool:
        return value in self._gradients and self._gradients[value].argument is None

    def _finish_input_gradient(self, value: Value) -> None:
        """Copy the gradient of an input with samples to where the caller wants it, if it is elsewhere, or write 0."""
        if value.gradient is None or value.shared:
            return
        target, current = Value(value.shape, argument=value.gradient), self._gradients.get(value)
        if current is None or current.argument != value.gradient:
            self._backward.append((layers.zero, [target, value.size]))
            if current is not None:
                self._backward.append((layers.add, [target, current, target, value.size]))

    # --- gradients and deferred values ---------------------------------------------------------------------------

    def _target(self, value: Value, *, onto: bool) -> list[Operand]:
        if value.shared:
            return [0 if value.gradient is None else value.gradient]
        current = self._gradients.get(value)
        if current is None or (onto and current in self._shared_gradients):
            argument = value.gradient if current is None else None
            self._gradients[value] = Value(value.shape, argument=argument)
            return [self._gradients[value], *([current or 0] if onto else [])]
        if onto:
            return [current, current]
        summand = Value(value.shape)
        self._unfinished.append((value, summand))
        return [summand]

    def _add_gradient(self, value: Value, summand: Value) -> None:
        """Add to the gradient of a value: in place, or to a copy if other values share the gradient."""
        current = self._gradients[value]
        total = Value(value.shape) if current in self._shared_gradients else current
        self._gradients[value] = total
        self._backward.append((layers.add, [current, summand, total, value.size]))

    def _materialise(self, value: Value) -> None:
        what, value.deferred = value.deferred, None
        if isinstance(what, _Dropped):
            x, out = Traced(self, what.x), Traced(self, value)
            self.forward(layers.dropout, x, out, value.size, *what.keys)
            self.backward(layers.dropout, Upstream(out), Gradient(x), value.size, *what.keys)
        elif isinstance(what, _Sum):
            b = what.b
            if what.keys[0]:
                b = Value(b.shape, deferred=_Dropped(b, what.keys))
            self.forward(layers.add, what.a, b, value, value.size)

            def share() -> None:
                self.share_gradient(what.a, self.gradient(value))
                self.share_gradient(b, self.gradient(value))

            self.on_backward(share)

    def _new_place(self) -> int:
        self._places += 1
        return self._places - 1


def rule(*functions: Any) -> Callable[[Callable[..., Traced]], Callable[..., Traced]]:
    """Register the rule of functions of torch (decorator)."""

    def register(function: Callable[..., Traced]) -> Callable[..., Traced]:
        RULES.update(dict.fromkeys(functions, function))
        return function

    return register


@rule(F.linear)
def _linear(trace: Trace, x: Any, weight: Any, bias: Any = None) -> Traced:
    x, rows, inputs = trace.activations(x)
    weight = trace.tensor(weight, None, inputs)
    outputs = weight.shape[0]
    trace.require(outputs % 16 == 0, f"{outputs} channels")
    bias = 0 if bias is None else trace.tensor(bias, outputs)
    out = trace.new((*x.shape[:-1], outputs))
    trace.forward(layers.linear, x, weight, bias, out, rows, inputs, outputs)
    grad_bias = Gradient(bias) if isinstance(bias, Traced) else 0
    grads = Gradient(x, onto=True), Gradient(weight), grad_bias
    trace.backward(layers.linear_gradients, x, weight, Upstream(out), *grads, rows, inputs, outputs)
    return out


@rule(F.layer_norm)
def _layer_norm(
    trace: Trace, x: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Traced:
    x, rows, channels = trace.activations(x)
    trace.require(tuple(normalized_shape) == (channels,), f"layer norm of {normalized_shape}")
    weight, bias = trace.tensor(weight, channels), trace.tensor(bias, channels)
    deferred, total = x.value.deferred, x.value
    a, b, keys = deferred if isinstance(deferred, _Sum) else (total, None, (0, 0, 0))
    if b is not None:
        total.deferred = None
    out, moments = trace.new(x.shape), trace.new((BATCH, rows * 2))
    branch = 0 if b is None else b
    parameters, sizes = (weight, bias), (rows, channels)
    trace.forward(layers.add_norm, a, branch, *parameters, total, out, moments, *sizes, float_bits(eps), *keys)

    def gradients() -> None:
        upstream = 0 if b is None or total not in trace._gradients else trace.gradient(total)
        grad_a = trace.target(a)
        grad_b = Value(total.shape) if keys[0] else grad_a
        grads = upstream, Upstream(out), total, weight, grad_a, grad_b, moments, Gradient(weight), Gradient(bias)
        trace.emit_backward(layers.add_norm_gradients, *grads, *sizes, *keys)
        if b is not None:
            trace.share_gradient(b, grad_b)

    trace.on_backward(gradients, keep=(total, moments))
    return out


@rule(torch.add, operator.add)
def _add(trace: Trace, a: Any, b: Any) -> Traced:
    a, b = trace.activations(a)[0], trace.activations(b)[0]
    trace.require(a.shape == b.shape, f"a sum of {a.shape} and {b.shape}")
    if isinstance(a.value.deferred, _Dropped) and not isinstance(b.value.deferred, _Dropped):
        a, b = b, a
    x, keys = b.value.deferred if isinstance(b.value.deferred, _Dropped) else (b.value, (0, 0, 0))
    return trace.defer(a.shape, _Sum(a.value, x, keys))


@rule(torch.sub)
def _subtract(trace: Trace, a: Any, b: Any) -> Traced:
    return _add(trace, a, _multiply(trace, b, -1.0))


@rule(torch.neg)
def _negate(trace: Trace, a: Any) -> Traced:
    return _multiply(trace, a, -1.0)


@rule(torch.mul, torch.multiply)
def _multiply(trace: Trace, a: Any, b: Any) -> Traced:
    if isinstance(a, float | int):
        a, b = b, a
    a = trace.activations(a)[0]
    out, size = trace.new(a.shape), a.value.size
    if isinstance(b, float | int):
        factor = float_bits(b)
        trace.forward(layers.scale, a, factor, out, size)
        trace.backward(layers.scale, Upstream(out), factor, Gradient(a), size)
        return out
    b = trace.activations(b)[0]
    trace.require(a.shape == b.shape, f"a product of {a.shape} and {b.shape}")
    trace.forward(layers.multiply, a, b, out, size)
    trace.backward(layers.multiply, Upstream(out), b, Gradient(a), size)
    trace.backward(layers.multiply, Upstream(out), a, Gradient(b), size)
    return out


@rule(F.gelu)
def _gelu(trace: Trace, x: Any, approximate: str = "none") -> Traced:
    trace.require(approximate == "none", f"GELU with {approximate}")
    x = trace.activations(x)[0]
    out, size = trace.new(x.shape), x.value.size
    trace.forward(layers.gelu, x, out, size)
    trace.backward(layers.gelu_gradient, x, Upstream(out), Gradient(x), size)
    return out


@rule(F.dropout)
def _dropout(trace: Trace, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Traced:
    trace.require(0 <= p < 1 and not inplace, f"dropout with probability {p}, inplace={inplace}")
    if not (p and training):
        return x
    x = trace.activations(x)[0]
    return trace.defer(x.shape, _Dropped(x.value, trace.dropout_operands(p, x.value.size)))
