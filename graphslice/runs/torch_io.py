"""Files of ``torch.save``."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import torch

from graphslice.errors import InputError


def torch_bytes(contents: dict[str, Any]) -> memoryview:
    """Serialise with :func:`torch.save`, in memory, since it does not report a full disk as such."""
    file = io.BytesIO()
    torch.save(contents, file)
    return file.getbuffer()


def load_weights(path: Path) -> dict[str, Any]:
    """Read a file with :func:`torch.load` without running code: tensors, plain values, and the classes that
    ``torch.serialization.safe_globals`` allows; else an :class:`InputError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice to developers
            return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception:  # a damaged file can raise almost any error
        raise InputError(
            f"cannot read {path}: it is truncated or damaged, or holds objects other than weights and plain values, "
            "which would run code"
        ) from None
