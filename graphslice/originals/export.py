"""Export of models to the formats of the original implementations."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from graphslice.atomic_write import atomic_write
from graphslice.checkpoint import Checkpoint
from graphslice.config import ModelConfig
from graphslice.errors import InputError, shown
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS
from graphslice.nn.encodings import feature_rows
from graphslice.originals import graphormer_v1, graphormer_v2
from graphslice.originals.reading import HF_CONFIG, WEIGHT_FILES
from graphslice.torch_io import torch_bytes

#: The formats, and the name of the weight file of each.
FORMATS = {"huggingface": WEIGHT_FILES[0], "graphormer-v1": "graphormer_v1.pt"}

_DEGREES, _DISTANCES, _POSITIONS = 512, 512, 128


def export_checkpoint(
    checkpoint: Checkpoint, folder: str | Path, layout: str, *, overwrite: bool = False
) -> list[Path]:
    """Write a model in the format of an original implementation.

    Args:
        checkpoint: a model with the original's architecture, atom order and choice among tied shortest paths.
        folder: created if it does not exist.
        layout: one of :data:`FORMATS`. ``huggingface`` writes ``config.json`` and ``model.safetensors``, with the atom
            embeddings in the rows that Hugging Face's collator reads; ``graphormer-v1`` a file with a ``state_dict``.
        overwrite: replace existing files of these names.

    Returns:
        The files written.

    Raises:
        InputError: if the original does not support the model, or the folder cannot be written.
    """
    if layout not in FORMATS:
        raise InputError(f"unknown format {shown(layout)}: choose from {', '.join(FORMATS)}")
    config = checkpoint.config.model
    _check(checkpoint, layout)
    weights = _to_original_layout(checkpoint)
    if layout == "huggingface":
        state, settings = _huggingface_names(weights, config), _huggingface_settings(config)
    else:
        state, settings = _v1_names(weights), {}
    if not overwrite:
        for name in (FORMATS[layout], HF_CONFIG) if layout == "huggingface" else (FORMATS[layout],):
            if (existing := Path(folder) / name).exists():
                raise InputError(f"{existing} already exists: choose another --out, or give --overwrite")
    return _write(Path(folder), layout, state, settings)


def _check(checkpoint: Checkpoint, layout: str) -> None:
    config, graph = checkpoint.config.model, checkpoint.config.graph
    later = layout == "huggingface"
    needed: list[tuple[str, object, object]] = [
        ("graph.path_ties", graph.path_ties, "floyd-warshall"),
        ("graph.atom_order", graph.atom_order, "input"),
        ("graph.standardize", graph.standardize, "none"),
        ("model.readout", config.readout, "token"),
        ("model.descriptors", config.descriptors, 0),
        ("model.level", config.level, "molecule"),
        ("model.bond_messages", config.bond_messages, False),
        ("model.head", config.head, "mlp" if later else "linear"),
    ]
    if not later:
        needed += [("model.norm", config.norm, "pre"), ("model.embedding_norm", config.embedding_norm, False)]
        needed.append(("model.max_path", config.max_path, 5))  # which the file cannot store
    wrong = [f"{name} must be {required}, not {actual}" for name, actual, required in needed if actual != required]
    mixers = ("softmax",) if later else ("softmax", "slice-ascend", "slice-released")
    if config.mixer not in mixers:
        wrong.append(f"model.mixer must be {' or '.join(mixers)}, not {config.mixer}")
    if config.num_distances > _DISTANCES:
        wrong.append(f"model.num_distances must be at most {_DISTANCES}, not {config.num_distances}")
    transformed = [task for task in checkpoint.tasks if task.transform != "none"]
    wrong += [
        f"target {task.name} must not have the transform {task.transform} (data.transform)" for task in transformed
    ]
    if wrong:
        raise InputError(f"the model cannot be exported as {layout}: {'; '.join(wrong)}")


def _to_original_layout(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the weights with embedding tables of the original's sizes, the standardisation of targets folded in."""
    config = checkpoint.config.model
    weights = {name: torch.tensor(value) for name, value in checkpoint.weights.items()}
    std, mean = weights.pop("target_std"), weights.pop("target_mean")
    last = "head.output" if config.head == "mlp" else "head"
    weights[f"{last}.weight"] *= std[:, None]
    weights[f"{last}.bias"] = weights[f"{last}.bias"] * std + mean
    if config.embedding_layout == "ogb":
        weights["atoms.atom.weight"] = _widen_features(weights["atoms.atom.weight"], ATOM_DIMS)
        weights["pairs.bond.weight"] = _widen_features(weights["pairs.bond.weight"], BOND_DIMS)
    weights["pairs.bond.weight"][0] = 0  # the row that the original reads after the end of a path
    for side in ("in", "out"):
        name = f"atoms.{side}_degree.weight"
        weights[name] = _repeat_last_row(weights[name], _DEGREES)
    spatial = weights["pairs.spatial.weight"]
    weights["pairs.spatial.weight"] = torch.cat([_repeat_last_row(spatial[:-1], _DISTANCES - 1), spatial[-1:]])
    position = weights["pairs.position.weight"]
    missing = _POSITIONS * config.heads**2 - len(position)
    weights["pairs.position.weight"] = torch.cat([position, position.new_zeros(max(0, missing), 1)])
    return weights


def _widen_features(table: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Spread an embedding table with one row per feature value to 512 rows per feature."""
    starts, rows = feature_rows(dims, "graphormer")
    wide = table.new_zeros(rows, table.shape[1])
    for start, part in zip(starts, table.split(dims), strict=True):
        wide[start : start + len(part)] = part
    return wide


def _repeat_last_row(table: Tensor, rows: int) -> Tensor:
    """Extend a table to the original's number of rows; here the last row is used for all larger values."""
    return torch.cat([table, table[-1:].expand(max(0, rows - len(table)), -1)])


def _layers(weights: dict[str, Tensor], names: dict[str, str], prefix: str) -> dict[str, Tensor]:
    """Return the weights of the blocks under the original's names."""
    original_names = {ours: theirs for theirs, ours in names.items()}
    renamed = {}
    for name, value in weights.items():
        if name.startswith("blocks."):
            _, layer, rest = name.split(".", 2)
            module, kind = rest.rsplit(".", 1)
            renamed[f"{prefix}.{layer}.{original_names[module]}.{kind}"] = value
    return renamed


def _huggingface_names(weights: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    bias = weights.pop("head.output.bias")
    if not bool((bias == bias[0]).all()):
        raise InputError(
            "the model cannot be exported as huggingface: its outputs have different biases, but the original has one "
            "bias for all outputs"
        )
    state = {"encoder." + theirs: weights[ours] for theirs, ours in graphormer_v2.NAMES.items() if ours in weights}
    atoms = "encoder." + graphormer_v2.ANCHOR
    state[atoms] = state[atoms].roll(1, dims=0)
    state |= _layers(weights, graphormer_v2.LAYER_NAMES, "encoder.graph_encoder.layers")
    last, shared = graphormer_v2.HUGGINGFACE_HEAD
    if config.norm == "pre":  # Hugging Face's code creates this norm but does not apply it
        name = "encoder.graph_encoder.final_layer_norm"
        state |= {f"{name}.weight": torch.ones(config.dim), f"{name}.bias": torch.zeros(config.dim)}
    return state | {last: weights["head.output.weight"], shared: bias[:1]}


def _huggingface_settings(config: ModelConfig) -> dict:
    return {
        "architectures": ["GraphormerForGraphClassification"],
        "model_type": "graphormer",
        "num_classes": config.tasks,
        "num_atoms": feature_rows(ATOM_DIMS, "graphormer")[1] - 1,
        "num_edges": feature_rows(BOND_DIMS, "graphormer")[1] - 1,
        "num_in_degree": _DEGREES,
        "num_out_degree": _DEGREES,
        "num_spatial": max(_DISTANCES, config.num_distances),
        "num_edge_dis": max(_POSITIONS, config.num_path_positions),
        "edge_type": "multi_hop",
        "multi_hop_max_dist": config.max_path,
        "spatial_pos_max": 1024,
        "num_hidden_layers": config.layers,
        "embedding_dim": config.dim,
        "hidden_size": config.dim,
        "ffn_embedding_dim": config.ffn_dim,
        "num_attention_heads": config.heads,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "encoder_normalize_before": config.embedding_norm,
        "pre_layernorm": config.norm == "pre",
        "activation_fn": "gelu",
        graphormer_v2.ATOM_ROWS_KEY: "huggingface",
    }


def _v1_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {ours: theirs for theirs, ours in graphormer_v1.NAMES.items() if not theirs.startswith("downstream")}
    state = {names[name]: value for name, value in weights.items() if name in names}
    return state | _layers(weights, graphormer_v1.LAYER_NAMES, "layers")


def _write(folder: Path, layout: str, state: dict[str, Tensor], settings: dict) -> list[Path]:
    path = folder / FORMATS[layout]
    state = {name: value.contiguous() for name, value in state.items()}
    if layout != "huggingface":
        with atomic_write(path) as temporary:
            temporary.write_bytes(torch_bytes({"state_dict": state}))
        return [path]
    from safetensors.torch import save

    with atomic_write(path) as temporary, atomic_write(folder / HF_CONFIG) as config_file:  # both files or none
        config_file.write_text(json.dumps(settings, indent=2) + "\n")
        temporary.write_bytes(save(state, metadata={"format": "pt"}))
    return [folder / HF_CONFIG, path]
