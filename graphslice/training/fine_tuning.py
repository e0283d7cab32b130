"""Fine-tuning: initialise a model from a pretrained checkpoint, freeze parameters, and set learning rates per layer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from graphslice.checkpoint import Checkpoint, read_checkpoint
from graphslice.chem.descriptors import DESCRIPTORS, compute_descriptors
from graphslice.config import MOLECULE, GraphConfig, OptimizerConfig, RunConfig
from graphslice.data.datamodule import MoleculeData
from graphslice.data.splits import sample_rows
from graphslice.data.store import GraphStore
from graphslice.errors import InputError
from graphslice.nn import GraphTransformer
from graphslice.package_data import MODELS, PRETRAINED_MODEL, is_packaged_model
from graphslice.tasks import REGRESSION, Task

# Training sets of at most this many molecules are fine-tuned from the packaged model by default.
_MAX_MOLECULES = 50_000
# At least this share of a sample of this many training molecules must consist of elements known to that model.
_SAMPLE_ROWS, _MIN_KNOWN_SHARE = 1_000, 0.9
# A target counts as seen in pretraining if its rank correlation with a pretraining target reaches the first number on
# at least the second number of training molecules; of larger training sets a sample of the third number is compared.
_MIN_RANK_CORRELATION, _MIN_COMPARED, _MAX_COMPARED = 0.95, 50, 500
# Words in names of targets, and the pretraining targets that they denote.
_QUANTITIES = {"gap": "gap", "homo": "homo", "lumo": "lumo", "dipole": "dipole", "mu": "dipole", "logp": "MolLogP"}
_EMBEDDINGS = ("atoms.", "pairs.", "embedding_norm.")
_TARGET_STATISTICS = ("target_mean", "target_std")


def choose_init_from(config: RunConfig, store: GraphStore, rows: np.ndarray) -> RunConfig:
    """Choose the default checkpoint that a run is fine-tuned from, unless the user set ``init_from``.

    A small training set is fine-tuned from the packaged model, if that has the same architecture and graph settings
    and knows the elements. The learning rate of the preset is then replaced by that of the packaged model, since large
    steps undo the pretraining (docs/log.md). A learning rate that differs from the preset's is kept.

    Args:
        config: configuration of a run; ``init_from`` is None if the user did not set it.
        store: preprocessed molecules.
        rows: ``int64 [R]``, the training set.

    Returns:
        The configuration, with ``init_from`` and the learning rate set if a checkpoint was chosen.
    """
    if config.init_from is not None or PRETRAINED_MODEL not in MODELS or len(rows) > _MAX_MOLECULES:
        return config
    origin = read_checkpoint(MODELS[PRETRAINED_MODEL])
    elements = set(origin.extra.get("elements", ()))
    sample = sample_rows(rows, _SAMPLE_ROWS, np.random.default_rng(0))
    known = [elements.issuperset(store[row].atoms[:, 0].tolist()) for row in sample.tolist()]
    if _architecture(origin.config) != _architecture(config) or np.mean(known) < _MIN_KNOWN_SHARE:
        return config
    optimizer, preset_lr = config.optimizer, RunConfig.preset(PRETRAINED_MODEL).optimizer.peak_lr
    if optimizer.peak_lr == preset_lr:
        optimizer = replace(optimizer, peak_lr=origin.config.optimizer.peak_lr)
    # The path, if the user has a file of this name: the packaged model is meant.
    return replace(
        config,
        optimizer=optimizer,
        init_from=PRETRAINED_MODEL if is_packaged_model(PRETRAINED_MODEL) else str(MODELS[PRETRAINED_MODEL]),
    )


def _architecture(config: RunConfig) -> tuple[GraphConfig, dict[str, Any]]:
    """Return the settings that two models must share for one to be initialised from the other."""
    ignored = ("tasks", "level", "descriptors", "dropout", "input_dropout", "attention_dropout", "init")
    return config.graph, {name: value for name, value in vars(config.model).items() if name not in ignored}


def seen_in_pretraining(origin: Checkpoint, data: MoleculeData) -> str | None:
    """Return a note on targets that a pretrained model was already trained on, or similar ones; None without any.

    Quantum-chemical targets and logP are recognised by name, RDKit descriptors by rank correlation.

    Args:
        origin: the pretrained model.
        data: molecules of the run that is fine-tuned from it.
    """
    if data.dataset.level != MOLECULE:
        return None
    pretrained = {task.name for task in origin.tasks}
    rows = sample_rows(data.splits["train"], _MAX_COMPARED, np.random.default_rng(0))
    descriptors = _known_descriptors(data, rows, pretrained)
    similar = {}
    for task, labels in zip(data.dataset.tasks, data.dataset.targets[rows].T, strict=True):
        if task.kind == REGRESSION:
            words = re.findall("[a-z]+", task.name.lower())
            named = [_QUANTITIES[word] for word in words if _QUANTITIES.get(word) in pretrained]
            if match := named[0] if named else _most_correlated(labels, descriptors):
                similar[task.name] = match
    if not similar:
        return None
    pairs = ", ".join(f"{target} ({match})" for target, match in similar.items())
    return (
        f"the model was pretrained on quantities similar to {pairs}: for a fair comparison with models trained from "
        "scratch, use --init-from none"
    )


def _known_descriptors(data: MoleculeData, rows: np.ndarray, names: Collection[str]) -> dict[str, np.ndarray]:
    """Return the named RDKit descriptors, each ``float32 [R]``; empty for graphs without SMILES."""
    if "rdkit2d" in data.store.info.descriptors:
        values = data.store.descriptors(rows, ["rdkit2d"])
    elif data.dataset.smiles:
        values = compute_descriptors([data.dataset.smiles[row] for row in rows.tolist()], ["rdkit2d"])["rdkit2d"]
    else:
        return {}
    columns = zip(DESCRIPTORS["rdkit2d"].names, values.T, strict=True)
    return {name: column for name, column in columns if name in names}


def _most_correlated(labels: np.ndarray, descriptors: Mapping[str, np.ndarray]) -> str | None:
    """Return the descriptor with the highest rank correlation with the labels; None if it is below the threshold."""
    from scipy.stats import rankdata

    correlations = {}
    for name, column in descriptors.items():
        known = ~np.isnan(labels) & ~np.isnan(column)
        a, b = rankdata(labels[known]), rankdata(column[known])
        if len(a) >= _MIN_COMPARED and a.std() > 0 and b.std() > 0:
            correlations[name] = abs(np.corrcoef(a, b)[0, 1])
    best = max(correlations, key=lambda name: correlations[name], default=None)
    return best if best is not None and correlations[best] >= _MIN_RANK_CORRELATION else None


def load_pretrained_weights(
    model: GraphTransformer, origin: Checkpoint, tasks: Sequence[Task], descriptors: Sequence[str] = ()
) -> str:
    """Copy the weights of a pretrained checkpoint into a model.

    With the same targets the output head is copied too, with the mean and standard deviation of the targets, so that
    training starts from the predictions of the checkpoint. With other targets the output layer is newly initialised;
    so is the whole head if one model predicts molecule-level and the other atom- or bond-level targets.

    Args:
        model: the model, with the mean and standard deviation of its own targets.
        origin: the pretrained checkpoint.
        tasks: targets of the model.
        descriptors: descriptor kinds that the model uses in addition to the graph. If they differ from those of the
            checkpoint, the weights that depend on them are newly initialised.

    Returns:
        A description of what was copied.

    Raises:
        InputError: if the weights do not fit; the message names the option that differs.
    """
    same_level = model.config.level == origin.config.model.level
    same_outputs = model.config.tasks == origin.config.model.tasks  # a Gaussian loss also has standard deviations
    same_targets = list(tasks) == origin.tasks and same_outputs and same_level
    same_descriptors = tuple(descriptors) == origin.config.data.descriptors
    mlp = model.config.head == "mlp"
    first, last = ("head.transform.", "head.output.") if mlp else ("head.", "head.")
    renewed: tuple[str, ...] = () if same_targets else (last, *_TARGET_STATISTICS)
    if not same_descriptors:  # the input of the head differs
        renewed += ("descriptors.", first)
    if not same_level:  # the input of the head is one row per molecule, or one per atom or bond
        renewed += ("sites.", "head.")
    state = model.state_dict()
    copied = {name: value for name, value in state.items() if not name.startswith(renewed)}
    for name, value in copied.items():
        if name not in origin.weights or origin.weights[name].shape != value.shape:
            raise InputError(f"the weights of --init-from do not fit: {_difference(model, origin)}")
    model.load_state_dict(state | {name: torch.from_numpy(origin.weights[name]) for name in copied})
    if same_targets and same_descriptors:
        return "all weights copied, including the output head (same targets)"
    named = ", ".join(task.name for task in tasks)
    part = "output layer" if same_level else "output head"
    new = [] if same_targets else [f"the {part} (newly initialised for {named})"]
    if not same_descriptors:
        old, own = (", ".join(names) or "none" for names in (origin.config.data.descriptors, descriptors))
        new.append(f"the descriptor layers and the first layer of the head (descriptors before: {old}; now: {own})")
    return f"all weights copied except {' and '.join(new)}"


def _difference(model: GraphTransformer, origin: Checkpoint) -> str:
    """Describe the first setting in which two models differ."""
    own, pretrained = vars(model.config), vars(origin.config.model)
    for name, value in pretrained.items():
        if value != own[name] and name not in ("tasks", "descriptors", "level"):
            return f"model.{name} is {value!r} in the checkpoint, but {own[name]!r} in this run"
    return "they do not match the configuration of the checkpoint"


def freeze(model: GraphTransformer, frozen: str) -> None:
    """Freeze parts of a model, by setting ``requires_grad`` of their parameters to False.

    Args:
        model: the model.
        frozen: ``"none"``, ``"embeddings"``, or ``"blocks:N"``: the embeddings and the first N blocks.

    Raises:
        InputError: if the model has fewer than N blocks.
    """
    if frozen == "none":
        return
    count = int(frozen.removeprefix("blocks:")) if frozen.startswith("blocks:") else 0
    if count > len(model.blocks):
        raise InputError(f"--trainer.freeze blocks:{count}: the model has only {len(model.blocks)} blocks")
    for name, parameter in model.named_parameters():
        block = _block_index(name)
        if name.startswith(_EMBEDDINGS) or (block is not None and block < count):
            parameter.requires_grad_(False)


def parameter_groups(model: GraphTransformer, settings: OptimizerConfig) -> list[dict[str, Any]]:
    """Group the trainable parameters by learning rate, in the format of PyTorch optimisers.

    The learning rate of the structural encodings is multiplied by ``structure_lr_factor``. Each block has
    ``layer_lr_decay`` times the learning rate of the next one; the embeddings count as a block before the first
    (layer-wise decay, Howard and Ruder 2018, section 3.2).

    Args:
        model: the model.
        settings: learning rate and factors.

    Returns:
        One dictionary per group, with ``params`` and ``lr``.
    """
    groups: dict[float, list[nn.Parameter]] = defaultdict(list)
    for factor, parameter in _lr_factors(model, settings):
        groups[factor].append(parameter)
    return [{"params": parameters, "lr": settings.peak_lr * factor} for factor, parameters in groups.items()]


def _lr_factors(model: GraphTransformer, settings: OptimizerConfig) -> Iterator[tuple[float, nn.Parameter]]:
    """Yield each trainable parameter with the factor of its learning rate."""
    depth = len(model.blocks)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        block = _block_index(name)
        before_head = depth - block if block is not None else depth + 1 if name.startswith(_EMBEDDINGS) else 0
        factor = settings.layer_lr_decay**before_head
        if name.startswith("pairs."):
            factor *= settings.structure_lr_factor
        yield factor, parameter


def _block_index(name: str) -> int | None:
    """Return the index of the block that a parameter belongs to, or None."""
    match = re.match(r"blocks\.(\d+)\.", name)
    return int(match.group(1)) if match else None
