"""Initial weights of fine-tuning: a pretrained checkpoint, and a linear probe as the new output layer.

The probe is a ridge regression on the pretrained embeddings: with a randomly initialised output layer, the first
gradients would distort them (linear probing then fine-tuning: Kumar et al. 2022, arXiv:2202.10054).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from graphslice.config import MOLECULE, RunConfig
from graphslice.data.datamodule import MoleculeData
from graphslice.data.splits import random_subset
from graphslice.errors import InputError, quoted_list
from graphslice.inference.predictor import IDENTICAL_SIMILARITY, nearest_training_molecules
from graphslice.inference.torch_networks import TorchNetworks
from graphslice.nn import GraphTransformer
from graphslice.runs.checkpoint import Checkpoint, read_checkpoint
from graphslice.system.machine import is_packaged_model
from graphslice.tasks import REGRESSION, Task, each_target
from graphslice.training.module import PropertyModule

#: Settings of the model in which a run may differ from the checkpoint that it starts from.
NO_ARCHITECTURE = ("tasks", "level", "descriptors", "dropout", "input_dropout", "attention_dropout", "init")

# Words in names of targets, and the pretraining targets that they denote.
_QUANTITIES = {"gap": "gap", "homo": "homo", "lumo": "lumo", "dipole": "dipole", "mu": "dipole", "logp": "MolLogP"}
_TARGET_STATISTICS = ("target_mean", "target_std")
_ALL_COPIED = "all weights copied, including the output head (same targets)"
# Maximum number of training and of validation molecules of a probe; of more, a random sample is used.
_MAX_PROBE_ROWS = 5_000
# Ridge penalties, relative to the mean square of the embeddings; with the last one the mean is predicted.
_PENALTIES = (*np.logspace(-4, 1, 11), np.inf)
# Regression labels are clipped at this many robust standard deviations (from the interquartile range) from the median,
# since squared errors would be dominated by outliers.
_CLIP = 3.0
# A probe of a regression target is used only if it explains this share of the variance on the validation set. Otherwise
# a random initialisation gave the better network (docs/log.md).
_MIN_EXPLAINED_VARIANCE = 0.8


def leakage_notes(config: RunConfig, data: MoleculeData) -> list[str]:
    """Return notes on what the initial model of a run was trained on: targets of a packaged model, and molecules to be
    scored."""
    if config.origin is None:
        return []
    origin = read_checkpoint(config.origin)
    targets = seen_in_pretraining(origin, data) if is_packaged_model(config.origin) else None
    return [note for note in (targets, known_molecules(origin, data)) if note is not None]


def seen_in_pretraining(origin: Checkpoint, data: MoleculeData) -> str | None:
    """Return a note on targets that a pretrained model was already trained on, by their names; None without any."""
    if data.dataset.level != MOLECULE:
        return None
    pretrained = {task.name for task in origin.tasks}
    known = {name.lower(): name for name in pretrained}
    known |= {word: name for word, name in _QUANTITIES.items() if name in pretrained}
    similar = {}
    for task in data.dataset.tasks:
        name = task.name.lower()
        match = next((known[word] for word in [name, *re.findall("[a-z]+", name)] if word in known), None)
        if task.kind == REGRESSION and match is not None:
            similar[task.name] = match
    if not similar:
        return None
    pairs = ", ".join(f"{target} ({match})" for target, match in similar.items())
    return (
        f"by their names, the model was pretrained on quantities similar to {pairs}: for a fair comparison with models "
        "trained from scratch, use --init-from none"
    )


def known_molecules(origin: Checkpoint, data: MoleculeData) -> str | None:
    """Return a note on molecules to be scored that a checkpoint was trained on, by their fingerprints, of which a
    checkpoint keeps at most 10,000; None without any."""
    if origin.calibration is None:
        return None
    counts = {}
    for split in ("valid" if len(data.splits["valid"]) else "train", "test"):
        rows = random_subset(data.splits.get(split, np.empty(0, np.int64)), _MAX_PROBE_ROWS)
        similarity, _ = nearest_training_molecules(origin.calibration.domain, data.store, rows)
        counts[f"{len(rows):,} {split} molecules"] = int((similarity > IDENTICAL_SIMILARITY).sum())
    known = [f"{count:,} of the {of}" for of, count in counts.items() if count]
    if not known:
        return None
    return (
        f"at least {' and '.join(known)} have the Morgan fingerprint of a training molecule of the initial model: "
        "scores on these are better than on new molecules"
    )


def load_pretrained_weights(
    model: GraphTransformer, origin: Checkpoint, tasks: Sequence[Task], descriptors: Sequence[str] = ()
) -> tuple[str, bool]:
    """Copy the weights of a pretrained checkpoint into a model; return what was copied, and whether that is all. Newly
    initialised are the output layer for other targets, the first layer of the head for another readout or descriptors,
    and the whole head between levels. Raises :class:`InputError` if weights of another architecture do not fit."""
    same_level = model.config.level == origin.config.model.level
    same_outputs = model.config.tasks == origin.config.model.tasks  # a Gaussian loss also has standard deviations
    same_targets = [*map(_trained_on, tasks)] == [*map(_trained_on, origin.tasks)] and same_outputs and same_level
    same_descriptors = tuple(descriptors) == origin.config.data.descriptors
    same_readout = model.config.readout == origin.config.model.readout
    mlp = model.config.head == "mlp"
    first, last = ("head.transform.", "head.output.") if mlp else ("head.", "head.")
    renewed: tuple[str, ...] = ()
    new = []
    if not same_targets:
        renewed += (last, *_TARGET_STATISTICS)
        named = quoted_list((task.name for task in tasks), quote=str)
        new.append(f"the output {'layer' if same_level else 'head'} (newly initialised for {named})")
    if not same_level:  # the input of the head is one row per molecule, or one per atom or bond
        renewed += ("atom_bond_readout.", "head.")
    if not same_descriptors:  # the input of the head differs
        renewed += ("descriptors.", first)
        old, own = (", ".join(names) or "none" for names in (origin.config.data.descriptors, descriptors))
        new.append(f"the descriptor layers and the first layer of the head (descriptors before: {old}; now: {own})")
    if not same_readout:
        renewed += ("atomwise.", first)
        new.append("the first layer of the head (another readout)")
    state, differences = model.state_dict(), _differences(model, origin)
    copied = {name: value for name, value in state.items() if not name.startswith(renewed)}
    for name, value in copied.items():
        if name not in origin.weights or origin.weights[name].shape != value.shape:
            difference = next(iter(differences), "they do not match the configuration of the checkpoint")
            raise InputError(f"the weights of init_from do not fit: {difference}")
    model.load_state_dict(state | {name: torch.from_numpy(origin.weights[name]) for name in copied})
    text = f"all weights copied except {' and '.join(new)}" if new else _ALL_COPIED
    if differences:
        text += f"; they were trained in another architecture: {', and '.join(differences)}"
    return text, not new


def _trained_on(task: Task) -> Task:
    """Return a target without what says nothing about the labels that the head learned."""
    return Task(task.name, task.kind, task.classes, task.transform, positive=task.positive)


def _differences(model: GraphTransformer, origin: Checkpoint) -> list[str]:
    own, pretrained = vars(model.config), vars(origin.config.model)
    return [
        f"model.{name} is {value!r} in the checkpoint, but {own[name]!r} in this run"
        for name, value in pretrained.items()
        if value != own[name] and name not in NO_ARCHITECTURE
    ]


def fit_linear_probe(module: PropertyModule, data: MoleculeData) -> bool:
    """Fit a linear probe: the output layer by ridge regression on the training embeddings; True if any was fitted. The
    penalty of each output is chosen on the validation set, or else on a tenth of the training set."""
    model = module.model
    config, head = model.config, model.head
    if not isinstance(head, nn.Linear) or config.level != MOLECULE or config.descriptors:
        return False
    seed, splits = data.config.trainer.seed, dict(data.splits)
    if not len(splits["valid"]):
        splits["valid"] = random_subset(splits["train"], max(1, len(splits["train"]) // 10), seed)
        splits["train"] = np.setdiff1d(splits["train"], splits["valid"])
    rows = {split: random_subset(splits[split], _MAX_PROBE_ROWS, seed) for split in ("train", "valid")}
    networks = TorchNetworks([module.trained()], "cpu")
    embeddings = {split: networks.embed(data.store, sample).astype(np.float64) for split, sample in rows.items()}
    targets = {split: _head_targets(model, data, sample) for split, sample in rows.items()}
    regression = {where.start for _, task, where in each_target(data.dataset.tasks) if task.kind == REGRESSION}
    fitted = False
    for output in range(len(head.bias)):
        known = {split: np.isfinite(values[:, output]) for split, values in targets.items()}
        if known["train"].sum() < 3 or not known["valid"].any():
            continue
        x, y = ([values[split][known[split]] for split in rows] for values in (embeddings, targets))
        weight, bias, explained = ridge(x[0], y[0][:, output], x[1], y[1][:, output])
        if explained < _MIN_EXPLAINED_VARIANCE and output in regression:
            continue
        with torch.no_grad():
            head.weight[output] = torch.from_numpy(weight)
            head.bias[output] = bias
        fitted = True
    return fitted


def ridge(x: np.ndarray, y: np.ndarray, x_valid: np.ndarray, y_valid: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return the weights ``float64 [C]`` and intercept of the ridge regression with the least squared error on the
    validation rows, and the share of the variance of ``y_valid`` that it explains; ``x``: ``float64 [R, C]``, ``y``:
    ``float64 [R]``."""
    centre, middle = x.mean(axis=0), y.mean()
    u, s, vt = np.linalg.svd(x - centre, full_matrices=False)
    inner = u.T @ (y - middle)
    best, least = np.zeros(x.shape[1]), np.inf
    for penalty in _PENALTIES:
        weight = vt.T @ (inner * s / (s**2 + penalty * max(np.square(s).sum(), 1e-12)))
        error = np.square((x_valid - centre) @ weight + middle - y_valid).mean()
        if error < least:
            best, least = weight, error
    return best, float(middle - best @ centre), 1 - least / max(float(y_valid.var()), 1e-12)


def _head_targets(model: GraphTransformer, data: MoleculeData, rows: np.ndarray) -> np.ndarray:
    """Return the targets ``float64 [R, W]`` of the outputs, nan where unknown; for a class with share p of the training
    labels it is the first Newton step for its logit, ``(y - p) / (p (1 - p))``."""
    from scipy.stats import iqr

    labels, train_labels = data.labels[rows], data.train_labels
    mean, std = (buffer.double().numpy() for buffer in (model.target_mean, model.target_std))
    targets = np.full((len(rows), len(mean)), np.nan)
    for t, task, where in each_target(data.dataset.tasks):
        y = labels[:, t]
        if task.kind == REGRESSION:
            median = np.nanmedian(train_labels[:, t])
            reach = _CLIP * iqr(train_labels[:, t], scale="normal", nan_policy="omit")
            clipped = y.clip(median - reach, median + reach) if reach > 0 else y
            targets[:, where] = (clipped[:, None] - mean[where]) / std[where]
            continue
        for output in range(where.start, where.stop):
            index = 1 if task.outputs == 1 else output - where.start
            share = np.nanmean(np.where(np.isnan(train_labels[:, t]), np.nan, train_labels[:, t] == index))
            in_class = np.where(np.isnan(y), np.nan, y == index)
            targets[:, output] = (in_class - share) / max(share * (1 - share), 1e-6)
    return targets
