"""Files of ``torch.save`` that torch itself writes, or reads where other programs wrote them."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphslice.errors import InputError
from graphslice.torch_files import Excessive, Rejected, check_archive, check_values, reason_of


def torch_bytes(contents: dict[str, Any]) -> memoryview:
    """Serialise with :func:`torch.save`, in memory, since it does not report a full disk as such."""
    file = io.BytesIO()
    torch.save(contents, file)
    return file.getbuffer()


def as_tensors(values: Any) -> Any:
    """Replace the arrays of nested values by tensors: the contents of a file for :func:`torch_bytes`."""
    if isinstance(values, dict):
        return {name: as_tensors(value) for name, value in values.items()}
    if isinstance(values, list):
        return [as_tensors(value) for value in values]
    return torch.from_numpy(np.array(values)) if isinstance(values, np.ndarray) else values


def load_weights(path: Path) -> dict[str, Any]:
    """Read a file of another program with :func:`torch.load`, without running code.

    Besides tensors and plain values it may hold the classes that ``torch.serialization.safe_globals`` allows.

    Raises:
        InputError: if the file cannot be read or would run code.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice to developers
            check_archive(path)
            contents = torch.load(path, map_location="cpu", weights_only=True)
            check_values(contents, _check_tensor)
    except Exception as error:  # a damaged file can raise almost any error
        is_file_of_torch = path.open("rb").read(1) in (b"P", b"\x80")  # first byte of an archive or pickle
        if is_file_of_torch and re.search("[Uu]nsupported|WeightsUnpickler", str(error)):
            error = Rejected()
        raise InputError(f"cannot read {path}: {reason_of(error)}") from None
    if not isinstance(contents, dict):
        raise InputError(f"cannot read {path}: it does not hold a checkpoint")
    return contents


def _check_tensor(value: Any) -> None:
    """Raise :class:`Excessive` for a tensor with more elements than its memory holds."""
    dense = isinstance(value, Tensor) and value.layout == torch.strided
    if dense and value.numel() * value.itemsize > value.untyped_storage().nbytes():
        raise Excessive("a tensor of repeated elements")
