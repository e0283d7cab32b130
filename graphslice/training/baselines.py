"""Tree ensembles (random forest, gradient boosting): trained as baselines and stacked with the network."""

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
from graphslice.stacking import Stacking, compare_errors, prediction_loss
from graphslice.stacking.stacking import (
    TREE_DESCRIPTORS,
    combine_predictions,
    fit_target_weights,
    fit_trees,
    predict_trees,
)
from graphslice.tasks import Task, each_target, output_slices

_NETWORK, _STACKING = "network", "blend"
# Keys of the baselines in metrics.json, and the names that are printed.
_NAMES = {
    _NETWORK: "network",
    "forest": "random forest",
    "boosting": "gradient boosting",
    _STACKING: "weighted ensemble",
}
# If the network has at least this weight for every target, it predicts alone: computing the descriptors of the trees
# would take longer than its prediction.
_NETWORK_ALONE = 0.8
# With fewer molecules no significance is reported: resampling a dozen molecules does not show how others would differ.
_FEW_MOLECULES = 30


def train_baselines(folder: Path, data: MoleculeData, metric: str, device: torch.device, console: Console) -> dict:
    """Fit the tree ensembles, choose stacking weights on the validation set, and add both to the best checkpoint.

    Args:
        folder: run directory, whose network is trained.
        data: molecules of the run, with the descriptors that the trees read.
        metric: metric of the run.
        device: device of the network.
        console: where to report.

    Returns:
        For each split, the metric by model: ``network``, ``forest``, ``boosting`` and ``blend`` (weighted ensemble).
    """
    dataset, rows = data.dataset, data.splits["train"]
    console.print(
        f"fitting a random forest and gradient boosting to {' and '.join(TREE_DESCRIPTORS)} of {len(rows):,} "
        "training molecules",
        highlight=False,
    )
    seed, threads = data.config.trainer.seed, torch.get_num_threads()
    with console.status("fitting tree ensembles"):
        trees = fit_trees(
            data.store.descriptors(rows, TREE_DESCRIPTORS), dataset.targets[rows], dataset.tasks, seed, threads
        )
    # In a resumed run the checkpoint may already have stacking weights and a calibration.
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
    scores: dict[str, dict[str, float]] = {}
    for split, by_model in predictions.items():
        labels = dataset.targets[data.splits[split]]
        by_model[_STACKING] = combine_predictions(list(by_model.values()), weights, dataset.tasks)
        scores[split] = {
            name: score(metric, dataset.name, dataset.tasks, labels, values) for name, values in by_model.items()
        }
    shares = ", ".join(
        f"{100 * share:.0f}% {_NAMES[name]}"
        for name, share in zip([_NETWORK, *trees], weights.mean(axis=1), strict=True)
    )
    summary = f"{shares} (weights chosen on the validation set)"
    if alone:
        summary = "100% network (the tree ensembles add little and are not used)"
    elif own := feature_column_names(data.config.data.descriptors):
        summary += f"; the tree ensembles do not use {', '.join(own)}"
    console.print(f"weighted ensemble: {summary}", highlight=False)
    split = "test" if "test" in predictions and not np.isnan(dataset.targets[data.splits["test"]]).all() else "valid"
    molecules = molecule_ids(data.store, data.splits[split])
    for line in describe_baselines(split, predictions[split], data, metric, scores[split], molecules):
        console.print(line, highlight=False, soft_wrap=True)
    return scores


def _predictions(network: Predictor, trees: dict, data: MoleculeData, split: str) -> dict[str, np.ndarray]:
    """Return the predictions ``float32 [R, W]`` of the network and of each tree ensemble for a split."""
    rows = data.splits[split]
    x = data.store.descriptors(rows, TREE_DESCRIPTORS)
    predictions = {_NETWORK: network.predict_store(data.store, rows)}
    return predictions | {name: predict_trees(of_targets, x) for name, of_targets in trees.items()}


def describe_baselines(
    split: str,
    predictions: dict[str, np.ndarray],
    data: MoleculeData,
    metric: str,
    values: dict[str, float],
    molecules: np.ndarray,
) -> list[str]:
    """Describe the score of each model, and whether the best of network and tree ensembles is significantly better.

    Args:
        split: name of the split.
        predictions: ``float32 [R, W]`` by model.
        data: molecules of the run, with their labels.
        metric: metric of the run.
        values: the metric by model.
        molecules: ``int64 [R]``, molecule of each row; rows of one molecule are resampled together.

    Returns:
        Lines to print.
    """
    scores = ", ".join(f"{_NAMES[name]} {value:.4f}" for name, value in values.items())
    lines = [f"{split} {METRICS[metric].label}: {scores}"]
    tasks, labels = data.dataset.tasks, data.dataset.targets[data.splits[split]]
    if split != "test" or len(np.unique(molecules)) < _FEW_MOLECULES:
        return lines
    alone = {name: values for name, values in predictions.items() if name != _STACKING}
    if len(tasks) > 1:
        best = [_best_model(alone, labels[:, t], where, task) for t, task, where in each_target(tasks)]
        counts = {name: best.count(name) for name in alone}
        won = ", ".join(f"{_NAMES[name]} {count:,}" for name, count in counts.items() if count)
        return [*lines, f"best single model by number of targets ({len(tasks):,}): {won}"] if won else lines
    (task,), (where,) = tasks, output_slices(tasks)
    winner = _best_model(alone, labels[:, 0], where, task)
    if winner is None or len(np.unique(data.train_labels)) < 2:
        return lines
    rivals = [name for name in alone if name != winner and _NETWORK in (name, winner)]
    pairs = [
        compare_errors(labels[:, 0], alone[winner], alone[name], task.kind, molecules=molecules) for name in rivals
    ]
    difference, rival = min(zip(pairs, rivals, strict=True), key=lambda pair: pair[0].difference)
    if not np.isfinite(difference.low):
        return lines
    significant = "significant" if difference.low > 0 else "not significant"
    lines.append(
        f"best single model: {_NAMES[winner]}, {difference.metric} {difference.a:.4f}, "
        f"{difference.difference:.3g} better than {_NAMES[rival]} (95% confidence interval: "
        f"{difference.low:.3g} to {difference.high:.3g}, {significant} for these test molecules)"
    )
    return lines


def _best_model(alone: dict[str, np.ndarray], labels: np.ndarray, where: slice, task: Task) -> str | None:
    """Return the model with the least loss (as in :func:`~graphslice.stacking.compare_errors`); None if undefined."""
    losses = {name: prediction_loss(labels, values[:, where], task.kind) for name, values in alone.items()}
    return None if np.isnan(list(losses.values())).any() else min(losses, key=lambda name: losses[name])


def describe_seeds(split: str, scores: Sequence[dict[str, float]], metric: str, folds: int = 0) -> list[str]:
    """Compare network and tree ensembles over several seeds or folds.

    Args:
        split: name of the split.
        scores: for each seed or fold, the metric by model, as :func:`train_baselines` returns it for a split.
        metric: metric of the run.
        folds: number of folds of a cross-validation; 0 for an ensemble over seeds.

    Returns:
        Lines to print; empty if there are fewer than two members or the network's metric is undefined.
    """
    # Undefined scores were read as None, which becomes nan.
    values = {name: np.array([member[name] for member in scores], np.float64) for name in scores[0]}
    means = {name: float(column.mean()) for name, column in values.items() if np.isfinite(column).all()}
    if len(scores) < 2 or _NETWORK not in means:
        return []
    spread = {name: float(values[name].std(ddof=1)) for name in means}
    summary = ", ".join(f"{_NAMES[name]} {mean:.4f} ± {spread[name]:.4f}" for name, mean in means.items())
    lines = [
        f"{split} {METRICS[metric].label} of the {len(scores)} individual models (mean ± standard deviation): {summary}"
    ]
    rivals = [name for name in means if name not in (_NETWORK, _STACKING)]
    if rivals:
        loss = METRICS[metric].loss
        rival = min(rivals, key=lambda name: loss(means[name]))
        winner, loser = sorted((_NETWORK, rival), key=lambda name: loss(means[name]))
        gains = (values[loser] - values[winner]) * loss(1.0)
        summary = f"{_NAMES[winner]} is better than {_NAMES[loser]} by {gains.mean():.3g}"
        kind = "folds" if folds else "seeds"
        if len(scores) < MIN_SEEDS:
            return [*lines, f"{summary}; {len(scores)} models are too few to estimate the variation between {kind}"]
        low, high = mean_interval(gains, folds)
        significant = "significant" if low > 0 else "not significant"
        lines.append(
            f"{summary} (95% confidence interval: {low:.3g} to {high:.3g}), {significant} given the variation "
            f"between {kind}"
        )
    return lines
