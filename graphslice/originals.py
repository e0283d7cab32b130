"""Checkpoints of the original systems, Graphormer v1 and Sliceformer, taken in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphslice.checkpoint import Checkpoint, load_weights
from graphslice.config import GraphConfig, ModelConfig, RunConfig
from graphslice.errors import InputError
from graphslice.feature_dims import UNREACHABLE
from graphslice.nn.mixers import check_mixer

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
            layer, module, kind = match.groups()
            if module in _IMPORTED_LAYER_NAMES:
                weights[f"blocks.{layer}.{_IMPORTED_LAYER_NAMES[module]}.{kind}"] = value

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
    check_mixer(mixer)
    if (mixer == "softmax") != has_queries:
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
    stubs: list[Any] = [(type("_Inert", (_Inert,), {}), name) for name in names]
    with torch.serialization.safe_globals(stubs):
        return load_weights(path)
