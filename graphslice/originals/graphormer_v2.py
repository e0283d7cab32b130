"""Conversion of checkpoints of Graphormer v2: of fairseq and of Hugging Face's port.

Differences from v1: post-norm blocks (or pre-norm blocks without a final norm), a norm after the embeddings, a head
with a hidden layer, and the names of the weights.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from graphslice.config import ModelConfig
from graphslice.errors import InputError, shown
from graphslice.originals.reading import architecture, parse_dropout, rename_weights

#: End of the name of a weight by which its checkpoints are recognised.
ANCHOR = "graph_encoder.graph_node_feature.atom_encoder.weight"

#: Original names of weights and GraphSlice's names; those of the output head differ between the two programs.
NAMES = {
    "graph_encoder.graph_node_feature.atom_encoder.weight": "atoms.atom.weight",
    "graph_encoder.graph_node_feature.in_degree_encoder.weight": "atoms.in_degree.weight",
    "graph_encoder.graph_node_feature.out_degree_encoder.weight": "atoms.out_degree.weight",
    "graph_encoder.graph_node_feature.graph_token.weight": "atoms.token.weight",
    "graph_encoder.graph_attn_bias.edge_encoder.weight": "pairs.bond.weight",
    "graph_encoder.graph_attn_bias.edge_dis_encoder.weight": "pairs.position.weight",
    "graph_encoder.graph_attn_bias.spatial_pos_encoder.weight": "pairs.spatial.weight",
    "graph_encoder.graph_attn_bias.graph_token_virtual_distance.weight": "pairs.token.weight",
    "graph_encoder.emb_layer_norm.weight": "embedding_norm.weight",
    "graph_encoder.emb_layer_norm.bias": "embedding_norm.bias",
    "lm_head_transform_weight.weight": "head.transform.weight",
    "lm_head_transform_weight.bias": "head.transform.bias",
    "layer_norm.weight": "head.norm.weight",
    "layer_norm.bias": "head.norm.bias",
}
LAYER_NAMES = {
    "self_attn.q_proj": "mixer.query",
    "self_attn.k_proj": "mixer.key",
    "self_attn.v_proj": "mixer.value",
    "self_attn.out_proj": "mixer.output",
    "self_attn_layer_norm": "mixer_norm",
    "fc1": "ffn.expand",
    "fc2": "ffn.contract",
    "final_layer_norm": "ffn_norm",
}
#: Output head: the last linear layer, and the bias shared by all outputs.
FAIRSEQ_HEAD = ("embed_out.weight", "lm_output_learned_bias")
HUGGINGFACE_HEAD = ("classifier.classifier.weight", "classifier.lm_output_learned_bias")

#: Conventions for the rows of the atom embedding table: see :func:`convert`.
ATOM_ROWS = ("fairseq", "huggingface")

# Stored by pre-norm models, but never applied by them.
_UNUSED_NORM = "graph_encoder.final_layer_norm.weight"
# Settings that change the computation, and the only supported value of each.
_FIXED = {"edge_type": "multi_hop", "activation_fn": "gelu", "embed_scale": None, "share_input_output_embed": False}
_UNREACHABLE = 511


def convert(
    state: dict[str, Tensor], settings: dict[str, Any], atom_rows: str | None
) -> tuple[dict[str, Tensor], ModelConfig, list[str]]:
    """Convert a checkpoint of Graphormer v2, as ``graphormer_v1.convert``; a missing weight is a KeyError.

    Value v of atom feature i is in row ``2 + 512 i + v`` of the embedding table, as in the published models, unless
    ``atom_rows`` is ``"huggingface"``: then it is one row further, as Hugging Face's collator reads it.
    """
    weights, prefix = rename_weights(state, ANCHOR, NAMES, LAYER_NAMES, "graph_encoder.layers")
    is_fairseq = prefix + FAIRSEQ_HEAD[0] in state
    last, bias = (prefix + name for name in FAIRSEQ_HEAD) if is_fairseq else HUGGINGFACE_HEAD
    weights["head.output.weight"] = state[last].float()
    weights["head.output.bias"] = state[bias].float().reshape(-1).expand(len(state[last])).clone()

    pre_norm = prefix + _UNUSED_NORM in state
    config = _config(weights, settings, pre_norm)
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


def _config(weights: dict[str, Tensor], settings: dict[str, Any], pre_norm: bool) -> ModelConfig:
    sizes = architecture(weights, settings)
    inferred = {
        "num_attention_heads": sizes["heads"],
        "embedding_dim": sizes["dim"],
        "num_hidden_layers": sizes["layers"],
        "ffn_embedding_dim": sizes["ffn_dim"],
        "num_classes": len(weights["head.output.weight"]),
        "pre_layernorm": pre_norm,
        "encoder_normalize_before": "embedding_norm.weight" in weights,
    }
    # fairseq has other names for some of them, and its num_classes is that of the training task.
    configured = {name: settings[name] for name in inferred if name in settings}
    for name, alias in (("num_attention_heads", "encoder_attention_heads"), ("num_hidden_layers", "encoder_layers")):
        configured |= {name: settings[alias]} if alias in settings else {}
    for name, value in configured.items():
        if value is not None and value != inferred[name] and (name != "num_classes" or "edge_type" in settings):
            raise InputError(
                f"the configuration contradicts the weights: {name} is {value}, but the weights have {inferred[name]}"
            )
    for name, value in _FIXED.items():
        if settings.get(name, value) not in (value, None):
            raise InputError(
                f"the checkpoint has {name} {shown(settings[name])}, which is not supported (only {shown(value)} is)"
            )
    if (limit := settings.get("spatial_pos_max")) is not None and limit <= _UNREACHABLE:
        raise InputError(
            f"the checkpoint ignores pairs of atoms beyond a distance of {limit} (spatial_pos_max), which is not "
            "supported"
        )
    return ModelConfig(
        mixer="softmax",
        **sizes,
        tasks=inferred["num_classes"],
        norm="pre" if pre_norm else "post",
        embedding_norm="embedding_norm.weight" in weights,
        head="mlp",
        dropout=parse_dropout(settings, ("dropout",), 0.0),
        input_dropout=parse_dropout(settings, ("dropout",), 0.0),
        attention_dropout=parse_dropout(settings, ("attention_dropout",), 0.1),
        activation_dropout=parse_dropout(settings, ("activation_dropout", "act_dropout"), 0.1),
    )
