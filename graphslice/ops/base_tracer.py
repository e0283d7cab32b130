"""Base of the program tracer: instructions, values and gradients; :mod:`graphslice.ops.tracer` adds the operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from graphslice.ops import kernels
from graphslice.ops.dropout import dropout_threshold
from graphslice.ops.operands import float_bits
from graphslice.ops.program import Argument, Instruction, Kernel, Operand, Size, Value

#: Where the caller's tensors stand among the arguments; behind them the parameters, and so on.
GRAPH, LENGTHS, ATOMS, DEGREES, BONDS, OUT, GRAD_OUT, GRAD_GRAPH, FIRST = range(9)
_NO_KEYS = (0, 0, 0, 0, float_bits(1))


class NotTraceable(Exception):
    """What a module does is no operation of a tape; it runs as a module then."""


class TracedParameter(NamedTuple):
    """A parameter, by the module that has it: it may be replaced by another tensor."""

    module: nn.Module
    name: str
    shape: torch.Size
    stride: tuple[int, ...]

    @property
    def tensor(self) -> Tensor:
        return self.module._parameters[self.name]  # type: ignore[return-value]


class ProgramTrace(NamedTuple):
    """What a :class:`BaseTracer` has recorded.

    Attributes:
        forward, backward: the instructions.
        kept: the values that backward reads.
        parameters: with the arguments that they and their gradients are.
        transposes: parameters whose transposes are arguments.
        keys: the arguments that are keys of dropouts.
        arguments: how many there are.
        held: constants whose addresses are operands.
        out: the size of what comes out.
        reaches_graph: whether the graph has a gradient.
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
    """Records instructions on the samples of a batch.

    Args:
        heads: H of the graph's ``[B, H, N, N]``.
        backward: whether there are to be gradients.

    Attributes:
        graph: the weights or the bias of the pairs.
        lengths: ``int64 [B]``.
        atoms, degrees: ``uint8 [B, N - 1, 9]`` and ``[B, N - 1]``.
        bonds: ``int16 [B, N, N]``, for models that read them.
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

    # --- what operations are made of ------------------------------------------------------------------

    def emit_forward(self, kernel: Kernel, *operands: Operand) -> None:
        """An instruction of the forward pass."""
        self._forward.append((kernel, operands))

    def emit_backward(self, kernel: Kernel, *operands: Operand) -> None:
        """An instruction of the backward pass, within what :meth:`on_backward` is given."""
        self._backward.append((kernel, operands))

    def on_backward(self, function: Callable[[], None]) -> None:
        """Let a function record the instructions of an operation's gradients, after those of all that follows it."""
        if self.backward:
            self._backward_callbacks.append(function)

    def new_value_like(self, value: Value) -> Value:
        """Another value of this size."""
        return Value(value.size)

    def keep(self, *values: Value) -> None:
        """Let values stay for the backward pass."""
        for value in values:
            if self.backward and not value.kept and value.argument is None:
                value.kept = True
                self._kept.append(value)

    def hold_constant(self, tensor: Tensor) -> int:
        """The address of a constant, which the program keeps."""
        self._held.append(tensor.contiguous())
        return self._held[-1].data_ptr()

    def parameter(self, module: nn.Module, name: str) -> tuple[Argument, Argument]:
        """A parameter of a module and its gradient, to which instructions add."""
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
        """The transpose of a matrix that is a parameter."""
        self.parameter(module, name)
        key = id(module), name
        if key not in self._transposes:
            self._transposes[key] = self._owned[key][0], Argument(self._new_argument())
        return self._transposes[key][1]

    def keys(self, p: float, size: Size) -> tuple[Operand, ...]:
        """The operands of a dropout on values of some size."""
        if not p:
            return _NO_KEYS
        first, second = Argument(self._new_argument(), size, unit=1), Argument(self._new_argument())
        self._keys += [first.place, second.place]
        return 1, first, second, dropout_threshold(p), float_bits(1 / (1 - p))

    def gradient(self, value: Value) -> Value:
        """The gradient of a value that was used."""
        return self._gradients[value]

    def share_gradient(self, value: Value, of: Value) -> None:
        """Let a value have the gradient of another, as a summand has that of a sum."""
        if value in self._gradients:
            self._add(value, of)
        else:
            self._gradients[value] = of
            self._shared.add(of)

    def gradient_target(self, value: Value) -> tuple[Value, Value | int]:
        """Where a kernel that can add is to leave a gradient, and what it is to add to it, 0 if nothing."""
        there = self._gradients.get(value)
        if there in self._shared:
            self._gradients[value] = self.new_value_like(value)
        if there is not None:
            return self._gradients[value], there
        return self._new_gradient(value), 0

    def accumulate_gradient(self, value: Value, emit: Callable[[Value], None]) -> None:
        """Let ``emit`` leave a gradient in what it is given, beside those of other users of the value."""
        if value not in self._gradients:
            emit(self._new_gradient(value))
        else:
            more = self.new_value_like(value)
            emit(more)
            self._add(value, more)

    def accumulate_gradients(self, values: Sequence[Value], emit: Callable[[list[Value]], None]) -> None:
        """:meth:`accumulate_gradient` to several values by one kernel."""

        def more(grads: list[Value]) -> None:
            if len(grads) == len(values):
                emit(grads)
            else:
                self.accumulate_gradient(values[len(grads)], lambda grad: more([*grads, grad]))

        more([])

    def _add(self, value: Value, more: Value) -> None:
        """Add to the gradient of a value, unless others have it too: they may still be asked for it."""
        there = self._gradients[value]
        if there in self._shared:
            self._gradients[value] = self.new_value_like(value)
            self.emit_backward(kernels.add, there, more, self._gradients[value], Size(row=1), value.size.row)
        else:
            self.emit_backward(kernels.accumulate, more, there, there.size)

    def _new_gradient(self, value: Value) -> Value:
        argument = Argument(GRAD_GRAPH, value.size) if value is self.graph else None
        self._gradients[value] = Value(value.size, argument=argument)
        return self._gradients[value]

    def _new_argument(self) -> int:
        self._places += 1
        return self._places - 1

    def finish(self, out: Value) -> ProgramTrace:
        """What was recorded, to make one of the values."""
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
