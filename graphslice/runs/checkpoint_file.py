"""Files of models in the format safetensors: named arrays, and all other values as JSON in the header.

Reading one needs no torch and runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from graphslice.errors import InputError, shown
from graphslice.system.files import atomic_write

#: Key of the header under which the JSON is.
KEY = "graphslice"
# Errors that damaged and foreign files cause.
_UNREADABLE = (SafetensorError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)

Parsed = TypeVar("Parsed")


def write_values(path: Path, values: dict[str, Any]) -> None:
    """Write nested dictionaries and lists of arrays and plain values; the name of an array is the keys and indices that
    lead to it, such as ``stacking.forest.0.feature``."""
    content = to_bytes(values)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def to_bytes(values: dict[str, Any]) -> bytes:
    """Return the contents of the file of :func:`write_values`."""
    arrays: dict[str, np.ndarray] = {}
    plain = _without_arrays(values, "", arrays)
    # One key of the header only: the order of several is random.
    return save(arrays, {KEY: json.dumps(plain, allow_nan=False)})


def _without_arrays(values: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Move the arrays of nested values to ``arrays``; None stays in their places."""
    if isinstance(values, np.ndarray):
        arrays[name] = np.asarray(values, order="C")
        return None
    prefix = f"{name}." if name else ""
    if isinstance(values, dict):
        return {key: _without_arrays(value, f"{prefix}{key}", arrays) for key, value in values.items()}
    if isinstance(values, list):
        return [_without_arrays(value, f"{prefix}{index}", arrays) for index, value in enumerate(values)]
    return values


def read_values(path: Path, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
    """Read the output of :func:`write_values` and return what ``parse`` makes of it; raises :class:`InputError` if the
    file is truncated, damaged or of another program, or ``parse`` fails."""
    try:
        with safe_open(path, "numpy") as file:
            values = json.loads((file.metadata() or {})[KEY])
            for name in file.keys():  # noqa: SIM118
                _insert(values, name, file.get_tensor(name))
        return parse(values)
    except InputError as error:
        raise InputError(f"cannot read {path}, written by GraphSlice {shown(values.get('version'))}: {error}") from None
    except _UNREADABLE:
        raise InputError(
            f"{path} is truncated, damaged or not a model of GraphSlice; 'graphslice import-checkpoint' converts those "
            "of Graphormer and Sliceformer"
        ) from None


def _insert(values: Any, name: str, array: np.ndarray) -> None:
    """Put an array where the keys in its name lead; where they lead to no container, the rest of the name is a key."""
    first, _, rest = name.partition(".")
    key: Any = int(first) if isinstance(values, list) else first
    if rest and (isinstance(values, list) or isinstance(values.get(key), dict | list)):
        _insert(values[key], rest, array)
    else:
        values[key if isinstance(values, list) else name] = array
