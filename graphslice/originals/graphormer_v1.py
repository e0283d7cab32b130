"""Conversion of checkpoints of Graphormer v1 and Sliceformer."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from graphslice.config import ModelConfig
from graphslice.errors import InputError
from graphslice.feature_dims import UNREACHABLE
from graphslice.nn.mixers import check_mixer
from graphslice.originals.reading import architecture, parse_dropout, rename_weights

#: End of the name of a weight by which its checkpoints are recognised, unless they are those of Graphormer v2.
ANCHOR = "atom_encoder.weight"
#: Original names of weights and GraphSlice's names; of two with one name the last.
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


def convert(
    state: dict[str, Tensor], settings: dict[str, Any], mixer: str | None
) -> tuple[dict[str, Tensor], ModelConfig, list[str]]:
    """Convert the weights, settings and mixer (None: inferred from the weights) of Graphormer v1 or Sliceformer; return
    weights under GraphSlice's names, the configuration, and notes for the user. A missing weight is a KeyError."""
    weights, _ = rename_weights(state, ANCHOR, NAMES, LAYER_NAMES, "layers")
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
    return ModelConfig(
        mixer=mixer,
        tasks=len(weights["head.bias"]),
        **architecture(weights, settings),
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
    """
    maps = weights["pairs.position.weight"].view(-1, config.heads, config.heads)[: config.max_path]
    padding = weights["pairs.bond.weight"][0].double() @ maps.double()  # [max_path, H]
    spatial = weights["pairs.spatial.weight"].double()
    for distance in range(config.max_path):
        spatial[distance + 1] += padding[distance:].sum(0) / max(1, distance)
    spatial[UNREACHABLE + 1] += padding.sum(0) / config.max_path
    weights["pairs.spatial.weight"] = spatial.float()
