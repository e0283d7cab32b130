"""Programs: many compiled kernels in a row that run without Python between them.

What Python and torch do around an operation takes some tens of microseconds: as long as the operation itself, where
molecules are few and small; and while Python works, no other core does. A program is put together once. It then runs
on every core for samples of its own, a few at a time, so that their values stay in a near cache from the first
instruction to the last.
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

# Rows that go through a program together: their values fit in the second cache, and weights are read once for all.
_GROUP_ROWS = 112
# A core more is asked if each gets so many rows.
_MIN_ROWS = 64
# The most operands of a kernel.
_OPERANDS = 17
# What every program has, before the arguments of its own: nothing, what backward reads, what is overwritten.
_NOTHING, _KEPT, _SCRATCH, _OWN = range(4)


class _Enabled:
    on = True


def programs_enabled() -> bool:
    """Whether programs are in use in this process."""
    return _Enabled.on


def disable_programs() -> None:
    """Let no program run in this process any more: they fail here, or compute something else."""
    _Enabled.on = False


@contextmanager
def programs_disabled() -> Iterator[None]:
    """While it lasts, no program runs."""
    before, _Enabled.on = _Enabled.on, False
    try:
        yield
    finally:
        _Enabled.on = before


class Size(NamedTuple):
    """How many numbers of 4 bytes there are of a sample of N rows: ``row N + pair N^2 + sample``. An operand too."""

    row: int = 0
    pair: int = 0
    sample: int = 0

    def of(self, width: int) -> int:
        """For N rows."""
        return self.row * width + self.pair * width**2 + self.sample


class Argument(NamedTuple):
    """What the caller of a program has: the address of a tensor, or a number.

    Attributes:
        place: among the arguments of the program.
        step: how large each sample of it is; nothing of what is the same for all.
        unit: by how much it grows with a number of 4 bytes: 4 of an address.
    """

    place: int
    step: Size = Size()
    unit: int = 4


@dataclass(eq=False)
class Value:
    """What an instruction makes of every sample.

    Attributes:
        size: of a sample.
        kept: whether it stays until backward has run; else it is overwritten behind its last reader.
        argument: where it is the caller's.
    """

    size: Size
    kept: bool = False
    argument: Argument | None = None


Operand: TypeAlias = Value | Argument | Size | int
Kernel: TypeAlias = Callable[[int, int], None]
Instruction: TypeAlias = tuple[Kernel, Sequence[Operand]]


def kernel(function: Kernel) -> Kernel:
    """Decorator: a function of the address of its operands and of a number of samples; compiled when first used."""
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
    """Where a part of a program finds its operands in samples of N rows: ``constant + samples * whole + its area``,
    and ``steps`` further for each sample."""

    constant: np.ndarray
    whole: np.ndarray
    steps: np.ndarray
    group: int
    scratch: int
    kept: int


class Part:
    """Instructions that run one after another.

    Args:
        instructions: the kernels with their operands; the samples of a kernel's values are its first so many.
        kept: the values that stay, those of the parts that ran before included, in one order for all.
    """

    def __init__(self, instructions: Sequence[Instruction], kept: Sequence[Value]) -> None:
        self.instructions = [
            (kernel, [_operand_layout(given) for given in operands]) for kernel, operands in instructions
        ]
        self._kept = kept
        self._kernels: np.ndarray | None = None
        self._areas = np.zeros((len(instructions), _OPERANDS), np.int64)
        for i, (_, operands) in enumerate(self.instructions):
            for k, given in enumerate(operands):
                if isinstance(given, Value):
                    self._areas[i, k] = _KEPT if given.kept else _SCRATCH
                elif isinstance(given, Argument):
                    self._areas[i, k] = _OWN + given.place
        self.layout = lru_cache(256)(self._layout)

    def _layout(self, width: int) -> _Layout:
        constant, whole, steps = np.zeros((3, *self._areas.shape), np.int64)
        group = max(1, _GROUP_ROWS // width)
        places, scratch = _scratch(self.instructions, width, group)
        kept_places, kept = {}, 0
        for value in self._kept:
            kept_places[value] = kept
            kept += 4 * value.size.of(width)
        for i, (_, operands) in enumerate(self.instructions):
            for k, given in enumerate(operands):
                if isinstance(given, Size):
                    constant[i, k] = given.of(width)
                elif isinstance(given, Argument):
                    steps[i, k] = given.step.of(width) * given.unit
                elif not isinstance(given, Value):
                    constant[i, k] = given
                elif given.kept:
                    whole[i, k], steps[i, k] = kept_places[given], 4 * given.size.of(width)
                else:
                    constant[i, k] = places[given]
        return _Layout(constant, whole, steps, group, scratch, kept)

    def run(self, arguments: Sequence[Sequence[int]], kept: int, width: int, ends: Sequence[int]) -> None:
        """Run it on as many cores as there are shares of the samples.

        Args:
            arguments: A numbers of each share.
            kept: the address of what stays: as many bytes a sample as :meth:`kept_bytes` says.
            width: N.
            ends: of the shares, the first from 0; the last is the number of samples.
        """
        if self._kernels is None:
            self._kernels = np.array([_compiled[kernel]().address for kernel, _ in self.instructions])
        kernels, layout = self._kernels, self.layout(width)
        fixed = layout.constant + ends[-1] * layout.whole

        work = []
        for number, end in enumerate(ends):
            begin = ends[number - 1] if number else 0
            areas = np.array([0, kept, 0, *arguments[number]], np.int64)
            work.append((fixed + areas[self._areas], begin, end))

        def share(operands: np.ndarray, begin: int, end: int) -> None:
            memory = _scratch_memory(layout.scratch)
            operands += (self._areas == _SCRATCH) * memory.ctypes.data
            _run(kernels, operands, layout.steps, layout.group, begin, end)

        others = [thread_pool(len(ends) - 1).submit(share, *each) for each in work[1:]]
        share(*work[0])
        for other in others:
            other.result()

    def kept_bytes(self, width: int) -> int:
        """How many bytes of a sample of N rows stay until backward."""
        return self.layout(width).kept


def _operand_layout(given: Operand) -> Operand:
    return given.argument if isinstance(given, Value) and given.argument is not None else given


def share_ends(samples: int, width: int) -> list[int]:
    """The ends of the shares of samples of N rows, one for a core: as many as there are, and are worth it."""
    shares = max(1, min(cores(), samples, samples * width // _MIN_ROWS))
    return [samples * (share + 1) // shares for share in range(shares)]


class _Memory(threading.local):
    array = np.empty(0, np.uint8)


_memory = _Memory()


def _scratch_memory(size: int) -> np.ndarray:
    """Memory of this thread for what is overwritten."""
    if len(_memory.array) < size:
        _memory.array = np.empty(size, np.uint8)
    return _memory.array


def _scratch(instructions: Sequence[Instruction], width: int, group: int) -> tuple[dict[Value, int], int]:
    """Where each value begins that does not stay, and how many bytes they take: of those behind their last reader
    others take the place."""
    last: dict[Value, int] = {}
    for i, (_, operands) in enumerate(instructions):
        last |= {given: i for given in operands if isinstance(given, Value) and not given.kept}
    places: dict[Value, int] = {}
    free: list[tuple[int, int]] = []  # sizes and places
    total = 64
    for i, (_, operands) in enumerate(instructions):
        own = dict.fromkeys(given for given in operands if given in last)
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
