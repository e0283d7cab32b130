"""Checkpoints: write, read without running code, and import those of the original systems."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphslice._version import __version__
from graphslice.compat import current_weight_name
from graphslice.config import GraphConfig, ModelConfig, RunConfig
from graphslice.errors import InputError
from graphslice.feature_dims import UNREACHABLE
from graphslice.nn.mixers import MIXERS
from graphslice.nn.model import GraphTransformer

#: The key of a checkpoint that holds what is GraphSlice's own.
KEY = "graphslice"
#: The files of a run folder that hold a model, the one to use first.
BEST, LAST = "best.ckpt", "last.ckpt"
#: The file of a run folder that holds its resolved configuration.
CONFIG = "config.yaml"


@dataclass
class Checkpoint:
    """A model and how it was made.

    Attributes:
        config: the resolved configuration of the run.
        targets: the names of the predicted columns.
        weights: the state dict of :class:`~graphslice.nn.GraphTransformer`.
        extra: anything else the run noted: the version that wrote it, a fingerprint of its data.
    """

    config: RunConfig
    targets: list[str]
    weights: dict[str, Tensor]
    extra: dict[str, Any] = field(default_factory=dict)

    def model(self) -> GraphTransformer:
        """The model, in evaluation mode.

        Raises:
            InputError: if the weights do not fit the configuration.
        """
        model = GraphTransformer(self.config.model)
        try:
            model.load_state_dict(self.weights)
        except RuntimeError:
            raise InputError("the checkpoint's weights do not fit its configuration") from None
        return model.eval()


def header(config: RunConfig, targets: list[str], **extra: Any) -> dict[str, Any]:
    """What GraphSlice stores beside the weights: plain values only, so that reading runs no code."""
    return {"version": __version__, "config": config.to_dict(), "targets": list(targets), **extra}


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint that holds a model and no training state."""
    contents = {
        KEY: header(checkpoint.config, checkpoint.targets, **checkpoint.extra),
        "state_dict": {f"model.{name}": value for name, value in checkpoint.weights.items()},
    }
    temporary = path.with_suffix(".tmp")
    torch.save(contents, temporary)
    temporary.replace(path)


def write_run_folder(checkpoint: Checkpoint, folder: Path) -> None:
    """Make a run folder of a model that was trained elsewhere.

    Raises:
        InputError: if the folder holds a run, or cannot be written.
    """
    if any((folder / name).exists() for name in (BEST, LAST)):
        raise InputError(f"{folder} holds a model already: choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(checkpoint.config.to_yaml())
        save_checkpoint(checkpoint, folder / BEST)
    except OSError as error:
        raise InputError(f"cannot write the run folder {folder}: {error.strerror}") from None


def find_checkpoint(path: str | Path) -> Path:
    """The file of a checkpoint, given that file or its run folder.

    Raises:
        InputError: if there is none.
    """
    path = Path(path)
    if path.is_dir():
        for name in (BEST, LAST):
            if (path / name).is_file():
                return path / name
        raise InputError(f"{path} is no run folder: it holds neither {BEST} nor {LAST}")
    if not path.is_file():
        raise InputError(f"no model at {path}: give a run folder or a checkpoint")
    return path


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint of GraphSlice, given its file or its run folder.

    Only tensors and plain values are read: a file that asks for code to be run is refused.

    Raises:
        InputError: if it is missing, truncated, of another program, or asks for code.
    """
    path = find_checkpoint(path)
    contents = _load_weights(path)
    if KEY not in contents:
        raise InputError(
            f"{path} is not a GraphSlice checkpoint; one of Graphormer or Sliceformer is taken in by "
            "'graphslice import-checkpoint'"
        )
    head = contents[KEY]
    try:
        extra = {k: v for k, v in head.items() if k not in ("config", "targets")}
        state = {k: v for k, v in contents["state_dict"].items() if k.startswith("model.")}
        weights = {current_weight_name(k.removeprefix("model.")): v for k, v in state.items()}
        config, targets = RunConfig.from_dict(head["config"]), list(head["targets"])
        if len(targets) != config.model.tasks:
            raise KeyError("targets")
        return Checkpoint(config, targets, weights, extra)
    except InputError as error:
        raise InputError(f"{path} was written by another version of GraphSlice: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{path} is not a whole GraphSlice checkpoint") from None


def _load_weights(path: Path) -> dict[str, Any]:
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in as many ways as there are bytes
        text = str(error) if path.open("rb").read(1) in (b"P", b"\x80") else ""  # neither archive nor pickle
        if "Unsupported" in text or "unsupported" in text or "WeightsUnpickler" in text:
            why = "it holds more than weights and plain values, and running its code is not safe"
        else:
            why = "it is truncated, damaged or no checkpoint at all"
        raise InputError(f"cannot read {path}: {why}") from None
    if not isinstance(contents, dict):
        raise InputError(f"cannot read {path}: it holds no checkpoint")
    return contents


# --- checkpoints of the original systems -------------------------------------------------------

_IMPORTED_NAMES = {
    "atom_encoder.weight": "atoms.atom.weight",
    "in_degree_encoder.weight": "atoms.in_degree.weight",
    "out_degree_encoder.weight": "atoms.out_degree.weight",
    "graph_token.weight": "atoms.token.weight",
    "edge_encoder.weight": "pairs.bond.weight",
    "edge_dis_encoder.weight": "pairs.position.weight",
    "spatial_pos_encoder.weight": "pairs.spatial.weight",
    "graph_token_virtual_distance.weight": "pairs.token.weight",
    "final_ln.weight": "norm.weight",
    "final_ln.bias": "norm.bias",
    "out_proj.weight": "head.weight",
    "out_proj.bias": "head.bias",
    "downstream_out_proj.weight": "head.weight",
    "downstream_out_proj.bias": "head.bias",
}
_IMPORTED_LAYER_NAMES = {
    "self_attention_norm": "mixer_norm",
    "self_attention.linear_q": "mixer.query",
    "self_attention.linear_k": "mixer.key",
    "self_attention.linear_v": "mixer.value",
    "self_attention.output_layer": "mixer.output",
    "ffn_norm": "ffn_norm",
    "ffn.layer1": "ffn.expand",
    "ffn.layer2": "ffn.contract",
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)\.(weight|bias)")
# Graphormer v1 reads this many bonds of a path (--multi_hop_max_dist).
_IMPORTED_MAX_PATH = 5


def import_checkpoint(path: str | Path, *, mixer: str | None = None, target: str = "homolumogap") -> Checkpoint:
    """Take in a checkpoint of Graphormer v1 or Sliceformer.

    The model keeps the original's atom order (as written) and its choice among tied shortest
    paths, so that it predicts what the original predicts.

    Args:
        path: a Lightning file with ``state_dict``, or a plain state dict.
        mixer: needed where the weights do not tell: ``softmax`` is recognised by its queries; for
            Sliceformer the default is ``slice-released``, what its published code runs.
        target: name of the predicted column (several: separated by commas).

    Raises:
        InputError: if the file cannot be read or is no such checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no checkpoint at {path}")
    contents = _load_foreign(path)
    state = contents.get("state_dict", contents)
    state = {str(k): v for k, v in state.items() if isinstance(v, Tensor)} if isinstance(state, dict) else {}
    anchor = next((k for k in state if k.endswith("atom_encoder.weight")), None)
    if anchor is None:
        raise InputError(f"{path} is no Graphormer or Sliceformer checkpoint: it has no atom_encoder.weight")
    prefix = anchor.removesuffix("atom_encoder.weight")
    state = {k.removeprefix(prefix): v.float() for k, v in state.items() if k.startswith(prefix)}

    weights: dict[str, Tensor] = {}
    for name, value in state.items():
        if name in _IMPORTED_NAMES:
            if name.startswith("out_proj") and "downstream_" + name in state:
                continue
            weights[_IMPORTED_NAMES[name]] = value
        elif match := _LAYER.fullmatch(name):
            layer, part, kind = match.groups()
            if part in _IMPORTED_LAYER_NAMES:
                weights[f"blocks.{layer}.{_IMPORTED_LAYER_NAMES[part]}.{kind}"] = value

    try:
        config = _imported_config(weights, mixer)
        _fold_padding_bond(weights, config)
    except InputError:
        raise
    except (KeyError, IndexError, RuntimeError, ZeroDivisionError, ValueError, TypeError):
        raise InputError(f"{path} is no whole Graphormer or Sliceformer checkpoint: parts of it are missing") from None
    tasks = [name.strip() for name in target.split(",")]
    if len(tasks) != config.tasks:
        raise InputError(f"{path} predicts {config.tasks} targets, and --target names {len(tasks)}")
    weights["target_mean"], weights["target_std"] = torch.zeros(config.tasks), torch.ones(config.tasks)
    run = RunConfig(model=config, graph=GraphConfig(atom_order="input", path_ties="floyd-warshall"))
    run.data.dataset = "pcqm4m"
    checkpoint = Checkpoint(run, tasks, weights, {"imported_from": path.name})
    try:
        checkpoint.model()
    except InputError:
        raise InputError(
            f"the weights of {path} are not those of a whole {config.mixer} model; if another mixer was trained, "
            "name it with --mixer"
        ) from None
    return checkpoint


def _imported_config(weights: dict[str, Tensor], mixer: str | None) -> ModelConfig:
    has_queries = "blocks.0.mixer.query.weight" in weights
    if mixer is None:
        mixer = "softmax" if has_queries else "slice-released"
    elif mixer in MIXERS and (mixer == "softmax") != has_queries:
        found = "has" if has_queries else "has no"
        raise InputError(f"the checkpoint {found} queries and keys, so its mixer cannot be {mixer}")
    rows, heads = weights["pairs.spatial.weight"].shape
    num_path_positions = len(weights["pairs.position.weight"]) // heads**2
    return ModelConfig(
        mixer=mixer,
        layers=1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks.")),
        dim=weights["atoms.token.weight"].shape[1],
        heads=heads,
        ffn_dim=len(weights["blocks.0.ffn.expand.bias"]),
        tasks=len(weights["head.bias"]),
        embedding_layout="graphormer",
        num_degrees=len(weights["atoms.in_degree.weight"]),
        num_distances=rows,
        num_path_positions=num_path_positions,
        max_path=min(_IMPORTED_MAX_PATH, num_path_positions),
    )


def _fold_padding_bond(weights: dict[str, Tensor], config: ModelConfig) -> None:
    """Move what the original reads at the positions behind a path's end into the spatial table.

    There it reads row 0 of its bond table, which is not zero in checkpoints that it wrote. What
    that adds depends on the distance alone, so the spatial table can hold it exactly.
    """
    maps = weights["pairs.position.weight"].view(-1, config.heads, config.heads)[: config.max_path]
    padding = weights["pairs.bond.weight"][0].double() @ maps.double()  # [max_path, H]
    spatial = weights["pairs.spatial.weight"].double()
    for distance in range(config.max_path):
        spatial[distance + 1] += padding[distance:].sum(0) / max(1, distance)
    spatial[UNREACHABLE + 1] += padding.sum(0) / config.max_path
    weights["pairs.spatial.weight"] = spatial.float()


class _Inert:
    """Stands for any class that a foreign checkpoint names: takes everything, does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


def _load_foreign(path: Path) -> dict[str, Any]:
    """Read a foreign checkpoint's tensors, its other objects replaced by inert ones."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # the old format, or damage: the strict reader says which
        names = []
    stubs = [(type("_Inert", (_Inert,), {}), name) for name in names]
    with torch.serialization.safe_globals(stubs):
        return _load_weights(path)
