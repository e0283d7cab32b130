"""A forest and boosted trees beside the network: trained on the same molecules, compared with it, and blended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from graphslice.checkpoint import add_to_checkpoint, read_checkpoint
from graphslice.chem.descriptors import feature_column_names
from graphslice.data.datamodule import MoleculeData
from graphslice.data.molecule_keys import molecule_ids
from graphslice.evaluation.confidence import MIN_SEEDS, mean_interval
from graphslice.evaluation.metrics import METRICS, score
from graphslice.inference.predictor import Predictor
from graphslice.run_files import BEST
from graphslice.tasks import Task, each_target, output_slices
from graphslice.trees import Stacking, compare_errors, prediction_loss
from graphslice.trees.stacking import (
    TREE_DESCRIPTORS,
    combine_predictions,
    fit_target_weights,
    fit_trees,
    predict_trees,
)

_NETWORK, _STACKING = "network", "blend"
# With such a weight for every target the network answers alone: descriptors take longer than its whole answer.
_NETWORK_ALONE = 0.8
# Of fewer molecules nothing is said of chance: what is resampled of a dozen does not show how others would differ.
_FEW_MOLECULES = 30


def train_baselines(folder: Path, data: MoleculeData, metric: str, device: torch.device, console: Console) -> dict:
    """Fit trees to the training molecules, weigh all that answers on validation, and add them to the best checkpoint.

    Args:
        folder: of the run, whose network is trained.
        data: with the descriptors that trees read.
        metric: of the run.
        device: of the network.
        console: where to report.

    Returns:
        For each split its metric by the name of what answers: network, forest, boosting, blend.
    """
    dataset, rows = data.dataset, data.splits["train"]
    console.print(
        f"forest and boosting on {' and '.join(TREE_DESCRIPTORS)} of {len(rows):,} molecules", highlight=False
    )
    seed, threads = data.config.trainer.seed, torch.get_num_threads()
    with console.status("fitting trees"):
        trees = fit_trees(
            data.store.descriptors(rows, TREE_DESCRIPTORS), dataset.targets[rows], dataset.tasks, seed, threads
        )
    # Of a run that goes on the checkpoint may be blended and calibrated already.
    network = Predictor(replace(read_checkpoint(folder), stacking=None, calibration=None), device)
    splits = [split for split in ("valid", "test") if len(data.splits.get(split, ()))]
    predictions = {split: _predictions(network, trees, data, split) for split in splits}
    valid = data.splits["valid"]
    molecules = molecule_ids(data.store, valid)
    weights = fit_target_weights(list(predictions["valid"].values()), dataset.targets[valid], dataset.tasks, molecules)
    if alone := bool((weights[0] >= _NETWORK_ALONE).all()):
        weights = np.zeros_like(weights)
        weights[0] = 1
    else:
        add_to_checkpoint(folder / BEST, Stacking(TREE_DESCRIPTORS, trees, weights))
    found: dict[str, dict[str, float]] = {}
    for split, each in predictions.items():
        labels = dataset.targets[data.splits[split]]
        each[_STACKING] = combine_predictions(list(each.values()), weights, dataset.tasks)
        found[split] = {
            name: score(metric, dataset.name, dataset.tasks, labels, values) for name, values in each.items()
        }
    shares = ", ".join(
        f"{100 * share:.0f}% {name}" for name, share in zip([_NETWORK, *trees], weights.mean(axis=1), strict=True)
    )
    said = "the network alone, to which the trees add little" if alone else f"{shares}, weights by validation"
    if not alone and (own := feature_column_names(data.config.data.descriptors)):
        said += f"; the trees do not read {', '.join(own)}"
    console.print(f"blend: {said}", highlight=False)
    split = "test" if "test" in predictions and not np.isnan(dataset.targets[data.splits["test"]]).all() else "valid"
    molecules = molecule_ids(data.store, data.splits[split])
    for line in describe_baselines(split, predictions[split], data, metric, found[split], molecules):
        console.print(line, highlight=False, soft_wrap=True)
    return found


def _predictions(network: Predictor, trees: dict, data: MoleculeData, split: str) -> dict[str, np.ndarray]:
    """``float32 [R, W]`` of the network and of each kind of trees, for the molecules of a split."""
    rows = data.splits[split]
    x = data.store.descriptors(rows, TREE_DESCRIPTORS)
    found = {_NETWORK: network.predict_store(data.store, rows)}
    return found | {name: predict_trees(of_targets, x) for name, of_targets in trees.items()}


def describe_baselines(
    split: str,
    predictions: dict[str, np.ndarray],
    data: MoleculeData,
    metric: str,
    values: dict[str, float],
    molecules: np.ndarray,
) -> list[str]:
    """What each reaches; and which of network, forest and boosting is best, by more than chance among the molecules.

    Args:
        split: its name.
        answers: ``float32 [R, W]`` by the name of what answers.
        data: with the labels.
        metric: of the run.
        values: the metric by the same names.
        molecules: ``int64 [R]``, which molecule each row is of.
    """
    lines = [f"{split} {METRICS[metric].label}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items())]
    tasks, labels = data.dataset.tasks, data.dataset.targets[data.splits[split]]
    if split != "test" or len(np.unique(molecules)) < _FEW_MOLECULES:
        return lines
    alone = {name: each for name, each in predictions.items() if name != _STACKING}
    if len(tasks) > 1:
        best = [_best_model(alone, labels[:, t], where, task) for t, task, where in each_target(tasks)]
        counts = {name: best.count(name) for name in alone}
        won = ", ".join(f"the {name} of {count:,}" for name, count in counts.items() if count)
        return [*lines, f"alone the best of {len(tasks):,} targets: {won}"] if won else lines
    (task,), (where,) = tasks, output_slices(tasks)
    winner = _best_model(alone, labels[:, 0], where, task)
    if winner is None or len(np.unique(data.train_labels)) < 2:
        return lines
    rivals = [name for name in alone if name != winner and _NETWORK in (name, winner)]
    pairs = [
        compare_errors(labels[:, 0], alone[winner], alone[name], task.kind, molecules=molecules) for name in rivals
    ]
    found, rival = min(zip(pairs, rivals, strict=True), key=lambda pair: pair[0].difference)
    if not np.isfinite(found.low):
        return lines
    certain = "more than chance among these molecules" if found.low > 0 else "within the chance of these molecules"
    lines.append(
        f"alone the {winner} is best; {found.metric} {found.a:.4f} is {found.difference:.3g} better than the {rival}'s "
        f"(95%: {found.low:.3g} to {found.high:.3g}), {certain}; --ensemble shows how much of it is the seed's"
    )
    return lines


def _best_model(alone: dict[str, np.ndarray], labels: np.ndarray, where: slice, task: Task) -> str | None:
    """What answers one target best, by the metric of :func:`~graphslice.trees.compare_errors`; None if undefined."""
    losses = {name: prediction_loss(labels, each[:, where], task.kind) for name, each in alone.items()}
    return None if np.isnan(list(losses.values())).any() else min(losses, key=lambda name: losses[name])


def describe_seeds(split: str, found: Sequence[dict[str, float]], metric: str, folds: int = 0) -> list[str]:
    """Network, forest, boosting and blend over several seeds or folds, and whether they differ by more than these.

    Args:
        split: its name.
        found: of every seed the metric by the name of what answers, as :func:`train_baselines` returns it of a split.
        metric: of the run.
        folds: of a cross-validation, each of which takes the place of a seed; else 0.
    """
    # What is not defined stands as None where it was read.
    values = {name: np.array([each[name] for each in found], np.float64) for name in found[0]}
    means = {name: float(each.mean()) for name, each in values.items() if np.isfinite(each).all()}
    if len(found) < 2 or _NETWORK not in means:
        return []
    spread = {name: float(values[name].std(ddof=1)) for name in means}
    said = ", ".join(f"{name} {mean:.4f} ± {spread[name]:.4f}" for name, mean in means.items())
    lines = [f"{split} {METRICS[metric].label} of {len(found)} models alone: {said}"]
    rivals = [name for name in means if name not in (_NETWORK, _STACKING)]
    if rivals:
        loss = METRICS[metric].loss
        rival = min(rivals, key=lambda name: loss(means[name]))
        winner, loser = sorted((_NETWORK, rival), key=lambda name: loss(means[name]))
        gains = (values[loser] - values[winner]) * loss(1.0)
        said, each = f"the {winner} beats the {loser} by {gains.mean():.3g}", "folds" if folds else "seeds"
        if len(found) < MIN_SEEDS:
            return [*lines, f"{said}; whether by more than the {each} change cannot be told from {len(found)} models"]
        low, high = mean_interval(gains, folds)
        more = "more" if low > 0 else "not more"
        lines.append(f"{said} (95%: {low:.3g} to {high:.3g}), {more} than what the {each} change")
    return lines
