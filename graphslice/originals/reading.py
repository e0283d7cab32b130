"""Reading of other programs' checkpoints without running code: tensors and plain values. Download of published ones."""

from __future__ import annotations

import hashlib
import json
import os
import re
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphslice.errors import InputError
from graphslice.runs.run_files import CONFIG
from graphslice.runs.torch_io import load_weights

#: Weight files of a Hugging Face folder; the first of them that exists is used.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
#: Configuration file of a Hugging Face folder.
HF_CONFIG = "config.json"
# Rows of the spatial table that the originals read: distances up to 510, and 511 for pairs without a path.
_SPATIAL_ROWS = 512


def read_external_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the weights of a file or a Hugging Face folder, and the plain values of its configuration, both by name."""
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


def rename_weights(
    state: Mapping[str, Tensor],  # one of its names is a prefix and anchor
    anchor: str,  # original name of a weight
    names: Mapping[str, str],  # GraphSlice's names of weights, the last one if several exist
    layer_names: Mapping[str, str],  # GraphSlice's names of the modules of a layer
    layers: str,  # original name of the list of layers
) -> tuple[dict[str, Tensor], str]:
    """Return the weights of a model under GraphSlice's names, in float32, and the prefix of the original names."""
    prefix = next(name for name in state if name.endswith(anchor)).removesuffix(anchor)
    weights = {ours: state[prefix + theirs].float() for theirs, ours in names.items() if prefix + theirs in state}
    if (spatial := weights.get("pairs.spatial.weight")) is not None:
        weights["pairs.spatial.weight"] = spatial[:_SPATIAL_ROWS]
    of_layer = re.compile(re.escape(f"{prefix}{layers}.") + r"(\d+)\.(.+)\.(weight|bias)")
    for name, value in state.items():
        if (match := of_layer.fullmatch(name)) and match[2] in layer_names:
            weights[f"blocks.{match[1]}.{layer_names[match[2]]}.{match[3]}"] = value.float()
    return weights, prefix


def architecture(weights: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Infer the sizes of a model, as arguments of :class:`~graphslice.config.ModelConfig`, from renamed weights; the
    number of bonds of a path that are encoded is that of the settings, by default 5 as in the original."""
    rows, heads = weights["pairs.spatial.weight"].shape
    positions = len(weights["pairs.position.weight"]) // heads**2
    return {
        "layers": 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks.")),
        "dim": weights["atoms.token.weight"].shape[1],
        "heads": heads,
        "ffn_dim": len(weights["blocks.0.ffn.expand.bias"]),
        "embedding_layout": "graphormer",
        "num_degrees": len(weights["atoms.in_degree.weight"]),
        "num_distances": rows,
        "num_path_positions": positions,
        "max_path": min(int(settings.get("multi_hop_max_dist") or 5), positions),
    }


def parse_dropout(settings: dict[str, Any], names: Sequence[str], default: float) -> float:
    """Return the dropout rate under the first of several names that exists; the default if it is invalid."""
    value = next((settings[name] for name in names if name in settings), default)
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 else default


def _is_weight(value: Any) -> bool:
    """True for a dense floating-point tensor with data: not sparse, not quantized, not on the meta device."""
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
        raise InputError(f"{folder} holds weights in several files: merge them into one {WEIGHT_FILES[0]} first")
    raise InputError(f"{folder} holds no weights: expected {' or '.join(WEIGHT_FILES)} next to {HF_CONFIG}")


def _json_settings(folder: Path) -> dict[str, Any]:
    path = folder / HF_CONFIG
    if not path.is_file():
        problem = "is already a run of GraphSlice" if (folder / CONFIG).is_file() else f"holds no {HF_CONFIG}"
        such = "".join(f", such as {file}" for file in sorted(folder.glob("*.pt"))[:1])
        raise InputError(f"{folder} {problem}: give a Hugging Face folder or a checkpoint file{such}")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise InputError(f"{path} is not a JSON file") from None
    if not isinstance(settings, dict):
        raise InputError(f"{path} does not hold a configuration: expected a JSON object")
    return settings


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError, KeyError):
        raise InputError(f"cannot read {path}: it is truncated, damaged or not a safetensors file") from None


class _Stub:
    """Inert replacement for any class that a file refers to; stores the values that it is created with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.values: Any = args[0] if args else None

    def __setstate__(self, state: Any) -> None:
        self.values = state


def _read_torch(path: Path) -> dict[str, Any]:
    """Read a file of ``torch.save``, with objects of other programs replaced by inert ones."""
    stubs: list[Any] = [(type("_Stub", (_Stub,), {}), name) for name in _unknown_globals(path)]
    with torch.serialization.safe_globals(stubs):
        return load_weights(path)


def _unknown_globals(path: Path) -> list[str]:
    """Return the classes and functions that a file refers to and that torch does not load by itself."""
    try:
        return torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # a damaged file, which load_weights reports, or the format before torch 1.6
        return []


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
    """Return the file of a checkpoint of :data:`PUBLISHED`, downloading it if it is not in the folder.

    Its SHA-256 is stored in a file next to it, and checked on later calls. ``say`` is called with progress messages. An
    :class:`InputError` if all downloads fail, or the file has changed since it was downloaded.
    """
    path = folder / f"{name}.pt"
    note = path.with_suffix(".sha256")
    if path.is_file():
        if not note.is_file() or note.read_text().split()[:1] != [_sha256(path)]:
            raise InputError(f"{path} has changed since it was downloaded: remove it and run the command again")
        say(f"{name}: using {path}, downloaded before")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    failures, partial = [], path.with_suffix(".part")
    for address in PUBLISHED[name]:
        say(f"{name}: downloading {address}")
        try:
            torch.hub.download_url_to_file(address, str(partial), progress=os.isatty(2))
        except (urllib.error.URLError, OSError, ValueError, RuntimeError) as error:
            failures.append(f"{address} ({getattr(error, 'reason', None) or error})")
            continue
        note.write_text(f"{_sha256(partial)}  {path.name}\n{address}\n")
        partial.replace(path)  # last: a file without its note is rejected
        return path
    raise InputError(
        f"cannot download {name} from {' or '.join(failures)}; without a network, download one of these files on "
        "another machine and run graphslice import-checkpoint FILE"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
