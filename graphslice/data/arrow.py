"""Conversion between NumPy arrays or texts and Arrow arrays.

``pyarrow.array`` and ``to_numpy`` are avoided because they import pandas to check whether the argument is a Series,
which takes longer than the prediction of a few molecules.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def number_array(values: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """Convert an array of numbers ``[R]``; ``valid``: ``bool [R]``, false where the value is null."""
    values = np.ascontiguousarray(values)
    bitmap = None if valid is None else _bits(valid)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [bitmap, pa.py_buffer(values)])


def list_array(items: pa.Array, ptr: np.ndarray, valid: np.ndarray) -> pa.Array:
    """Create R lists of ``items[ptr[r]:ptr[r + 1]]``; ``valid``: ``bool [R]``, false where the list is null."""
    if ptr[-1] >= 2**31:
        return pa.LargeListArray.from_arrays(number_array(ptr), items, mask=bool_array(~valid))
    return pa.ListArray.from_arrays(number_array(ptr.astype(np.int32)), items, mask=bool_array(~valid))


def json_lists(column: pa.ChunkedArray) -> list[str]:
    """Format lists as JSON texts, float32 in the shortest form; null becomes ``""``, and types without JSON text."""
    texts = []
    for items in column.to_pylist():
        if items is None:
            texts.append("")
            continue
        if pa.types.is_float32(column.type.value_type):
            items = [None if item is None or np.isnan(item) else float(str(np.float32(item))) for item in items]
        texts.append(json.dumps(items, ensure_ascii=False, default=str))
    return texts


def bool_array(values: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """Convert a one-dimensional array of booleans; ``valid`` as in :func:`number_array`."""
    bitmap = None if valid is None else _bits(valid)
    return pa.Array.from_buffers(pa.bool_(), len(values), [bitmap, _bits(values)])


def binary_array(cells: Sequence[bytes], kind: pa.DataType | None = None) -> pa.Array | pa.ChunkedArray:
    """Convert byte strings to binary, or ``kind``; the array is chunked if they exceed 2 GiB."""
    kind = kind or pa.binary()
    offsets = np.cumsum([0, *map(len, cells)])
    if offsets[-1] >= 2**31:
        return pa.array(cells, kind)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(cells))]
    return pa.Array.from_buffers(kind, len(cells), buffers)


def is_text(kind: pa.DataType) -> bool:
    """True for the types of texts and bytes, and dictionaries of them."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    texts = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
    return kind in texts


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """Convert texts (None for null); surrogates become question marks. Fast if all are null."""
    if texts.count(None) == len(texts):
        return pa.nulls(len(texts), pa.string())
    array = binary_array([b"" if text is None else text.encode(errors="replace") for text in texts], pa.string())
    valid = _bits(np.array([text is not None for text in texts]))
    return pa.Array.from_buffers(pa.string(), len(texts), [valid, *array.buffers()[1:]])


def valid_rows(array: pa.Array) -> np.ndarray:
    """Return the validity mask of an array, ``bool [R]``, false where it is null."""
    bitmap = array.buffers()[0]
    if bitmap is None:
        return np.ones(len(array), bool)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(bool)


def number_values(array: pa.Array) -> np.ndarray:
    """Return the values of an array of numbers, a view of its buffer; undefined for null."""
    values = np.frombuffer(array.buffers()[1] or b"", array.type.to_pandas_dtype())
    return values[array.offset : array.offset + len(array)]


def list_offsets(array: pa.ListArray) -> np.ndarray:
    """Return the begin of each of R lists and the end of the last one, ``int32 [R + 1]``, a view of their buffer."""
    offsets = np.frombuffer(array.buffers()[1] or bytes(4), np.int32)  # Arrow may omit the buffer of an empty array
    return offsets[array.offset : array.offset + len(array) + 1]


def float_values(array: pa.Array) -> np.ndarray:
    """Return the values of a float array, nan for null."""
    return np.where(valid_rows(array), number_values(array), np.nan)


def _bits(values: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
