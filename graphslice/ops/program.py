"""Traced programs: sequences of compiled CPU kernels that run without Python in between.

The overhead of Python and torch is tens of microseconds per operation, as much as the operation itself for a small
batch, and it cannot run in parallel. A program is traced once. Each core then runs it on its own samples, a few at a
time, so that their values stay in the cache from the first instruction to the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from graphslice.ops.simd.lanes import address_of, keep_alive
from graphslice.ops.threads import cores, thread_pool

# Rows that a program processes at once: their values fit in the L2 cache, and weights are read once for all of them.
_GROUP_ROWS = 112
# Minimum number of rows per core.
_MIN_ROWS = 64
# Maximum number of operands of a kernel.
_OPERANDS = 17
# Base addresses of operands: none, values saved for backward, scratch memory; then the arguments of the program.
_NOTHING, _KEPT, _SCRATCH, _OWN = range(4)


class _Enabled:
    on = True


def programs_enabled() -> bool:
    """True if traced programs are enabled in this process."""
    return _Enabled.on


def disable_programs() -> None:
    """Disable traced programs for the rest of this process, if they fail or are wrong on this machine."""
    _Enabled.on = False


@contextmanager
def programs_disabled() -> Iterator[None]:
    """Disable traced programs inside the context."""
    before, _Enabled.on = _Enabled.on, False
    try:
        yield
    finally:
        _Enabled.on = before


class Size(NamedTuple):
    """Number of 4-byte elements of a sample of N rows, ``row N + pair N^2 + sample``; may be an operand."""

    row: int = 0
    pair: int = 0
    sample: int = 0

    def of(self, width: int) -> int:
        """Return the number of elements for N rows."""
        return self.row * width + self.pair * width**2 + self.sample


class Argument(NamedTuple):
    """Argument of a program: the address of a tensor or an integer, passed by the caller.

    Attributes:
        place: index in the arguments of the program.
        step: size of a sample; 0 if the argument is the same for all samples.
        unit: increment per element of a sample; 4 for an address of 4-byte elements.
    """

    place: int
    step: Size = Size()
    unit: int = 4


@dataclass(eq=False)
class Value:
    """Intermediate result of a program, with one part per sample.

    Attributes:
        size: of a sample.
        kept: True if saved for the backward pass; otherwise its memory is reused after the last use.
        argument: the argument that holds it, if it is passed by the caller.
    """

    size: Size
    kept: bool = False
    argument: Argument | None = None


Operand: TypeAlias = Value | Argument | Size | int
Kernel: TypeAlias = Callable[[int, int], None]
Instruction: TypeAlias = tuple[Kernel, Sequence[Operand]]


def kernel(function: Kernel) -> Kernel:
    """Register a kernel, a function of the address of its operands and the number of samples; compiled on first use."""
    _compiled[function] = lru_cache(partial(_compile, function))
    return function


_compiled: dict[Kernel, Callable[[], Any]] = {}


def _compile(function: Kernel) -> Any:
    return cfunc(types.void(types.intp, types.intp), cache=True, error_model="numpy")(function)


@intrinsic
def call(typing, address, at, samples):
    """Call a compiled kernel by its address."""

    def generate(context, builder, signature, args):
        word = ir.IntType(64)
        function = ir.FunctionType(ir.VoidType(), [word, word]).as_pointer()
        builder.call(builder.inttoptr(args[0], function), args[1:])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@njit(cache=True, nogil=True)
def _run(kernels, operands, steps, group, begin, end):
    current = np.empty_like(operands)
    at = address_of(current)
    for first in range(begin, end, group):
        for i in range(operands.shape[0]):
            for k in range(operands.shape[1]):
                current[i, k] = operands[i, k] + first * steps[i, k]
        for i in range(operands.shape[0]):
            call(kernels[i], at + 8 * i * operands.shape[1], min(group, end - first))
    keep_alive(current)


class _Layout(NamedTuple):
    """Addresses of the operands for N rows: ``constant + samples * per_batch + base + sample * steps``."""

    constant: np.ndarray
    per_batch: np.ndarray
    steps: np.ndarray
    group: int
    scratch: int
    kept: int


class Part:
    """Sequence of instructions, such as the forward or the backward pass of a program.

    Args:
        instructions: kernels with their operands.
        kept: values saved for backward, in the same order for all parts.
    """

    def __init__(self, instructions: Sequence[Instruction], kept: Sequence[Value]) -> None:
        self.instructions = [
            (kernel, [_operand_layout(operand) for operand in operands]) for kernel, operands in instructions
        ]
        self._kept = kept
        self._kernels: np.ndarray | None = None
        self._areas = np.zeros((len(instructions), _OPERANDS), np.int64)
        for i, (_, operands) in enumerate(self.instructions):
            for k, operand in enumerate(operands):
                if isinstance(operand, Value):
                    self._areas[i, k] = _KEPT if operand.kept else _SCRATCH
                elif isinstance(operand, Argument):
                    self._areas[i, k] = _OWN + operand.place
        self.layout = lru_cache(256)(self._layout)

    def _layout(self, width: int) -> _Layout:
        constant, per_batch, steps = np.zeros((3, *self._areas.shape), np.int64)
        group = max(1, _GROUP_ROWS // width)
        places, scratch = _scratch(self.instructions, width, group)
        kept_places, kept = {}, 0
        for value in self._kept:
            kept_places[value] = kept
            kept += 4 * value.size.of(width)
        for i, (_, operands) in enumerate(self.instructions):
            for k, operand in enumerate(operands):
                if isinstance(operand, Size):
                    constant[i, k] = operand.of(width)
                elif isinstance(operand, Argument):
                    steps[i, k] = operand.step.of(width) * operand.unit
                elif not isinstance(operand, Value):
                    constant[i, k] = operand
                elif operand.kept:
                    per_batch[i, k], steps[i, k] = kept_places[operand], 4 * operand.size.of(width)
                else:
                    constant[i, k] = places[operand]
        return _Layout(constant, per_batch, steps, group, scratch, kept)

    def run(self, arguments: Sequence[Sequence[int]], kept: int, width: int, ends: Sequence[int]) -> None:
        """Run the instructions on one core per range of samples.

        Args:
            arguments: arguments of the program, for each range.
            kept: address of the saved values, :meth:`kept_bytes` per sample.
            width: N.
            ends: end of each range; the last one is the number of samples.
        """
        if self._kernels is None:
            self._kernels = np.array([_compiled[kernel]().address for kernel, _ in self.instructions])
        kernels, layout = self._kernels, self.layout(width)
        fixed = layout.constant + ends[-1] * layout.per_batch

        work = []
        for number, end in enumerate(ends):
            begin = ends[number - 1] if number else 0
            areas = np.array([0, kept, 0, *arguments[number]], np.int64)
            work.append((fixed + areas[self._areas], begin, end))

        def run_range(operands: np.ndarray, begin: int, end: int) -> None:
            memory = _scratch_memory(layout.scratch)
            operands += (self._areas == _SCRATCH) * memory.ctypes.data
            _run(kernels, operands, layout.steps, layout.group, begin, end)

        futures = [thread_pool(len(ends) - 1).submit(run_range, *arguments_of_range) for arguments_of_range in work[1:]]
        run_range(*work[0])
        for future in futures:
            future.result()

    def kept_bytes(self, width: int) -> int:
        """Return the number of bytes that a sample of N rows saves for backward."""
        return self.layout(width).kept


def _operand_layout(operand: Operand) -> Operand:
    return operand.argument if isinstance(operand, Value) and operand.argument is not None else operand


def share_ends(samples: int, width: int) -> list[int]:
    """Split samples of N rows into ranges, one per core if there are enough rows, and return the end of each."""
    ranges = max(1, min(cores(), samples, samples * width // _MIN_ROWS))
    return [samples * (i + 1) // ranges for i in range(ranges)]


class _Memory(threading.local):
    array = np.empty(0, np.uint8)


_memory = _Memory()


def _scratch_memory(size: int) -> np.ndarray:
    """Return the scratch memory of this thread."""
    if len(_memory.array) < size:
        _memory.array = np.empty(size, np.uint8)
    return _memory.array


def _scratch(instructions: Sequence[Instruction], width: int, group: int) -> tuple[dict[Value, int], int]:
    """Assign scratch memory to the values that are not kept, and return their offsets and the total size in bytes.

    The memory of a value is reused after its last use.
    """
    last: dict[Value, int] = {}
    for i, (_, operands) in enumerate(instructions):
        last |= {operand: i for operand in operands if isinstance(operand, Value) and not operand.kept}
    places: dict[Value, int] = {}
    free: list[tuple[int, int]] = []  # sizes and places
    total = 64
    for i, (_, operands) in enumerate(instructions):
        own = dict.fromkeys(operand for operand in operands if operand in last)
        for value in own:
            if value in places:
                continue
            size = -(-4 * group * value.size.of(width) // 64) * 64
            fits = [entry for entry in free if entry[0] >= size]
            if fits:
                entry = min(fits)
                free.remove(entry)
                places[value] = entry[1]
                if entry[0] > size:
                    free.append((entry[0] - size, entry[1] + size))
            else:
                places[value] = total
                total += size
        for value in own:
            if last[value] == i:
                free.append((-(-4 * group * value.size.of(width) // 64) * 64, places[value]))
    return places, total
