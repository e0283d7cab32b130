"""Conversion of the weights and settings of Graphormer v1, Sliceformer and Graphormer v2 (fairseq, Hugging Face).

Differences of v2 from v1: post-norm blocks (or pre-norm blocks without a final norm), a norm after the embeddings, a
head with a hidden layer, and the names of the weights. A missing weight is a KeyError, an unsupported model a
ValueError with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from graphslice.config import ModelConfig
from graphslice.errors import shown
from graphslice.feature_dims import UNREACHABLE
from graphslice.nn.mixers import check_mixer

_Weights: TypeAlias = dict[str, Tensor]

# End of the name of a weight by which a checkpoint of each version is recognised; that of v2 ends with that of v1.
_V1, _V2 = "atom_encoder.weight", "graph_encoder.graph_node_feature.atom_encoder.weight"

# Names of weights and GraphSlice's names: of the embeddings, after a prefix of either version, ...
_ATOM_NAMES = {
    "atom_encoder": "atoms.atom",
    "in_degree_encoder": "atoms.in_degree",
    "out_degree_encoder": "atoms.out_degree",
    "graph_token": "atoms.token",
}
_PAIR_NAMES = {
    "edge_encoder": "pairs.bond",
    "edge_dis_encoder": "pairs.position",
    "spatial_pos_encoder": "pairs.spatial",
    "graph_token_virtual_distance": "pairs.token",
}
# ... of the norms and heads (of two with one name the last), ...
_V1_NAMES = {**_ATOM_NAMES, **_PAIR_NAMES, "final_ln": "norm", "out_proj": "head", "downstream_out_proj": "head"}
_V2_NAMES = {
    **{f"graph_encoder.graph_node_feature.{theirs}": ours for theirs, ours in _ATOM_NAMES.items()},
    **{f"graph_encoder.graph_attn_bias.{theirs}": ours for theirs, ours in _PAIR_NAMES.items()},
    "graph_encoder.emb_layer_norm": "embedding_norm",
    "lm_head_transform_weight": "head.transform",
    "layer_norm": "head.norm",
}
# ... and of the modules of a layer.
_V1_LAYER_NAMES = {
    "self_attention_norm": "mixer_norm",
    "self_attention.linear_q": "mixer.query",
    "self_attention.linear_k": "mixer.key",
    "self_attention.linear_v": "mixer.value",
    "self_attention.output_layer": "mixer.output",
    "ffn_norm": "ffn_norm",
    "ffn.layer1": "ffn.expand",
    "ffn.layer2": "ffn.contract",
}
_V2_LAYER_NAMES = {
    "self_attn.q_proj": "mixer.query",
    "self_attn.k_proj": "mixer.key",
    "self_attn.v_proj": "mixer.value",
    "self_attn.out_proj": "mixer.output",
    "self_attn_layer_norm": "mixer_norm",
    "fc1": "ffn.expand",
    "fc2": "ffn.contract",
    "final_layer_norm": "ffn_norm",
}
# Output head of v2: the last linear layer, and the bias shared by all outputs.
_FAIRSEQ_HEAD = ("embed_out.weight", "lm_output_learned_bias")
_HUGGINGFACE_HEAD = ("classifier.classifier.weight", "classifier.lm_output_learned_bias")
# Stored by pre-norm models of v2, but never applied by them.
_UNUSED_NORM = "graph_encoder.final_layer_norm.weight"
# Settings of v2 that change the computation, and the only supported value of each.
_FIXED = {"edge_type": "multi_hop", "activation_fn": "gelu", "embed_scale": None, "share_input_output_embed": False}
# Rows of the spatial table that the originals read: distances up to 510, and 511 for pairs without a path.
_SPATIAL_ROWS = 512

#: Conventions for the rows of the atom embedding table of v2: value v of atom feature i is in row ``2 + 512 i + v``, as
#: in the published models, or in ``3 + 512 i + v``, as Hugging Face's collator reads it.
ATOM_ROWS = ("fairseq", "huggingface")


def convert(
    state: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    mixer: str | None,  # None: inferred from the weights
    atom_rows: str | None,
) -> tuple[_Weights, ModelConfig, list[str]]:
    """Return the weights under GraphSlice's names, the configuration, and notes for the user."""
    if any(name.endswith(_V2) for name in state):
        weights, config, notes = _convert_v2(state, settings, mixer, atom_rows)
    elif any(name.endswith(_V1) for name in state):
        weights, config, notes = _convert_v1(state, settings, mixer)
    else:
        raise ValueError(f"its weights have unknown names, such as {next(iter(state))}" if state else "no weights")
    _fold_padding_bond(weights, config)
    return weights, config, notes


def _convert_v1(
    state: Mapping[str, Tensor], settings: Mapping[str, Any], mixer: str | None
) -> tuple[_Weights, ModelConfig, list[str]]:
    weights, _ = _rename(state, _V1, _V1_NAMES, _V1_LAYER_NAMES, "layers")
    has_queries, notes = "blocks.0.mixer.query.weight" in weights, []
    if mixer is None:
        mixer = "softmax" if has_queries else "slice-released"
        if not has_queries:
            notes = ["the weights do not show which sort they were trained with: --mixer slice-ascend selects another"]
    check_mixer(mixer)
    if (mixer == "softmax") != has_queries:
        raise ValueError(f"it has {'' if has_queries else 'no '}queries and keys, so its mixer cannot be {mixer}")
    config = ModelConfig(
        mixer=mixer,
        tasks=len(weights["head.bias"]),
        **_architecture(weights, settings),
        dropout=_dropout(settings, ("dropout_rate",), 0.1),
        input_dropout=_dropout(settings, ("intput_dropout_rate", "input_dropout_rate"), 0.1),  # misspelt there
        attention_dropout=_dropout(settings, ("attention_dropout_rate",), 0.1),
    )
    return weights, config, notes


def _convert_v2(
    state: Mapping[str, Tensor], settings: Mapping[str, Any], mixer: str | None, atom_rows: str | None
) -> tuple[_Weights, ModelConfig, list[str]]:
    if mixer not in (None, "softmax"):
        raise ValueError(f"the mixer of Graphormer v2 is softmax, not {mixer}")
    weights, prefix = _rename(state, _V2, _V2_NAMES, _V2_LAYER_NAMES, "graph_encoder.layers")
    is_fairseq = prefix + _FAIRSEQ_HEAD[0] in state
    last, bias = (prefix + name for name in _FAIRSEQ_HEAD) if is_fairseq else _HUGGINGFACE_HEAD
    weights["head.output.weight"] = state[last].float()
    weights["head.output.bias"] = state[bias].float().reshape(-1).expand(len(state[last])).clone()

    pre_norm = prefix + _UNUSED_NORM in state
    sizes = _architecture(weights, settings)
    _check_settings(settings, sizes, len(state[last]), pre_norm, "embedding_norm.weight" in weights)
    config = ModelConfig(
        mixer="softmax",
        **sizes,
        tasks=len(state[last]),
        norm="pre" if pre_norm else "post",
        embedding_norm="embedding_norm.weight" in weights,
        head="mlp",
        dropout=_dropout(settings, ("dropout",), 0.0),
        input_dropout=_dropout(settings, ("dropout",), 0.0),
        attention_dropout=_dropout(settings, ("attention_dropout",), 0.1),
        activation_dropout=_dropout(settings, ("activation_dropout", "act_dropout"), 0.1),
    )
    notes = [f"{'fairseq' if is_fairseq else 'Hugging Face'} checkpoint, {config.norm}-norm"]
    if pre_norm:
        notes.append("the norm after the last layer is omitted, since the original never applies it")
    if atom_rows == "huggingface":
        weights["atoms.atom.weight"] = weights["atoms.atom.weight"].roll(-1, dims=0)
        notes.append("atom embeddings in rows 3 + 512 i + v, as Hugging Face's collator reads them")
    else:
        notes.append(
            "atom embeddings in rows 2 + 512 i + v, as in the code that trained the published weights; for a model "
            "fine-tuned with Hugging Face's collator give --atom-rows huggingface"
        )
    return weights, config, notes


def _check_settings(
    settings: Mapping[str, Any], sizes: dict[str, Any], outputs: int, pre_norm: bool, embedding_norm: bool
) -> None:
    """Raise ValueError if the settings of Graphormer v2 contradict the weights, or are not supported."""
    inferred: dict[str, Any] = {
        "num_attention_heads": sizes["heads"],
        "encoder_attention_heads": sizes["heads"],  # fairseq has other names for some of them, ...
        "embedding_dim": sizes["dim"],
        "num_hidden_layers": sizes["layers"],
        "encoder_layers": sizes["layers"],
        "ffn_embedding_dim": sizes["ffn_dim"],
        "pre_layernorm": pre_norm,
        "encoder_normalize_before": embedding_norm,
    }
    if "edge_type" in settings:  # ... and its num_classes is that of the training task
        inferred["num_classes"] = outputs
    for name, value in inferred.items():
        if settings.get(name) not in (None, value):
            raise ValueError(f"its configuration has {name} {settings[name]}, but its weights have {value}")
    for name, value in _FIXED.items():
        if settings.get(name, value) not in (value, None):
            raise ValueError(f"{name} {shown(settings[name])} is not supported, only {shown(value)}")
    if (limit := settings.get("spatial_pos_max")) is not None and limit < _SPATIAL_ROWS:
        raise ValueError(f"it ignores pairs of atoms beyond a distance of {limit} (spatial_pos_max)")


def _rename(
    state: Mapping[str, Tensor],
    anchor: str,  # name of a weight, after a prefix that all names have
    names: Mapping[str, str],
    layer_names: Mapping[str, str],
    layers: str,  # name of the list of layers
) -> tuple[_Weights, str]:
    """Return the weights of a model under GraphSlice's names, in float32, and the prefix of the original names."""
    prefix = next(name for name in state if name.endswith(anchor)).removesuffix(anchor)
    weights = {}
    for theirs, ours in names.items():
        for kind in ("weight", "bias"):
            if (value := state.get(f"{prefix}{theirs}.{kind}")) is not None:
                weights[f"{ours}.{kind}"] = value.float()
    weights["pairs.spatial.weight"] = weights["pairs.spatial.weight"][:_SPATIAL_ROWS]
    of_layer = re.compile(re.escape(f"{prefix}{layers}.") + r"(\d+)\.(.+)\.(weight|bias)")
    for name, value in state.items():
        if (match := of_layer.fullmatch(name)) and match[2] in layer_names:
            weights[f"blocks.{match[1]}.{layer_names[match[2]]}.{match[3]}"] = value.float()
    return weights, prefix


def _architecture(weights: _Weights, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Infer the sizes of a model, as arguments of :class:`~graphslice.config.ModelConfig`, from renamed weights; the
    number of bonds of a path that are encoded is that of the settings, by default 5 as in the original."""
    rows, heads = weights["pairs.spatial.weight"].shape
    positions = len(weights["pairs.position.weight"]) // heads**2
    return {
        "layers": len({name.split(".")[1] for name in weights if name.startswith("blocks.")}),
        "dim": weights["atoms.token.weight"].shape[1],
        "heads": heads,
        "ffn_dim": len(weights["blocks.0.ffn.expand.bias"]),
        "embedding_layout": "graphormer",
        "num_degrees": len(weights["atoms.in_degree.weight"]),
        "num_distances": rows,
        "num_path_positions": positions,
        "max_path": min(int(settings.get("multi_hop_max_dist") or 5), positions),
    }


def _dropout(settings: Mapping[str, Any], names: Sequence[str], default: float) -> float:
    """Return the dropout rate under the first of several names that exists; the default if it is invalid."""
    value = next((settings[name] for name in names if name in settings), default)
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 else default


def _fold_padding_bond(weights: _Weights, config: ModelConfig) -> None:
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
