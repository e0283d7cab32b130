"""Files of other programs, read without running code: the tensors, and what plain values stand beside them."""

from __future__ import annotations

import io
import json
import pickletools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphslice.checkpoint import check_archive, load_weights
from graphslice.errors import InputError
from graphslice.run_files import CONFIG

#: The files of a Hugging Face folder that hold weights, the one to use first.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
#: The file beside them that holds the configuration.
HF_CONFIG = "config.json"


def read_external_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights of a checkpoint of another program, and the plain values of its configuration by name.

    Args:
        path: a file of ``torch.save`` or safetensors, or a Hugging Face folder.

    Raises:
        InputError: if it cannot be read, asks for code to be run, or holds no weights.
    """
    settings: dict[str, Any] = {}
    path = path.parent if path.name == HF_CONFIG else path
    if path.is_dir():
        settings = _json_settings(path)
        path = _weight_file(path)
    elif path.name in WEIGHT_FILES and (path.parent / HF_CONFIG).is_file():
        settings = _json_settings(path.parent)
    if not path.is_file():
        raise InputError(f"no checkpoint at {path}")
    contents = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for name in ("args", "cfg", "hyper_parameters"):
        settings |= _plain_values(contents.get(name))
    state = next((contents[key] for key in ("state_dict", "model") if isinstance(contents.get(key), dict)), contents)
    return {str(name): value for name, value in state.items() if _is_weight(value)}, settings


def parse_dropout(settings: dict[str, Any], names: Sequence[str], default: float) -> float:
    """A rate of dropout by the first of its names that there is, if it is one."""
    value = next((settings[name] for name in names if name in settings), default)
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 else default


def _is_weight(value: Any) -> bool:
    """Whether it is a tensor of floating-point numbers that are there: not sparse, quantized, or without memory."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout == torch.strided
        and value.device.type == "cpu"
    )


def _weight_file(folder: Path) -> Path:
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    if any(folder.glob("*.index.json")):
        raise InputError(f"{folder} holds weights in several files: join them into one {WEIGHT_FILES[0]} first")
    raise InputError(f"{folder} holds no weights: expected {' or '.join(WEIGHT_FILES)} beside {HF_CONFIG}")


def _json_settings(folder: Path) -> dict[str, Any]:
    path = folder / HF_CONFIG
    if not path.is_file():
        what = "is a run of GraphSlice already" if (folder / CONFIG).is_file() else f"holds no {HF_CONFIG}"
        raise InputError(f"{folder} {what}: give a Hugging Face folder, or the file of a checkpoint")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise InputError(f"{path} is no JSON file") from None
    if not isinstance(settings, dict):
        raise InputError(f"{path} holds no configuration")
    return settings


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError, KeyError):
        raise InputError(f"cannot read {path}: it is truncated, damaged or no safetensors file") from None


class _Stub:
    """Stands for any class that a file names: does nothing, and keeps the plain values that it is given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.values: Any = args[0] if args else None

    def __setstate__(self, state: Any) -> None:
        self.values = state


def _read_torch(path: Path) -> dict[str, Any]:
    """What ``torch.save`` wrote, objects of other programs replaced by inert ones."""
    stubs: list[Any] = [(type("_Stub", (_Stub,), {}), name) for name in _unknown_globals(path)]
    with torch.serialization.safe_globals(stubs):
        return load_weights(path)


def _unknown_globals(path: Path) -> list[str]:
    """The classes and functions that a file asks for and that torch does not read by itself."""
    try:
        check_archive(path)
        return torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # damage, which the strict reader tells, or the format of before torch 1.6
        return sorted(_names_in_old_format(path))


def _names_in_old_format(path: Path) -> set[str]:
    """The same of a file that is several pickles one behind another."""
    names: set[str] = set()
    with path.open("rb") as file:
        if file.read(1) != b"\x80":
            return names
        stream = io.BytesIO(b"\x80" + file.read(1 << 24))
    known = {f"{kind.__module__}.{kind.__qualname__}" for kind in (torch.Size, dict)}
    try:
        while True:
            texts: list[str] = []
            for operation, argument, _ in pickletools.genops(stream):
                if operation.name == "GLOBAL":
                    names.add(str(argument).replace(" ", "."))
                elif operation.name == "STACK_GLOBAL" and len(texts) > 1:
                    names.add(".".join(texts[-2:]))
                elif isinstance(argument, str):
                    texts.append(argument)
    except Exception:  # the tensors' bytes begin
        pass
    return {name for name in names if not name.startswith("torch.") and name not in known | _KNOWN_TO_TORCH}


# What torch's strict reader takes as it is.
_KNOWN_TO_TORCH = {"collections.OrderedDict", "collections.Counter", "builtins.set", "builtins.bytearray"}


def _plain_values(found: Any, depth: int = 0) -> dict[str, Any]:
    """All names with plain values in what a file says of itself, however nested; the outermost counts."""
    if isinstance(found, _Stub):
        found = found.values
    if not isinstance(found, dict) or depth > 6:
        return {}
    plain: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, dict | _Stub):
            plain = _plain_values(value, depth + 1) | plain
        elif isinstance(value, str | int | float | bool | None):
            plain[str(name)] = value
    return plain
