"""NumPy arrays and texts as Arrow arrays, and back.

``pyarrow.array`` and ``to_numpy`` would do, but import pandas to see whether they were given a Series: that takes
longer than the prediction of some molecules.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def number_array(values: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """A one-dimensional array of numbers, without a copy where its memory has no gaps.

    ``valid``: ``bool [R]``, false where the value is null.
    """
    values = np.ascontiguousarray(values)
    bitmap = None if valid is None else _bits(valid)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [bitmap, pa.py_buffer(values)])


def list_array(items: pa.Array, ptr: np.ndarray, valid: np.ndarray) -> pa.Array:
    """Lists of some items.

    Args:
        items: one list's behind another's.
        ptr: ``int64 [R + 1]``, where each list begins, and the last one ends.
        valid: ``bool [R]``, false where there is no list.
    """
    if ptr[-1] >= 2**31:
        return pa.LargeListArray.from_arrays(number_array(ptr), items, mask=bool_array(~valid))
    return pa.ListArray.from_arrays(number_array(ptr.astype(np.int32)), items, mask=bool_array(~valid))


def json_lists(array: pa.Array) -> list[str]:
    """Lists as JSON texts; of float32 the shortest numbers that read back the same. Empty where there is none.

    What JSON has not, such as dates, becomes text.
    """
    texts = []
    for items in array.to_pylist():
        if items is None:
            texts.append("")
            continue
        if pa.types.is_float32(array.type.value_type):
            items = [None if item is None or np.isnan(item) else float(str(np.float32(item))) for item in items]
        texts.append(json.dumps(items, ensure_ascii=False, default=str))
    return texts


def bool_array(values: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """A one-dimensional array of truth values; ``valid`` as of :func:`number_array`."""
    bitmap = None if valid is None else _bits(valid)
    return pa.Array.from_buffers(pa.bool_(), len(values), [bitmap, _bits(values)])


def binary_array(cells: Sequence[bytes]) -> pa.Array | pa.ChunkedArray:
    """Bytes; in chunks where they are more than 2 GiB."""
    offsets = np.cumsum([0, *map(len, cells)])
    if offsets[-1] >= 2**31:
        return pa.array(cells, pa.binary())
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(cells))]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers)


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """Texts, None for null; a question mark for bytes that are no text. Fast where most are null."""
    if texts.count(None) == len(texts):
        return pa.nulls(len(texts), pa.string())
    given = [row for row, text in enumerate(texts) if text is not None]
    encoded = [(texts[row] or "").encode(errors="replace") for row in given]
    offsets = np.zeros(len(texts) + 1, np.int32)
    offsets[np.array(given) + 1] = [len(text) for text in encoded]
    valid = np.zeros(len(texts), bool)
    valid[given] = True
    buffers = [_bits(valid), pa.py_buffer(np.cumsum(offsets, dtype=np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def valid_rows(array: pa.Array) -> np.ndarray:
    """``bool [R]``, false where an array has null."""
    bitmap = array.buffers()[0]
    if bitmap is None:
        return np.ones(len(array), bool)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(bool)


def float_values(array: pa.Array) -> np.ndarray:
    """The numbers of an array of floats, nan in place of null."""
    values = np.frombuffer(array.buffers()[1] or b"", array.type.to_pandas_dtype())
    return np.where(valid_rows(array), values[array.offset : array.offset + len(array)], np.nan)


def _bits(values: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
