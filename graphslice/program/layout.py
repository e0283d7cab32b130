"""Where the values of a program live: sizes, operands, and the memory that they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

# Rows that a program processes at once: their values fit in the L2 cache, and weights are read once for all of them.
_GROUP_ROWS = 112
#: Maximum number of operands of a kernel.
MAX_OPERANDS = 18
# Base addresses of operands: none, values saved for backward, scratch memory; then the arguments of the program.
_NOTHING, _KEPT, _SCRATCH, _OWN = range(4)
#: Item size of row numbers: a byte for up to 256 rows, else four.
ROW_NUMBER = 0


class NotTraceable(Exception):
    """Raised if a function cannot be traced; it is then run by torch."""


@dataclass(frozen=True)
class Size:
    """Polynomial ``sample + row N + pair N^2`` of the number of rows N, which is unknown when a program is traced."""

    sample: int = 0
    row: int = 0
    pair: int = 0

    def of(self, width: int) -> int:
        """Return the value for N rows."""
        return self.sample + self.row * width + self.pair * width**2

    def __add__(self, other: Size | int) -> Size:
        other = other if isinstance(other, Size) else Size(other)
        return Size(self.sample + other.sample, self.row + other.row, self.pair + other.pair)

    def __sub__(self, other: int) -> Size:
        return self + -other

    def __mul__(self, other: Size | int) -> Size:
        a, b = self, other if isinstance(other, Size) else Size(other)
        if (a.pair and (b.row or b.pair)) or (b.pair and a.row):
            raise NotTraceable("sizes beyond N^2")
        pair = a.row * b.row + a.pair * b.sample + a.sample * b.pair
        return Size(a.sample * b.sample, a.row * b.sample + a.sample * b.row, pair)

    __radd__, __rmul__ = __add__, __mul__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            self._unknown()
        parts = self.sample, self.row, self.pair
        return isinstance(other, Size) and parts == (other.sample, other.row, other.pair)

    def _unknown(self, *_: Any) -> Any:
        raise NotTraceable("the number of rows is unknown")

    __index__ = __bool__ = __lt__ = __le__ = __gt__ = __ge__ = _unknown


#: The number of rows N, graph token included, and that of atoms, N - 1.
N, ATOMS = Size(row=1), Size(-1, 1)


class Argument(NamedTuple):
    """Argument of a program: the address of an array or an integer, passed by the caller."""

    place: int  # index in the arguments of the program
    step: Size = Size()  # bytes of a sample, or increment of the integer per sample; 0 if the same for all samples


@dataclass(eq=False)
class Value:
    """Array of a program."""

    shape: tuple[Size | int, ...]  # of a sample
    itemsize: int = 4  # bytes of an element, or ROW_NUMBER
    kept: bool = False  # saved for the backward pass; otherwise its memory is reused after the last use
    argument: Argument | None = None  # holds it, if it is passed by the caller
    gradient: Argument | None = None  # holds its gradient, if the caller wants one
    shared: bool = False  # the same array in all samples, such as a parameter
    deferred: object = field(default=None, repr=False)

    @property
    def size(self) -> Size:
        """Number of elements of a sample."""
        return Size(1) * math.prod(self.shape)

    def bytes_of(self, width: int) -> int:
        """Return the number of bytes of a sample of N rows."""
        return self.size.of(width) * (self.itemsize or (1 if width <= 256 else 4))


Operand: TypeAlias = Value | Argument | Size | int
Kernel: TypeAlias = Callable[..., None]
Instruction: TypeAlias = tuple[Kernel, Sequence[Operand]]


class Addresses(NamedTuple):
    """Operands for N rows: ``constant + samples * per_batch + base[areas] + sample * steps``, int64 ``[I, K]`` each."""

    constant: np.ndarray
    per_batch: np.ndarray
    steps: np.ndarray
    group: int  # samples that are processed at once
    scratch: int  # bytes of scratch memory
    kept: int  # bytes that a sample saves for backward


class Layout:
    """Places of the operands of a sequence of instructions; ``kept`` values are saved for backward, in the same order
    for the forward and the backward pass."""

    def __init__(self, instructions: Sequence[Instruction], kept: Sequence[Value]) -> None:
        self.instructions = [(kernel, [_place(operand) for operand in operands]) for kernel, operands in instructions]
        self._kept = kept
        self.areas = np.zeros((len(instructions), MAX_OPERANDS), np.int64)
        for i, k, operand in self._operands():
            if isinstance(operand, Value):
                self.areas[i, k] = _KEPT if operand.kept else _SCRATCH
            elif isinstance(operand, Argument):
                self.areas[i, k] = _OWN + operand.place

    def _operands(self):
        for i, (_, operands) in enumerate(self.instructions):
            for k, operand in enumerate(operands):
                yield i, k, operand

    def for_width(self, width: int) -> Addresses:
        """Compute the addresses for N rows."""
        constant, per_batch, steps = np.zeros((3, *self.areas.shape), np.int64)
        group = max(1, _GROUP_ROWS // width)
        places, scratch = _scratch_places([operands for _, operands in self.instructions], width, group)
        kept_places, kept = {}, 0
        for value in self._kept:
            kept_places[value] = kept
            kept += value.bytes_of(width)
        for i, k, operand in self._operands():
            if isinstance(operand, Size):
                constant[i, k] = operand.of(width)
            elif isinstance(operand, Argument):
                steps[i, k] = operand.step.of(width)
            elif not isinstance(operand, Value):
                constant[i, k] = operand
            elif operand.kept:
                per_batch[i, k], steps[i, k] = kept_places[operand], operand.bytes_of(width)
            else:
                constant[i, k] = places[operand]
        return Addresses(constant, per_batch, steps, group, scratch, kept)


def _place(operand: Operand) -> Operand:
    return operand.argument if isinstance(operand, Value) and operand.argument is not None else operand


def _scratch_places(
    operands_by_instruction: Sequence[Sequence[Operand]], width: int, group: int
) -> tuple[dict[Value, int], int]:
    """Assign scratch memory to the values that are not kept, reused after their last use; return their offsets and the
    total size in bytes."""
    used = [
        dict.fromkeys(operand for operand in operands if isinstance(operand, Value) and not operand.kept)
        for operands in operands_by_instruction
    ]
    last = {value: i for i, values in enumerate(used) for value in values}
    places: dict[Value, int] = {}
    free: list[tuple[int, int]] = []  # sizes and places
    total = 64
    for i, values in enumerate(used):
        for value in values:
            if value in places:
                continue
            size = _aligned(group * value.bytes_of(width))
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
        for value in values:
            if last[value] == i:
                free.append((_aligned(group * value.bytes_of(width)), places[value]))
    return places, total


def _aligned(size: int) -> int:
    """Round up to a multiple of a cache line."""
    return -(-size // 64) * 64
