"""Conversion of checkpoints of Graphormer v1 and Sliceformer."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from graphslice.config import ModelConfig
from graphslice.errors import InputError
from graphslice.feature_dims import UNREACHABLE
from graphslice.nn.mixers import check_mixer
from graphslice.originals.reading import parse_dropout

_ANCHOR = "atom_encoder.weight"
#: Original names of weights and GraphSlice's names.
NAMES = {
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
#: Original names of the modules of a layer and GraphSlice's names.
LAYER_NAMES = {
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
# Default of Graphormer v1 for the number of bonds of a path that are encoded (--multi_hop_max_dist).
_IMPORTED_MAX_PATH = 5


def is_graphormer_v1(state: dict[str, Tensor]) -> bool:
    """True if the weights have the names of Graphormer v1 or Sliceformer."""
    return any(name.endswith(_ANCHOR) for name in state)


def convert(
    state: dict[str, Tensor], settings: dict[str, Any], mixer: str | None
) -> tuple[dict[str, Tensor], ModelConfig, list[str]]:
    """Convert a checkpoint of Graphormer v1 or Sliceformer.

    Args:
        state: the checkpoint's weights.
        settings: its hyperparameters, of which the maximal path length and the dropout rates are used.
        mixer: the mixer; None to infer it from the weights.

    Returns:
        The weights under GraphSlice's names, the configuration, and notes about the conversion for the user.

    Raises:
        InputError: if the weights are not those of the mixer.
        KeyError: if weights are missing.
    """
    prefix = next(name for name in state if name.endswith(_ANCHOR)).removesuffix(_ANCHOR)
    state = {k.removeprefix(prefix): v.float() for k, v in state.items() if k.startswith(prefix)}
    weights: dict[str, Tensor] = {}
    for name, value in state.items():
        if name in NAMES:
            if name.startswith("out_proj") and "downstream_" + name in state:
                continue
            weights[NAMES[name]] = value
        elif match := _LAYER.fullmatch(name):
            layer, module, kind = match.groups()
            if module in LAYER_NAMES:
                weights[f"blocks.{layer}.{LAYER_NAMES[module]}.{kind}"] = value
    config = _imported_config(weights, settings, mixer)
    notes = []
    if mixer is None and config.mixer != "softmax":
        notes.append(
            "the weights do not show which sort they were trained with: --mixer slice-ascend selects the other one"
        )
    return weights, config, notes


def _imported_config(weights: dict[str, Tensor], settings: dict[str, Any], mixer: str | None) -> ModelConfig:
    has_queries = "blocks.0.mixer.query.weight" in weights
    if mixer is None:
        mixer = "softmax" if has_queries else "slice-released"
    check_mixer(mixer)
    if (mixer == "softmax") != has_queries:
        verb = "has" if has_queries else "has no"
        raise InputError(f"the checkpoint {verb} queries and keys, so its mixer cannot be {mixer}")
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
        max_path=min(int(settings.get("multi_hop_max_dist") or _IMPORTED_MAX_PATH), num_path_positions),
        dropout=parse_dropout(settings, ("dropout_rate",), 0.1),
        input_dropout=parse_dropout(
            settings, ("intput_dropout_rate", "input_dropout_rate"), 0.1
        ),  # the original has the misspelt name
        attention_dropout=parse_dropout(settings, ("attention_dropout_rate",), 0.1),
    )


def fold_padding_bond(weights: dict[str, Tensor], config: ModelConfig) -> None:
    """Add the original's contribution of the positions after the end of a path to the spatial table.

    At these positions the original reads row 0 of its bond table, which is not zero in its checkpoints. The
    contribution depends only on the distance, so the spatial table can represent it exactly.

    Args:
        weights: converted weights; ``pairs.spatial.weight`` is replaced.
        config: configuration of the model.
    """
    maps = weights["pairs.position.weight"].view(-1, config.heads, config.heads)[: config.max_path]
    padding = weights["pairs.bond.weight"][0].double() @ maps.double()  # [max_path, H]
    spatial = weights["pairs.spatial.weight"].double()
    for distance in range(config.max_path):
        spatial[distance + 1] += padding[distance:].sum(0) / max(1, distance)
    spatial[UNREACHABLE + 1] += padding.sum(0) / config.max_path
    weights["pairs.spatial.weight"] = spatial.float()
