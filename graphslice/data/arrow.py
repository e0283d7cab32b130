"""NumPy arrays and texts as Arrow arrays, and back.

``pyarrow.array`` and ``to_numpy`` would do, but import pandas to see whether they were given a Series: that takes
longer than the prediction of some molecules.
"""

from __future__ import annotations

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


def bool_array(values: np.ndarray) -> pa.Array:
    """A one-dimensional array of truth values."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """Texts, None for null."""
    if all(text is None for text in texts):
        return pa.nulls(len(texts), pa.string())
    encoded = [b"" if text is None else text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    valid = np.array([text is not None for text in texts])
    buffers = [None if valid.all() else _bits(valid), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
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
