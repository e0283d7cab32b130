"""Puts programs together: operations on values as modules do them, each with what backward has to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from graphslice.ops import kernels
from graphslice.ops.dropout import draw_numbers, threshold_of
from graphslice.ops.program import Argument, Instruction, Kernel, Operand, Part, Size, Value, float_bits, shares_of

#: N.
N = Size(row=1)
# Where the caller's tensors stand among the arguments; behind them the parameters, and so on.
_ROWS, _GRAPH, _LENGTHS, _OUT, _GRAD_OUT, _GRAD_ROWS, _GRAD_GRAPH, _FIRST = range(8)
_NO_KEYS = (0, 0, 0, 0, float_bits(1))


class NotRecorded(Exception):
    """What a module does is no operation of a tape; it runs as a module then."""


class _Owned(NamedTuple):
    """A parameter, by the module that has it: it may be replaced by another tensor."""

    module: nn.Module
    name: str
    shape: torch.Size

    @property
    def tensor(self) -> Tensor:
        return self.module._parameters[self.name]  # type: ignore[return-value]


class Tape:
    """Records what modules do with the rows ``[B, N, C]`` of a batch; all sizes but N are multiples of 16.

    Args:
        channels: C.
        heads: H of the graph's ``[B, H, N, N]``.
        backward: whether there are to be gradients.

    Attributes:
        rows: what enters.
        graph: the weights or the bias of the pairs.
        lengths: ``int64 [B]``.
    """

    def __init__(self, channels: int, heads: int, *, backward: bool) -> None:
        self.backward, self.heads = backward, heads
        self.rows = Value(Size(row=channels), argument=Argument(_ROWS, Size(row=channels)))
        self.graph = Value(Size(pair=heads), argument=Argument(_GRAPH, Size(pair=heads)))
        self.lengths = Argument(_LENGTHS, Size(sample=2))
        self._forward: list[Instruction] = []
        self._backward: list[Instruction] = []
        self._undo: list[Callable[[], None]] = []
        self._kept: list[Value] = []
        self._gradients: dict[Value, Value] = {}
        self._held: list[Tensor] = []
        self._places = _FIRST
        self._owned: dict[tuple[int, str], tuple[_Owned, Argument, Argument]] = {}
        self._transposes: dict[tuple[int, str], tuple[_Owned, Argument]] = {}
        self._thresholds: list[float] = []

    # --- what operations are made of ------------------------------------------------------------------

    def run(self, kernel: Kernel, *operands: Operand) -> None:
        """An instruction of the forward pass."""
        self._forward.append((kernel, operands))

    def run_back(self, kernel: Kernel, *operands: Operand) -> None:
        """An instruction of the backward pass, within what :meth:`undo` is given."""
        self._backward.append((kernel, operands))

    def undo(self, function: Callable[[], None]) -> None:
        """Let a function record the instructions of an operation's gradients, after those of all that follows it."""
        if self.backward:
            self._undo.append(function)

    def like(self, value: Value) -> Value:
        """Another value of this size."""
        return Value(value.size)

    def keep(self, *values: Value) -> None:
        """Let values stay for the backward pass."""
        for value in values:
            if self.backward and not value.kept and value.argument is None:
                value.kept = True
                self._kept.append(value)

    def hold(self, tensor: Tensor) -> int:
        """The address of a constant, which the program keeps."""
        self._held.append(tensor.contiguous())
        return self._held[-1].data_ptr()

    def parameter(self, module: nn.Module, name: str) -> tuple[Argument, Argument]:
        """A parameter of a module and its gradient, to which instructions add."""
        key = id(module), name
        if key not in self._owned:
            tensor = module._parameters.get(name)
            if tensor is None:
                raise NotRecorded
            self._owned[key] = _Owned(module, name, tensor.shape), Argument(self._place()), Argument(self._place())
        return self._owned[key][1:]

    def transposed(self, module: nn.Module, name: str) -> Argument:
        """The transpose of a matrix that is a parameter."""
        self.parameter(module, name)
        key = id(module), name
        if key not in self._transposes:
            self._transposes[key] = self._owned[key][0], Argument(self._place())
        return self._transposes[key][1]

    def keys(self, p: float, size: Size) -> tuple[Operand, ...]:
        """The operands of a dropout on values of some size."""
        if not p:
            return _NO_KEYS
        self._thresholds.append(p)
        first, second = Argument(self._place(), size, unit=1), Argument(self._place())
        return 1, first, second, threshold_of(p), float_bits(1 / (1 - p))

    def gradient(self, value: Value) -> Value:
        """The gradient of a value that was used."""
        return self._gradients[value]

    def share_gradient(self, value: Value, of: Value) -> None:
        """Let a value have the gradient of another, as a summand has that of a sum."""
        if value in self._gradients:
            self.add_to(self._gradients[value], of)
        else:
            self._gradients[value] = of

    def into(self, value: Value) -> tuple[Value, Value | int]:
        """Where a kernel that can add is to leave a gradient, and what it is to add to it, 0 if nothing."""
        there = self._gradients.get(value)
        if there is not None:
            return there, there
        return self._new_gradient(value), 0

    def contribute(self, value: Value, record: Callable[[Value], None]) -> None:
        """Let ``record`` leave a gradient in what it is given, beside those of other users of the value."""
        there = self._gradients.get(value)
        if there is None:
            record(self._new_gradient(value))
        else:
            more = self.like(value)
            record(more)
            self.add_to(there, more)

    def contribute_all(self, values: Sequence[Value], record: Callable[[list[Value]], None]) -> None:
        """:meth:`contribute` to several values by one kernel."""

        def more(grads: list[Value]) -> None:
            if len(grads) == len(values):
                record(grads)
            else:
                self.contribute(values[len(grads)], lambda grad: more([*grads, grad]))

        more([])

    def add_to(self, total: Value, more: Value) -> None:
        """Add a gradient to another."""
        self.run_back(kernels.accumulate, more, total, total.size)

    def _new_gradient(self, value: Value) -> Value:
        place = {self.rows: _GRAD_ROWS, self.graph: _GRAD_GRAPH}.get(value)
        argument = None if place is None else Argument(place, value.size)
        self._gradients[value] = Value(value.size, argument=argument)
        return self._gradients[value]

    def _place(self) -> int:
        self._places += 1
        return self._places - 1

    # --- operations that blocks have in common --------------------------------------------------------

    def linear(self, x: Value, module: nn.Linear) -> Value:
        """``x W^T + b``."""
        if type(module) is not nn.Linear:
            raise NotRecorded
        inputs, outputs = module.in_features, module.out_features
        (weight, grad_weight), (bias, grad_bias) = (self.parameter(module, name) for name in ("weight", "bias"))
        out = Value(Size(row=outputs))
        self.run(kernels.linear, x, self.transposed(module, "weight"), bias, out, N, inputs, outputs)
        self.keep(x)

        def undo() -> None:
            grad_x, start = self.into(x)
            own = self.gradient(out), grad_x, grad_weight, grad_bias, start
            self.run_back(kernels.linear_gradients, x, weight, *own, N, inputs, outputs)

        self.undo(undo)
        return out

    def add_norm(self, x: Value, y: Value | None, module: nn.LayerNorm, p: float) -> tuple[Value, Value]:
        """``x + dropout(y)`` and its norm."""
        channels = x.size.row
        (weight, grad_weight), (bias, grad_bias) = (self.parameter(module, name) for name in ("weight", "bias"))
        if y is None:
            p, branch = 0.0, self.like(x)
            self.run(kernels.zero, branch, N, channels)
        else:
            branch = y
        total, normed, moments = self.like(x), self.like(x), Value(Size(row=2))
        keys = self.keys(p, x.size)
        eps = float_bits(module.eps)
        self.run(kernels.add_norm, x, branch, weight, bias, total, normed, moments, N, channels, eps, *keys)
        self.keep(total, moments)

        def undo() -> None:
            if total not in self._gradients:
                self._gradients[total] = self.like(total)
                self.run_back(kernels.zero, self._gradients[total], N, channels)
            upstream = self.gradient(total), self.gradient(normed)

            def record(grad_x: Value) -> None:
                grad_y = self.like(x) if p else grad_x
                own = total, weight, grad_x, grad_y, moments, grad_weight, grad_bias, N, channels
                self.run_back(kernels.add_norm_gradients, *upstream, *own, *keys)
                if y is not None:
                    self.share_gradient(y, grad_y)

            self.contribute(x, record)

        self.undo(undo)
        return total, normed

    def add(self, a: Value, b: Value) -> Value:
        """``a + b``."""
        out = self.like(a)
        self.run(kernels.add, a, b, out, N, a.size.row)

        def undo() -> None:
            self.share_gradient(a, self.gradient(out))
            self.share_gradient(b, self.gradient(out))

        self.undo(undo)
        return out

    def dropout(self, x: Value, p: float) -> Value:
        """``dropout(x)``."""
        if not p:
            return x
        out, keys, channels = self.like(x), self.keys(p, x.size), x.size.row
        self.run(kernels.drop, x, out, N, channels, *keys)
        self.undo(
            lambda: self.contribute(
                x, lambda into: self.run_back(kernels.drop, self.gradient(out), into, N, channels, *keys)
            )
        )
        return out

    def gelu(self, x: Value) -> Value:
        """``GELU(x)``."""
        out, channels = self.like(x), x.size.row
        self.run(kernels.gelu_forward, x, out, N, channels)
        self.keep(x)
        self.undo(
            lambda: self.contribute(
                x, lambda into: self.run_back(kernels.gelu_gradient, x, self.gradient(out), into, N, channels)
            )
        )
        return out

    def aggregate(self, v: Value, p: float) -> Value:
        """``dropout(P) V``, where the graph is P."""
        out, keys, channels = self.like(v), self.keys(p, self.graph.size), v.size.row
        self.run(kernels.aggregate, self.graph, v, out, self.heads, N, channels, *keys)
        self.keep(v)

        def record(grads: list[Value]) -> None:
            given = self.graph, v, self.gradient(out)
            self.run_back(kernels.aggregate_gradient, *given, *grads, self.heads, N, channels, *keys)

        self.undo(lambda: self.contribute_all([v, self.graph], record))
        return out

    def broadcast_max(self, v: Value, local_channels: Tensor) -> Value:
        """The largest value of every channel that is not local, in every row."""
        out, maxima, channels = self.like(v), Value(Size(sample=v.size.row)), v.size.row
        local = self.hold(local_channels.float())
        self.run(kernels.broadcast_max, v, self.lengths, local, out, maxima, N, channels)
        self.keep(v, maxima)

        def record(into: Value) -> None:
            given = v, self.lengths, local, maxima, self.gradient(out), into, N, channels
            self.run_back(kernels.broadcast_max_gradient, *given)

        self.undo(lambda: self.contribute(v, record))
        return out

    def max_exchange(self, v: Value) -> Value:
        """The largest value of every channel exchanged with the first row's."""
        out, weights, channels = self.like(v), self.like(v), v.size.row
        self.run(kernels.max_exchange, v, self.lengths, out, weights, N, channels)
        self.keep(weights)

        def record(into: Value) -> None:
            self.run_back(kernels.max_exchange_gradient, weights, self.gradient(out), into, N, channels)

        self.undo(lambda: self.contribute(v, record))
        return out

    def column_sort(self, x: Value, descending: Tensor | None = None) -> Value:
        """Every channel sorted, in at most 256 rows; those of ``bool [C]`` descending."""
        out, channels = self.like(x), x.size.row
        rows: Value | int = Value(Size(row=channels // 4)) if self.backward else 0  # a byte each
        flip = torch.zeros(channels, dtype=torch.int32) if descending is None else -descending.int()
        self.run(kernels.column_sort, x, self.lengths, self.hold(flip), out, rows, N, channels)
        if isinstance(rows, Value):
            self.keep(rows)

        def record(into: Value) -> None:
            self.run_back(kernels.column_sort_gradient, self.gradient(out), rows, into, N, channels)

        self.undo(lambda: self.contribute(x, record))
        return out

    def sort_by_first(self, v: Value, tie: float) -> Value:
        """Every channel arranged as the first ranks, in at most 256 rows; rows that tie there share their values."""
        ordered, out, channels = self.like(v), self.like(v), v.size.row
        rows = Value(Size(row=channels // 4))  # a byte each
        share = float_bits(tie)
        self.run(kernels.sort_by_first, v, self.lengths, ordered, rows, out, share, N, channels)
        self.keep(v, rows)

        def record(into: Value) -> None:
            given = v, self.lengths, rows, self.gradient(out), into, share, N, channels
            self.run_back(kernels.sort_by_first_gradient, *given)

        self.undo(lambda: self.contribute(v, record))
        return out

    def attention(self, q: Value, k: Value, v: Value, p: float) -> Value:
        """``dropout(Softmax(Q K^T / sqrt(d) + bias)) V``, where the graph is the bias."""
        out, weights, channels = self.like(v), self.like(self.graph), v.size.row
        keys = self.keys(p, self.graph.size)
        self.run(kernels.attention, q, k, v, self.graph, weights, out, self.heads, N, channels, *keys)
        self.keep(q, k, v, weights)

        def record(grads: list[Value]) -> None:
            given = q, k, v, weights, self.gradient(out)
            self.run_back(kernels.attention_gradient, *given, *grads, self.heads, N, channels, *keys)

        self.undo(lambda: self.contribute_all([q, k, v, self.graph], record))
        return out

    def linear_attention(self, q: Value, k: Value, v: Value) -> Value:
        """``Q (K^T V) / n``."""
        out, channels = self.like(v), v.size.row
        self.run(kernels.linear_attention, q, k, v, self.lengths, out, self.heads, N, channels)
        self.keep(q, k, v)

        def record(grads: list[Value]) -> None:
            given = q, k, v, self.lengths, self.gradient(out)
            self.run_back(kernels.linear_attention_gradient, *given, *grads, self.heads, N, channels)

        self.undo(lambda: self.contribute_all([q, k, v], record))
        return out

    def head_norm(self, x: Value, module: nn.Module, which: int) -> Value:
        """The layer norm of each head, with one of the two ``scales`` and ``shifts`` of a module."""
        out, channels = self.like(x), x.size.row
        (scales, grad_scales), (shifts, grad_shifts) = (self.parameter(module, name) for name in ("scales", "shifts"))
        self.run(kernels.head_norm, x, scales, shifts, out, which, self.heads, N, channels)
        self.keep(x)

        def record(into: Value) -> None:
            given = x, scales, self.gradient(out), into, grad_scales, grad_shifts, which, self.heads, N, channels
            self.run_back(kernels.head_norm_gradient, *given)

        self.undo(lambda: self.contribute(x, record))
        return out

    # --- the end --------------------------------------------------------------------------------------

    def finish(self, out: Value) -> Program:
        """The program that makes a value of the rows."""
        out.argument = Argument(_OUT, out.size)
        self._gradients[out] = Value(out.size, argument=Argument(_GRAD_OUT, out.size))
        for function in reversed(self._undo):
            function()
        return Program(self)


class _State(NamedTuple):
    """What backward needs of a forward pass."""

    arguments: list[int]
    keep_alive: tuple[Tensor, ...]
    kept: Tensor
    ends: list[int]


class Program:
    """What a :class:`Tape` has recorded.

    Attributes:
        parameters: the tensors that it differentiates by, in order.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        owned = list(tape._owned.values())
        self._owned = [each for each, _, _ in owned]
        self._here = [here.place for _, here, _ in owned]
        self._there = [there.place for _, _, there in owned]
        self._offsets: list[int] = []
        self._size = 0
        for each in self._owned:
            self._offsets.append(self._size)
            self._size += -(-each.shape.numel() // 16) * 16
        taken = {*self._here, *self._there, *(place.place for _, place in tape._transposes.values())}
        self._key_places = [place for place in range(_FIRST, tape._places) if place not in taken]
        self._forward, self._backward = Part(tape._forward, tape._kept), Part(tape._backward, tape._kept)
        turned, self._turned_size = [], 0
        self._turned: list[tuple[int, int]] = []
        for each, place in tape._transposes.values():
            turned.append((each, self._turned_size, place.place))
            self._turned_size += each.shape.numel()
        self._turned = [(place, offset) for _, offset, place in turned]
        here = {id(each): place for each, place in zip(self._owned, self._here, strict=True)}
        self._transpose = Part(
            [
                (kernels.transposed, (Argument(here[id(each)]), Argument(place), *each.shape))
                for each, _, place in turned
            ],
            (),
        )

    @property
    def parameters(self) -> list[Tensor]:
        return [each.tensor for each in self._owned]

    def run(
        self, rows: Tensor, graph: Tensor | None, lengths: Tensor, parameters: Sequence[Tensor]
    ) -> tuple[Tensor, _State]:
        """What becomes of rows, and what :meth:`gradients` needs.

        Args:
            rows: float32 ``[B, N, C]``, contiguous.
            graph: float32 ``[B, H, N, N]``, contiguous.
            lengths: int64 ``[B]``.
            parameters: those of :attr:`parameters`, contiguous.
        """
        samples, width = rows.shape[:2]
        out = torch.empty(samples, width, self._tape_width)
        turned = torch.empty(self._turned_size)
        kept = torch.empty(samples * self._forward.kept_bytes(width), dtype=torch.uint8)
        arguments = [0] * self._tape._places
        arguments[_ROWS], arguments[_LENGTHS], arguments[_OUT] = (t.data_ptr() for t in (rows, lengths, out))
        arguments[_GRAPH] = 0 if graph is None else graph.data_ptr()
        for place, parameter in zip(self._here, parameters, strict=True):
            arguments[place] = parameter.data_ptr()
        at = turned.data_ptr()
        for place, offset in self._turned:
            arguments[place] = at + 4 * offset
        if self._key_places:
            for place, number in zip(self._key_places, draw_numbers(len(self._key_places)), strict=True):
                arguments[place] = number
        ends = shares_of(samples, width)
        self._transpose.run([arguments], 0, 1, [1])
        self._forward.run([arguments] * len(ends), kept.data_ptr(), width, ends)
        held = (rows, lengths, turned, *parameters, *(() if graph is None else (graph,)))
        return out, _State(arguments, held, kept, ends)

    @property
    def _tape_width(self) -> int:
        return self._tape.rows.size.row

    def gradients(self, state: _State, grad: Tensor) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """The gradients of the rows, of the graph (None where it is not read) and of the parameters."""
        samples, width = grad.shape[:2]
        grad_rows = torch.empty_like(grad)
        reached = self._tape.graph in self._tape._gradients
        grad_graph = torch.empty(samples, self._tape.heads, width, width) if reached else None
        sums = np.zeros((len(state.ends), self._size), np.float32)  # not by torch, whose threads would stay awake
        arguments = []
        for share in range(len(state.ends)):
            own = list(state.arguments)
            own[_GRAD_OUT], own[_GRAD_ROWS] = grad.data_ptr(), grad_rows.data_ptr()
            own[_GRAD_GRAPH] = 0 if grad_graph is None else grad_graph.data_ptr()
            at = sums[share].ctypes.data
            for place, offset in zip(self._there, self._offsets, strict=True):
                own[place] = at + 4 * offset
            arguments.append(own)
        self._backward.run(arguments, state.kept.data_ptr(), width, state.ends)
        for more in sums[1:]:
            sums[0] += more
        total = torch.from_numpy(sums[0])
        found = [
            total[offset : offset + each.shape.numel()].view(each.shape)
            for each, offset in zip(self._owned, self._offsets, strict=True)
        ]
        return grad_rows, grad_graph, found
