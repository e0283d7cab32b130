"""Start from the weights of another run: which are taken, which stay as they are, and how fast the others learn."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from graphslice.checkpoint import Checkpoint, read_checkpoint
from graphslice.chem.descriptors import DESCRIPTORS, compute_descriptors
from graphslice.config import MOLECULE, GraphConfig, OptimizerConfig, RunConfig
from graphslice.data.datamodule import MoleculeData
from graphslice.data.store import GraphStore
from graphslice.errors import InputError
from graphslice.nn import GraphTransformer
from graphslice.package_data import MODELS, PRETRAINED_MODEL, is_packaged_model
from graphslice.tasks import REGRESSION, Task

# A table is small with so many molecules for training.
_MOST_MOLECULES = 50_000
# Of so many of them at most it is asked whether all elements are known, and of this share it must be so.
_SAMPLE_ROWS, _MIN_KNOWN_SHARE = 1_000, 0.9
# A target is alike one of a pretraining if their ranks correlate so among as many training molecules; of more a part
# is drawn.
_ALIKE, _LEAST_COMPARED, _MOST_COMPARED = 0.95, 50, 500
# Words in the names of targets, and the targets of a pretraining that they mean.
_QUANTITIES = {"gap": "gap", "homo": "homo", "lumo": "lumo", "dipole": "dipole", "mu": "dipole", "logp": "MolLogP"}
_EMBEDDINGS = ("atoms.", "pairs.", "embedding_norm.")
_TARGET_STATISTICS = ("target_mean", "target_std")


def choose_init_from(config: RunConfig, store: GraphStore, rows: np.ndarray) -> RunConfig:
    """The configuration with where its weights start from, if the user leaves that to the data.

    A small table begins with what comes with the package, if that is a model of the same shape which reads molecules
    in the same way and has met their elements. In place of the preset's learning rate it has that of the model then:
    large steps undo what was learned (docs/log.md). One that differs from the preset's stays.

    Args:
        config: of a run; ``init_from`` is None where nobody said anything.
        store: of its molecules.
        rows: ``int64 [R]``, those for training.
    """
    if config.init_from is not None or PRETRAINED_MODEL not in MODELS or len(rows) > _MOST_MOLECULES:
        return config
    origin = read_checkpoint(MODELS[PRETRAINED_MODEL])
    known = set(origin.extra.get("elements", ()))
    some = np.random.default_rng(0).choice(rows, min(len(rows), _SAMPLE_ROWS), replace=False)
    met = [known.issuperset(store[row].atoms[:, 0].tolist()) for row in some.tolist()]
    if _architecture(origin.config) != _architecture(config) or np.mean(met) < _MIN_KNOWN_SHARE:
        return config
    optimizer, usual = config.optimizer, RunConfig.preset(PRETRAINED_MODEL).optimizer.peak_lr
    if optimizer.peak_lr == usual:
        optimizer = replace(optimizer, peak_lr=origin.config.optimizer.peak_lr)
    # What the user has under this name is not meant.
    return replace(
        config,
        optimizer=optimizer,
        init_from=PRETRAINED_MODEL if is_packaged_model(PRETRAINED_MODEL) else str(MODELS[PRETRAINED_MODEL]),
    )


def _architecture(config: RunConfig) -> tuple[GraphConfig, dict[str, Any]]:
    free = ("tasks", "level", "descriptors", "dropout", "input_dropout", "attention_dropout", "init")
    return config.graph, {name: value for name, value in vars(config.model).items() if name not in free}


def seen_in_pretraining(origin: Checkpoint, data: MoleculeData) -> str | None:
    """A note on targets that a pretrained model has learned already, or quantities like these; None for no such target.

    Quantum-chemical ones and logP are recognised by their names, RDKit's descriptors by their values.

    Args:
        origin: the pretrained model.
        data: of the run that starts from it.
    """
    if data.dataset.level != MOLECULE:
        return None
    learned = {task.name for task in origin.tasks}
    rows = data.splits["train"]
    if len(rows) > _MOST_COMPARED:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_COMPARED, replace=False))
    descriptors = _known_descriptors(data, rows, learned)
    found = {}
    for task, labels in zip(data.dataset.tasks, data.dataset.targets[rows].T, strict=True):
        if task.kind == REGRESSION:
            words = re.findall("[a-z]+", task.name.lower())
            named = [_QUANTITIES[word] for word in words if _QUANTITIES.get(word) in learned]
            if alike := named[0] if named else _most_alike(labels, descriptors):
                found[task.name] = alike
    if not found:
        return None
    pairs = ", ".join(f"{target} ({alike})" for target, alike in found.items())
    return f"the pretraining has seen quantities like {pairs}: --init-from none compares fairly with other models"


def _known_descriptors(data: MoleculeData, rows: np.ndarray, names: Collection[str]) -> dict[str, np.ndarray]:
    """RDKit's descriptors of some names, ``float32 [R]`` of some rows; none of graphs without SMILES."""
    if "rdkit2d" in data.store.info.descriptors:
        values = data.store.descriptors(rows, ["rdkit2d"])
    elif data.dataset.smiles:
        values = compute_descriptors([data.dataset.smiles[row] for row in rows.tolist()], ["rdkit2d"])["rdkit2d"]
    else:
        return {}
    every = zip(DESCRIPTORS["rdkit2d"].names, values.T, strict=True)
    return {name: column for name, column in every if name in names}


def _most_alike(labels: np.ndarray, descriptors: Mapping[str, np.ndarray]) -> str | None:
    """Which of some descriptors ranks molecules as their labels do; None for none."""
    from scipy.stats import rankdata

    alike = {}
    for name, column in descriptors.items():
        known = ~np.isnan(labels) & ~np.isnan(column)
        a, b = rankdata(labels[known]), rankdata(column[known])
        if len(a) >= _LEAST_COMPARED and a.std() > 0 and b.std() > 0:
            alike[name] = abs(np.corrcoef(a, b)[0, 1])
    best = max(alike, key=lambda name: alike[name], default=None)
    return best if best is not None and alike[best] >= _ALIKE else None


def load_pretrained_weights(
    model: GraphTransformer, origin: Checkpoint, tasks: Sequence[Task], descriptors: Sequence[str] = ()
) -> str:
    """Give a model the weights of another one; returns what was taken, in one sentence.

    With the same targets the head is taken too, and with it their mean and deviation, so that training begins with
    the other's predictions; with other targets the last linear map is new, and all of the head where the one predicts
    of molecules, the other of atoms or bonds.

    Args:
        model: as configured, with the mean and deviation of its own targets.
        origin: whose weights are taken.
        tasks: what the model is to predict.
        descriptors: names of what it reads beside the graph. Of other ones than the origin's the weights are new.

    Raises:
        InputError: naming the option that makes the two differ.
    """
    same_level = model.config.level == origin.config.model.level
    same_outputs = model.config.tasks == origin.config.model.tasks  # of another loss there may be deviations too
    same_targets = list(tasks) == origin.tasks and same_outputs and same_level
    same_descriptors = tuple(descriptors) == origin.config.data.descriptors
    mlp = model.config.head == "mlp"
    first, last = ("head.transform.", "head.output.") if mlp else ("head.", "head.")
    renewed: tuple[str, ...] = () if same_targets else (last, *_TARGET_STATISTICS)
    if not same_descriptors:  # the head reads something else then
        renewed += ("descriptors.", first)
    if not same_level:  # one reads molecules, and one their rows
        renewed += ("sites.", "head.")
    state = model.state_dict()
    wanted = {name: value for name, value in state.items() if not name.startswith(renewed)}
    for name, value in wanted.items():
        if name not in origin.weights or origin.weights[name].shape != value.shape:
            raise InputError(f"the weights of --init-from do not fit: {_difference(model, origin)}")
    model.load_state_dict(state | {name: origin.weights[name] for name in wanted})
    if same_targets and same_descriptors:
        return "all weights taken, the head for the same targets too"
    named = ", ".join(task.name for task in tasks)
    part = "last linear map" if same_level else "head"
    new = [] if same_targets else [f"the {part}, which is new for {named}"]
    if not same_descriptors:
        there, here = (", ".join(names) or "none" for names in (origin.config.data.descriptors, descriptors))
        new.append(f"what reads the descriptors (there {there}, here {here}) and the first linear map of the head")
    return f"all weights taken but {', and but '.join(new)}"


def _difference(model: GraphTransformer, origin: Checkpoint) -> str:
    here, there = vars(model.config), vars(origin.config.model)
    for name, value in there.items():
        if value != here[name] and name not in ("tasks", "descriptors", "level"):
            return f"model.{name} is {value!r} there and {here[name]!r} here"
    return "they are not those of its configuration"


def freeze(model: GraphTransformer, frozen: str) -> None:
    """Let some parts of a model stay as they are.

    Args:
        model: whose parameters are asked for no gradients then.
        frozen: ``"none"``, ``"embeddings"``, or ``"blocks:N"``: the embeddings and the first N blocks.

    Raises:
        InputError: if there are fewer blocks.
    """
    if frozen == "none":
        return
    count = int(frozen.removeprefix("blocks:")) if frozen.startswith("blocks:") else 0
    if count > len(model.blocks):
        raise InputError(f"--trainer.freeze blocks:{count}: the model has {len(model.blocks)} blocks")
    for name, parameter in model.named_parameters():
        block = _block_index(name)
        if name.startswith(_EMBEDDINGS) or (block is not None and block < count):
            parameter.requires_grad_(False)


def parameter_groups(model: GraphTransformer, settings: OptimizerConfig) -> list[dict[str, Any]]:
    """The parameters that learn, in groups of one learning rate each, as optimisers take them.

    The encodings of the structure learn ``structure_lr_factor`` times as fast as the rest. Each block learns
    ``layer_lr_decay`` times as fast as the one after it, the embeddings as one before the first (layer-wise decay,
    Howard and Ruder 2018, section 3.2).
    """
    groups: dict[float, list[nn.Parameter]] = defaultdict(list)
    for factor, parameter in _lr_factors(model, settings):
        groups[factor].append(parameter)
    return [{"params": parameters, "lr": settings.peak_lr * factor} for factor, parameters in groups.items()]


def _lr_factors(model: GraphTransformer, settings: OptimizerConfig) -> Iterator[tuple[float, nn.Parameter]]:
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
    match = re.match(r"blocks\.(\d+)\.", name)
    return int(match.group(1)) if match else None
