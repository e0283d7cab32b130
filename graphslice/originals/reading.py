"""Reading of other programs' checkpoints without running code: tensors and plain values. Download of published ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from graphslice.errors import InputError
from graphslice.runs.torch_io import load_weights

# Files of a Hugging Face folder: weights, of which the first that exists is used, and the configuration.
_WEIGHT_FILES, _CONFIG = ("model.safetensors", "pytorch_model.bin"), "config.json"


def read_external_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the weights of a file or a Hugging Face folder, and the plain values of its configuration, both by name; a
    ValueError or SafetensorError if it is neither, an :class:`InputError` from :func:`load_weights`."""
    settings: dict[str, Any] = {}
    folder = path if path.is_dir() else path.parent
    if path.is_dir() or path.name in (_CONFIG, *_WEIGHT_FILES):
        if (folder / _CONFIG).is_file():
            settings = dict(json.loads((folder / _CONFIG).read_text(encoding="utf-8")))
        if path.name not in _WEIGHT_FILES:
            present = [name for name in _WEIGHT_FILES if (folder / name).is_file()]
            path = folder / (*present, *_WEIGHT_FILES)[0]
    if not path.is_file():
        raise ValueError(f"a folder needs {_CONFIG} and {' or '.join(_WEIGHT_FILES)}, and there is no {path}")
    contents: dict[str, Any] = dict(load_file(path)) if path.suffix == ".safetensors" else _read_torch(path)
    for name in ("args", "cfg", "hyper_parameters"):
        settings |= _plain_values(contents.get(name))
    state = next((contents[key] for key in ("state_dict", "model") if isinstance(contents.get(key), dict)), contents)
    return {str(name): value for name, value in state.items() if _is_weight(value)}, settings


def _is_weight(value: Any) -> bool:
    """True for a dense floating-point tensor with data: not sparse, not quantized, not on the meta device."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout == torch.strided
        and value.device.type == "cpu"
    )


class _Stub:
    """Inert replacement for any class that a file refers to; stores the values that it is created with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.values: Any = args[0] if args else None

    def __setstate__(self, state: Any) -> None:
        self.values = state


def _read_torch(path: Path) -> dict[str, Any]:
    """Read a file of ``torch.save``, with objects of other programs replaced by inert ones."""
    unknown: list[str] = []
    with suppress(Exception):  # a damaged file, which load_weights reports, or the format before torch 1.6
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    stubs: list[Any] = [(type("_Stub", (_Stub,), {}), name) for name in unknown]
    with torch.serialization.safe_globals(stubs):
        return load_weights(path)


def _plain_values(settings: Any, depth: int = 0) -> dict[str, Any]:
    """Flatten nested settings to names with plain values; of equal names the outermost is used."""
    if isinstance(settings, _Stub):
        settings = settings.values
    if not isinstance(settings, dict) or depth > 6:
        return {}
    plain: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict | _Stub):
            plain = _plain_values(value, depth + 1) | plain
        elif isinstance(value, str | int | float | bool | None):
            plain[str(name)] = value
    return plain


_HUB = "https://huggingface.co/clefourrier/{}/resolve/main/pytorch_model.bin"
_MICROSOFT = "https://ml2md.blob.core.windows.net/graphormer-ckpts/"
#: Published checkpoints by their names in Microsoft's repository: URLs of the same weights, tried in order. Its host
#: returned HTTP 409 for some time, so the copies with which Hugging Face's port is tested come first.
PUBLISHED = {
    "pcqm4mv1_graphormer_base": (_HUB.format("graphormer-base-pcqm4mv1"), _MICROSOFT + "checkpoint_best_pcqm4mv1.pt"),
    "pcqm4mv2_graphormer_base": (_HUB.format("graphormer-base-pcqm4mv2"), _MICROSOFT + "checkpoint_best_pcqm4mv2.pt"),
    "pcqm4mv1_graphormer_base_for_molhiv": (_MICROSOFT + "checkpoint_base_preln_pcqm4mv1_for_hiv.pt",),
}


def download(name: str, folder: Path, say: Callable[[str], None]) -> Path:
    """Return the file of a checkpoint of :data:`PUBLISHED`, downloading it if it is not in the folder; ``say`` is
    called with progress messages."""
    path = folder / f"{name}.pt"
    if path.is_file():
        say(f"{name}: using {path}, downloaded before")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    for address in PUBLISHED[name]:
        say(f"{name}: downloading {address}")
        try:
            torch.hub.download_url_to_file(address, str(path), progress=os.isatty(2))
            return path
        except (OSError, ValueError, RuntimeError) as error:
            failures.append(f"{address} ({getattr(error, 'reason', None) or error})")
    raise InputError(
        f"cannot download {name} from {' or '.join(failures)}; without a network, download one of these files on "
        "another machine and run graphslice import-checkpoint FILE"
    )
