"""Base class of the program tracer: instructions, values and gradients. The operations are in its subclass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from graphslice.ops import kernels
from graphslice.ops.dropout import dropout_threshold
from graphslice.ops.operands import float_bits
from graphslice.ops.program import Argument, Instruction, Kernel, Operand, Size, Value

#: Indices of the inputs and outputs among the arguments of a program; parameters and others follow from FIRST on.
GRAPH, LENGTHS, ATOMS, DEGREES, BONDS, OUT, GRAD_OUT, GRAD_GRAPH, FIRST = range(9)
_NO_KEYS = (0, 0, 0, 0, float_bits(1))


class NotTraceable(Exception):
    """Raised if a module cannot be traced; it is then run as a module."""


class TracedParameter(NamedTuple):
    """Parameter of a module, identified by module and name, since the tensor itself may be replaced."""

    module: nn.Module
    name: str
    shape: torch.Size
    stride: tuple[int, ...]

    @property
    def tensor(self) -> Tensor:
        return self.module._parameters[self.name]  # type: ignore[return-value]


class ProgramTrace(NamedTuple):
    """Result of a :class:`BaseTracer`.

    Attributes:
        forward, backward: instructions.
        kept: values saved for backward.
        parameters: each with the arguments of the parameter and of its gradient.
        transposes: parameters whose transposes are arguments.
        keys: indices of the arguments that are dropout keys.
        arguments: number of arguments.
        held: constants whose addresses are operands.
        out: size of the output.
        reaches_graph: True if there is a gradient of the graph input.
    """

    forward: list[Instruction]
    backward: list[Instruction]
    kept: list[Value]
    parameters: list[tuple[TracedParameter, Argument, Argument]]
    transposes: list[tuple[TracedParameter, Argument]]
    keys: list[int]
    arguments: int
    held: list[Tensor]
    out: Size
    reaches_graph: bool


class BaseTracer:
    """Collect the instructions of a forward and a backward pass.

    Args:
        heads: H of the graph input ``[B, H, N, N]``.
        backward: True to trace gradients.

    Attributes:
        graph: attention weights or bias of the pairs, ``[B, H, N, N]``.
        lengths: int64 ``[B]``.
        atoms, degrees: uint8 ``[B, N - 1, 9]`` and ``[B, N - 1]``.
        bonds: int16 ``[B, N, N]``, for models with message passing along bonds.
    """

    def __init__(self, heads: int, *, backward: bool) -> None:
        self.backward, self.heads = backward, heads
        self.graph = Value(Size(pair=heads), argument=Argument(GRAPH, Size(pair=heads)))
        self.lengths = Argument(LENGTHS, Size(sample=2))
        self.atoms = Argument(ATOMS, Size(row=9, sample=-9), unit=1)
        self.degrees = Argument(DEGREES, Size(row=1, sample=-1), unit=1)
        self.bonds = Argument(BONDS, Size(pair=1), unit=2)
        self._forward: list[Instruction] = []
        self._backward: list[Instruction] = []
        self._backward_callbacks: list[Callable[[], None]] = []
        self._kept: list[Value] = []
        self._gradients: dict[Value, Value] = {}
        self._shared: set[Value] = set()
        self._held: list[Tensor] = []
        self._places = FIRST
        self._owned: dict[tuple[int, str], tuple[TracedParameter, Argument, Argument]] = {}
        self._transposes: dict[tuple[int, str], tuple[TracedParameter, Argument]] = {}
        self._keys: list[int] = []

    # --- building blocks of operations ------------------------------------------------------------------

    def emit_forward(self, kernel: Kernel, *operands: Operand) -> None:
        """Append an instruction to the forward pass."""
        self._forward.append((kernel, operands))

    def emit_backward(self, kernel: Kernel, *operands: Operand) -> None:
        """Append an instruction to the backward pass; only inside functions passed to :meth:`on_backward`."""
        self._backward.append((kernel, operands))

    def on_backward(self, function: Callable[[], None]) -> None:
        """Register a function that emits the gradient instructions of an operation; called in reverse order."""
        if self.backward:
            self._backward_callbacks.append(function)

    def new_value_like(self, value: Value) -> Value:
        """Return a new value of the same size."""
        return Value(value.size)

    def keep(self, *values: Value) -> None:
        """Save values for the backward pass."""
        for value in values:
            if self.backward and not value.kept and value.argument is None:
                value.kept = True
                self._kept.append(value)

    def hold_constant(self, tensor: Tensor) -> int:
        """Keep a constant tensor with the program and return its address."""
        self._held.append(tensor.contiguous())
        return self._held[-1].data_ptr()

    def parameter(self, module: nn.Module, name: str) -> tuple[Argument, Argument]:
        """Return the arguments of a parameter and of its gradient, into which instructions accumulate."""
        key = id(module), name
        if key not in self._owned:
            tensor = module._parameters.get(name)
            if tensor is None:
                raise NotTraceable
            self._owned[key] = (
                TracedParameter(module, name, tensor.shape, tensor.contiguous().stride()),
                Argument(self._new_argument()),
                Argument(self._new_argument()),
            )
        return self._owned[key][1:]

    def transposed(self, module: nn.Module, name: str) -> Argument:
        """Return the argument of the transpose of a matrix parameter."""
        self.parameter(module, name)
        key = id(module), name
        if key not in self._transposes:
            self._transposes[key] = self._owned[key][0], Argument(self._new_argument())
        return self._transposes[key][1]

    def keys(self, p: float, size: Size) -> tuple[Operand, ...]:
        """Return the operands of a dropout on values of this size."""
        if not p:
            return _NO_KEYS
        first, second = Argument(self._new_argument(), size, unit=1), Argument(self._new_argument())
        self._keys += [first.place, second.place]
        return 1, first, second, dropout_threshold(p), float_bits(1 / (1 - p))

    def gradient(self, value: Value) -> Value:
        """Return the gradient of a value."""
        return self._gradients[value]

    def share_gradient(self, value: Value, of: Value) -> None:
        """Make ``of`` the gradient of a value too, or add it, as for the summands of a sum."""
        if value in self._gradients:
            self._add(value, of)
        else:
            self._gradients[value] = of
            self._shared.add(of)

    def gradient_target(self, value: Value) -> tuple[Value, Value | int]:
        """Return the value for a kernel to write a gradient to, and the gradient for it to add, 0 if none."""
        current = self._gradients.get(value)
        if current in self._shared:
            self._gradients[value] = self.new_value_like(value)
        if current is not None:
            return self._gradients[value], current
        return self._new_gradient(value), 0

    def accumulate_gradient(self, value: Value, emit: Callable[[Value], None]) -> None:
        """Call ``emit`` with a value to write a gradient to, and add it to the existing gradient if there is one."""
        if value not in self._gradients:
            emit(self._new_gradient(value))
        else:
            summand = self.new_value_like(value)
            emit(summand)
            self._add(value, summand)

    def accumulate_gradients(self, values: Sequence[Value], emit: Callable[[list[Value]], None]) -> None:
        """Apply :meth:`accumulate_gradient` to several values whose gradients come from one kernel."""

        def add_next(grads: list[Value]) -> None:
            if len(grads) == len(values):
                emit(grads)
            else:
                self.accumulate_gradient(values[len(grads)], lambda grad: add_next([*grads, grad]))

        add_next([])

    def _add(self, value: Value, summand: Value) -> None:
        """Add to the gradient of a value: in place, or to a copy if other values share the gradient."""
        current = self._gradients[value]
        if current in self._shared:
            self._gradients[value] = self.new_value_like(value)
            self.emit_backward(kernels.add, current, summand, self._gradients[value], Size(row=1), value.size.row)
        else:
            self.emit_backward(kernels.accumulate, summand, current, current.size)

    def _new_gradient(self, value: Value) -> Value:
        argument = Argument(GRAD_GRAPH, value.size) if value is self.graph else None
        self._gradients[value] = Value(value.size, argument=argument)
        return self._gradients[value]

    def _new_argument(self) -> int:
        self._places += 1
        return self._places - 1

    def finish(self, out: Value) -> ProgramTrace:
        """Complete the trace of a program that computes ``out``."""
        out.argument = Argument(OUT, out.size)
        self._gradients[out] = Value(out.size, argument=Argument(GRAD_OUT, out.size))
        for function in reversed(self._backward_callbacks):
            function()
        return ProgramTrace(
            self._forward,
            self._backward,
            self._kept,
            list(self._owned.values()),
            list(self._transposes.values()),
            self._keys,
            self._places,
            self._held,
            out.size,
            self.graph in self._gradients,
        )
