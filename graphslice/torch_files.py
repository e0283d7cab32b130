"""Files of ``torch.save``, read into numpy arrays: without torch, and without running code from the file.

Such a file is a zip archive of one pickle, ``data.pkl``, and the memory of its tensors, ``data/0``, ``data/1``, ...
The few operations that ``torch.save`` writes into the pickle are interpreted here; all others are rejected.
"""

from __future__ import annotations

import itertools
import pickletools
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from graphslice.errors import InputError

# Upper bounds on the values of a file, not counting the elements of its tensors, and on the dimensions of a tensor.
_MOST_VALUES, _MOST_DIMENSIONS = 2_000_000, 32
# Dtypes of the memory of tensors, by name.
_DTYPES = {
    "torch FloatStorage": "f4",
    "torch DoubleStorage": "f8",
    "torch HalfStorage": "f2",
    "torch BFloat16Storage": "u2",  # numpy has no such numbers: they are converted to float32
    "torch LongStorage": "i8",
    "torch IntStorage": "i4",
    "torch ShortStorage": "i2",
    "torch CharStorage": "i1",
    "torch ByteStorage": "u1",
    "torch BoolStorage": "u1",  # any other byte than 0 is True
}
_DICT, _TENSOR, _PARAMETER = (
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
)
# Operations of a pickle that put a value on the stack: their argument, a constant, or an empty container.
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Excessive(ValueError):
    """A file would need far more memory than it has bytes."""


class Rejected(ValueError):
    """A file holds something else than tensors and plain values."""


@dataclass(frozen=True, slots=True)
class _Name:
    """A class or function that the pickle refers to, by module and name; it is never imported or called."""

    text: str


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory of tensors: a key of the archive, a key of :data:`_DTYPES` and the number of elements."""

    key: str
    kind: str
    elements: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor: its memory, and the offset, shape and strides in elements."""

    memory: _Memory
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch_file(path: Path) -> dict[str, Any]:
    """Read a file that ``torch.save`` wrote for a dictionary of tensors and plain values.

    Returns:
        The dictionary, with tensors as arrays: bfloat16 as float32, any other dtype as it is. Nested dictionaries of
        any kind become plain ones.

    Raises:
        InputError: if the file is damaged, holds anything else, or would need far more memory than it has bytes.
    """
    with path.open("rb") as file:
        start = file.read(1)
        try:
            check_archive(path)
            with zipfile.ZipFile(file) as archive:
                reader = _Reader(archive)
                contents = reader.interpret()
                check_values(contents)
                contents = reader.arrays(contents)
        except Exception as error:  # a damaged file can raise almost any error
            raise InputError(f"cannot read {path}: {reason_of(error, start)}") from None
    if not isinstance(contents, dict):
        raise InputError(f"cannot read {path}: it does not hold a checkpoint")
    return contents


def reason_of(error: Exception, start: bytes = b"") -> str:
    """Describe why a file cannot be read; ``start``: its first byte, if no pickle is expected."""
    if isinstance(error, Excessive):
        return f"it would need far more memory than it has bytes ({error})"
    if isinstance(error, Rejected):
        return "it holds objects other than weights and plain values, and loading them would run code"
    if start == b"\x80":
        return (
            "it is a pickle and not a GraphSlice checkpoint; 'graphslice import-checkpoint' converts those of "
            "Graphormer and Sliceformer"
        )
    return "it is truncated, damaged or not a checkpoint"


def check_archive(path: Path) -> None:
    """Raise :class:`Excessive` for a compressed archive, which torch never writes and which could exhaust memory."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()) > path.stat().st_size:
                raise Excessive("a compressed archive")


def check_values(values: Any, check_other: Callable[[Any], None] = lambda value: None) -> None:
    """Check the number of values of nested containers, where one that several containers share counts each time.

    Args:
        values: nested dictionaries, lists, tuples, sets and attributes.
        check_other: called with every value that is none of these.

    Raises:
        Excessive: if there are too many values, or a container contains itself.
    """
    _count(values, {}, check_other)


def _count(value: Any, known: dict[int, int], check_other: Callable[[Any], None]) -> int:
    """Count nested values; ``known`` holds the counts of the containers visited so far, by identity."""
    if isinstance(value, dict):
        parts: Iterable[Any] = itertools.chain(value.keys(), value.values())
    elif isinstance(value, list | tuple | set):
        parts = value
    else:
        check_other(value)
        parts = vars(value).values() if hasattr(value, "__dict__") and not isinstance(value, type) else ()
    if id(value) not in known:
        known[id(value)] = _MOST_VALUES  # while its parts are counted, so that one that contains itself is rejected
        known[id(value)] = 1 + sum(_count(part, known, check_other) for part in parts)
    if known[id(value)] >= _MOST_VALUES:
        raise Excessive("too many values")
    return known[id(value)]


class _Reader:
    """Reader of one archive: interprets its pickle, then turns tensors into arrays."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        self.folder = archive.namelist()[0].split("/")[0]
        self.memories: dict[_Memory, np.ndarray] = {}
        names = archive.namelist()
        self.order = ">" if f"{self.folder}/byteorder" in names and self._bytes("byteorder") == b"big" else "<"

    def _bytes(self, name: str) -> bytes:
        return self.archive.read(f"{self.folder}/{name}")

    def interpret(self) -> Any:
        """Return the value of the pickle: containers, plain values and :class:`_Tensor`."""
        stack: list[Any] = []
        marks: list[int] = []
        memo: dict[int, Any] = {}

        def pop_marked() -> list[Any]:
            begin = marks.pop()
            values = stack[begin:]
            del stack[begin:]
            return values

        for operation, argument, _ in pickletools.genops(self._bytes("data.pkl")):
            name = operation.name
            if name in _LITERALS:
                stack.append(argument)
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name in _EMPTY:
                stack.append(_EMPTY[name]())
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]  # type: ignore[index]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])  # type: ignore[index]
            elif name == "MARK":
                marks.append(len(stack))
            elif name == "TUPLE":
                stack.append(tuple(pop_marked()))
            elif name in _TUPLES:
                stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
            elif name in ("APPEND", "APPENDS"):
                values = [stack.pop()] if name == "APPEND" else pop_marked()
                _of_type(list, stack[-1]).extend(values)
            elif name in ("SETITEM", "SETITEMS"):
                values = [stack.pop(-2), stack.pop()] if name == "SETITEM" else pop_marked()
                _of_type(dict, stack[-1]).update(_items(values))
            elif name == "GLOBAL":
                stack.append(_known_name(str(argument)))
            elif name == "BINPERSID":
                stack.append(self._memory(stack.pop()))
            elif name == "REDUCE":
                arguments = stack.pop()
                stack.append(self._made(stack.pop(), arguments))
            elif name == "BUILD":  # attributes of a dictionary, which are of no use here
                stack.pop()
                _of_type(dict, stack[-1])
            elif name == "STOP":
                return stack.pop()
            elif name != "PROTO":
                raise Rejected
        raise ValueError("the pickle has no end")

    def _memory(self, identity: Any) -> _Memory:
        """Return the memory that a persistent identity of the pickle stands for."""
        word, kind, key, _, elements = identity  # the fourth is the device
        if word != "storage" or not isinstance(kind, _Name) or kind.text not in _DTYPES or type(key) is not str:
            raise Rejected
        part = self.archive.getinfo(f"{self.folder}/data/{key}")
        if part.compress_type != zipfile.ZIP_STORED or type(elements) is not int:
            raise ValueError("the memory of a tensor is compressed, or its size is not a number")
        if part.file_size != elements * np.dtype(_DTYPES[kind.text]).itemsize:
            raise ValueError("the memory of a tensor has another size")
        return _Memory(key, kind.text, elements)

    def _made(self, name: Any, arguments: Any) -> Any:
        """Return what a call of the pickle makes."""
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise Rejected
        if name.text == _DICT and not arguments:
            return {}
        if name.text == _PARAMETER and isinstance(arguments[0], _Tensor):
            return arguments[0]
        if name.text == _TENSOR and isinstance(arguments[0], _Memory) and not any(arguments[6:]):
            return _checked_tensor(*arguments[:4])
        raise Rejected

    def arrays(self, value: Any) -> Any:
        """Replace the tensors of nested values by arrays."""
        if isinstance(value, _Tensor):
            return self._array(value)
        if isinstance(value, dict):
            return {key: self.arrays(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.arrays(part) for part in value)
        if isinstance(value, _Name | _Memory):
            raise Rejected
        return value

    def _array(self, tensor: _Tensor) -> np.ndarray:
        memory = tensor.memory
        if memory not in self.memories:
            elements = np.frombuffer(bytearray(self._bytes(f"data/{memory.key}")), self.order + _DTYPES[memory.kind])
            self.memories[memory] = _native(elements, memory.kind)
        elements = self.memories[memory]
        strides = [stride * elements.itemsize for stride in tensor.strides]
        return np.ndarray(tensor.shape, elements.dtype, elements, tensor.offset * elements.itemsize, strides)


def _native(elements: np.ndarray, kind: str) -> np.ndarray:
    """Convert elements to this machine's byte order and numpy's dtypes."""
    elements = elements.astype(elements.dtype.newbyteorder("="), copy=False)
    if kind == "torch BFloat16Storage":  # the first half of a float32
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements != 0 if kind == "torch BoolStorage" else elements


def _known_name(name: str) -> _Name:
    if name not in _DTYPES and name not in (_DICT, _TENSOR, _PARAMETER):
        raise Rejected
    return _Name(name)


def _of_type(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise Rejected
    return value


def _items(values: Sequence[Any]) -> Iterable[tuple[str | int, Any]]:
    """Pair keys and values; other keys than texts and numbers are rejected, since nested ones may exhaust the stack."""
    keys, values = values[::2], values[1::2]
    if not all(isinstance(key, str | int) for key in keys):
        raise Rejected
    return zip(keys, values, strict=True)


def _checked_tensor(memory: _Memory, offset: Any, shape: Any, strides: Any) -> _Tensor:
    """Return a tensor; raise ValueError if it reaches beyond its memory, Excessive if it repeats elements of it."""
    numbers = (offset, *shape, *strides)
    same = len(shape) == len(strides) <= _MOST_DIMENSIONS
    if not same or not all(type(number) is int and 0 <= number < 2**62 for number in numbers):
        raise ValueError("the shape of a tensor is invalid")
    if prod(shape) > memory.elements:
        raise Excessive("a tensor of repeated elements")
    # In Python's integers: NumPy's check of the strides of an array wraps around at 64 bits.
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if offset > memory.elements or (prod(shape) and last >= memory.elements):
        raise ValueError("a tensor reaches beyond its memory")
    return _Tensor(memory, offset, tuple(shape), tuple(strides))
