"""Run programs: sequences of compiled CPU kernels without Python in between.

The overhead of Python and torch is tens of microseconds per operation, as much as the operation itself for a small
batch, and it cannot run in parallel. Each core runs a program on its own samples, a few at a time, so that their values
stay in the cache from the first instruction to the last. This module does not import torch.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from graphslice.program.layout import MAX_OPERANDS, Addresses, Argument, Instruction, Kernel, Layout, Value
from graphslice.program.simd.lanes import address_of, keep_alive
from graphslice.system.threads import call_in_parallel, cores

# Minimum number of rows per core.
_MIN_ROWS = 64
#: Indices of the output and of its gradient among the arguments of a program; inputs and others follow.
OUT, GRAD_OUT, FIRST = range(3)


class _Enabled:
    on = True


def programs_enabled() -> bool:
    """True if programs of whole models are enabled in this process."""
    return _Enabled.on


@contextmanager
def programs_disabled() -> Iterator[None]:
    """Disable programs of whole models inside the context."""
    before, _Enabled.on = _Enabled.on, False
    try:
        yield
    finally:
        _Enabled.on = before


def kernel(function: Kernel) -> Kernel:
    """Mark a kernel, ``kernel(samples, *operands)``, compiled on first use (decorator); an operand, int64, is a number
    or the address of the first sample of an array of consecutive samples."""
    assert len(inspect.signature(function).parameters) <= MAX_OPERANDS + 1
    return function


@lru_cache(None)
def _compiled(function: Kernel) -> Any:
    count = len(inspect.signature(function).parameters)
    return cfunc(types.void(*[types.intp] * count), cache=True, error_model="numpy")(function)


@intrinsic
def call(typing, address, count, operands, samples):
    """Call a compiled kernel by its address, with the number of samples and ``count`` operands at an address."""

    def generate(context, builder, signature, args):
        address, count, operands, samples = args
        word = ir.IntType(64)
        pointer = builder.inttoptr(operands, word.as_pointer())
        done = builder.append_basic_block("done")
        switch = builder.switch(count, done)
        for n in range(1, MAX_OPERANDS + 1):
            block = builder.append_basic_block(f"call_{n}")
            switch.add_case(ir.Constant(word, n), block)
            with builder.goto_block(block):
                loaded = [builder.load(builder.gep(pointer, [ir.Constant(word, k)])) for k in range(n)]
                function = ir.FunctionType(ir.VoidType(), [word] * (n + 1)).as_pointer()
                builder.call(builder.inttoptr(address, function), [samples, *loaded])
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp), generate


@njit(cache=True, nogil=True)
def _run(kernels, counts, operands, steps, group, begin, end):
    current = np.empty_like(operands)
    at = address_of(current)
    for first in range(begin, end, group):
        for i in range(operands.shape[0]):
            for k in range(operands.shape[1]):
                current[i, k] = operands[i, k] + first * steps[i, k]
        for i in range(operands.shape[0]):
            call(kernels[i], counts[i], at + 8 * i * operands.shape[1], min(group, end - first))
    keep_alive(current)


class Part:
    """Sequence of instructions, such as the forward or the backward pass of a program; ``kept`` values are saved for
    backward, in the same order for all parts."""

    def __init__(self, instructions: Sequence[Instruction], kept: Sequence[Value]) -> None:
        self.instructions = instructions
        layout = Layout(instructions, kept)
        self._areas = layout.areas
        self._counts = np.array([len(operands) for _, operands in instructions], np.int64)
        self._kernels: np.ndarray | None = None
        self.addresses: Callable[[int], Addresses] = lru_cache(256)(layout.for_width)

    def run(self, arguments: Sequence[Sequence[int]], kept: int, width: int, ends: Sequence[int]) -> None:
        """Run the instructions for N = ``width``, one core per range of samples with its own arguments; the last of
        ``ends`` is the number of samples."""
        if not self.instructions:
            return
        if self._kernels is None:
            self._kernels = np.array([_compiled(kernel).address for kernel, _ in self.instructions])
        kernels, layout = self._kernels, self.addresses(width)
        fixed = layout.constant + ends[-1] * layout.per_batch

        def run_range(own: Sequence[int], begin: int, end: int) -> None:
            memory = _scratch_memory(layout.scratch)
            bases = np.array([0, kept, address(memory), *own], np.int64)
            operands = fixed + bases[self._areas]
            _run(kernels, self._counts, operands, layout.steps, layout.group, begin, end)

        ranges = zip(arguments, [0, *ends], ends, strict=False)
        call_in_parallel(run_range, list(ranges))


class Input(NamedTuple):
    """Input of a program."""

    value: Value  # its shape, and the arguments that hold it and its gradient
    dtype: str  # such as "float32"
    source: int | str  # position among the arguments of the traced function, or name of a parameter or buffer


class State(NamedTuple):
    """State of a forward pass for the backward pass."""

    arguments: list[int]  # of the program, without gradients
    kept: np.ndarray  # saved values
    ends: list[int]  # end of each core's range of samples
    width: int  # N


class Program:
    """Compiled forward and backward pass of a function on samples, parameters among its inputs; ``kept`` values are
    saved for backward."""

    def __init__(
        self,
        inputs: list[Input],
        forward: Sequence[Instruction],
        backward: Sequence[Instruction],
        kept: list[Value],
        keys: list[int],  # indices of the arguments that are keys of dropout masks
        arguments: int,  # number of arguments
        out: Value,
    ) -> None:
        self._definition = inputs, forward, backward, kept, keys, arguments, out
        self.inputs, self.keys, self.out, self.num_arguments = inputs, keys, out, arguments
        self.instructions, self._forward, self._backward = forward, Part(forward, kept), Part(backward, kept)
        self._sums = [
            (value.gradient.place, _rows_argument(value), math.prod(n for n in value.shape if isinstance(n, int)))
            for value, _, _ in inputs
            if value.shared and value.gradient is not None
        ]

    def __reduce__(self) -> tuple:
        return Program, self._definition

    def forward(
        self,
        inputs: Sequence[tuple[int, Sequence[int]]],  # address and shape of each input
        out: int,  # address of the output
        samples: int,
        width: int,
        random_integers: Callable[[int], Sequence[int]],  # returns n 32-bit integers, keys of dropout masks
    ) -> State:
        """Run the forward pass on B samples of N rows, and return the state for :meth:`backward`."""
        arguments = [0] * self.num_arguments
        arguments[OUT] = out
        for (value, _, _), (at, shape) in zip(self.inputs, inputs, strict=True):
            assert value.argument is not None
            arguments[value.argument.place] = at
            if (rows := _rows_argument(value)) is not None:
                arguments[rows] = shape[0]
        if self.keys:
            for index, key in zip(self.keys, random_integers(len(self.keys)), strict=True):
                arguments[index] = key
        kept = np.empty(samples * self._forward.addresses(width).kept, np.uint8)
        ends = share_ends(samples, width)
        self._forward.run([arguments] * len(ends), address(kept), width, ends)
        return State(arguments, kept, ends, width)

    def backward(self, state: State, grad_out: int, gradients: Sequence[int]) -> list[np.ndarray | None]:
        """Run the backward pass from the address of the output's gradient; ``gradients``: for each input with samples
        the address for its gradient. Returns the flat gradient of each input shared by the samples; None for the
        others."""
        sizes = {at: size * (1 if rows is None else state.arguments[rows]) for at, rows, size in self._sums}
        starts, end = {}, 0
        for at, size in sizes.items():
            starts[at], end = end, end + -(-size // 16) * 16  # each begins at a cache line
        sums = np.zeros((len(state.ends), end), np.float32)
        arguments = []
        for row in sums:
            own = list(state.arguments)
            own[GRAD_OUT] = grad_out
            for (value, _, _), gradient in zip(self.inputs, gradients, strict=True):
                if value.gradient is not None and not value.shared:
                    own[value.gradient.place] = gradient
            for at, start in starts.items():
                own[at] = address(row) + 4 * start
            arguments.append(own)
        self._backward.run(arguments, address(state.kept), state.width, state.ends)
        for row in sums[1:]:
            sums[0] += row
        parts = {at: sums[0, start : start + sizes[at]] for at, start in starts.items()}
        return [None if v.gradient is None else parts.get(v.gradient.place) for v, _, _ in self.inputs]


def address(array: np.ndarray) -> int:
    """Return the address of an array."""
    return array.__array_interface__["data"][0]


def _rows_argument(value: Value) -> int | None:
    """Return the argument that holds the first size of an input, if it is known only when the program runs."""
    first: Any = value.shape[0] if value.shape else None
    return first.place if isinstance(first, Argument) else None


def share_ends(samples: int, width: int) -> list[int]:
    """Split samples of N rows into ranges, one per core if there are enough rows, and return the end of each."""
    ranges = max(1, min(cores(), samples, samples * width // _MIN_ROWS))
    return [samples * (i + 1) // ranges for i in range(ranges)]


class _Memory(threading.local):
    array = np.empty(0, np.uint8)


_memory = _Memory()


def _scratch_memory(size: int) -> np.ndarray:
    if len(_memory.array) < size:
        _memory.array = np.empty(size, np.uint8)
    return _memory.array
