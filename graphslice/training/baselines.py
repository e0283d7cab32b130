"""What is printed of the models of a stack: their weights, scores, and whether the best is significantly better."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.data.datamodule import MoleculeData
from graphslice.evaluation.confidence import MIN_SEEDS, mean_interval
from graphslice.evaluation.metrics import METRICS
from graphslice.stacking import compare_errors, prediction_loss
from graphslice.stacking.stacking import NAMES, NETWORK, STACK
from graphslice.tasks import Task, each_target, output_slices

# With fewer molecules no significance is reported: resampling a dozen molecules does not show how others would differ.
_FEW_MOLECULES = 30
_SPLIT_NAMES = {"valid": "held-out"}


def describe_weights(weights: np.ndarray, names: Sequence[str], tasks: Sequence[Task], alone: bool) -> str:
    """Describe the weights of a stack; means over targets where there are several.

    Args:
        weights: ``float64 [M, T]``.
        names: names of the M models.
        tasks: T targets.
        alone: the network predicts alone.
    """
    if alone:
        return "weighted ensemble: 100% network (other models add little and are not used)"
    shares = ", ".join(
        f"{100 * share:.0f}% {NAMES[name]}"
        for name, share in zip(names, weights.mean(axis=1), strict=True)
        if share > 0
    )
    mean = f", mean over {len(tasks):,} targets" if len(tasks) > 1 else ""
    return f"weighted ensemble: {shares} (weights chosen on held-out molecules{mean})"


def describe_baselines(
    split: str,
    predictions: dict[str, np.ndarray],
    data: MoleculeData,
    rows: np.ndarray,
    metric: str,
    values: dict[str, float],
    molecules: np.ndarray,
) -> list[str]:
    """Describe the score of each model, and whether the best of network and base models is significantly better.

    Args:
        split: name of the split.
        predictions: ``float32 [R, W]`` by model.
        data: molecules of the run, with their labels.
        rows: ``int64 [R]``, rows of the dataset.
        metric: metric of the run.
        values: the metric by model.
        molecules: ``int64 [R]``, molecule of each row; rows of one molecule are resampled together.

    Returns:
        Lines to print.
    """
    scores = ", ".join(f"{NAMES[name]} {value:.4f}" for name, value in values.items())
    lines = [f"{_SPLIT_NAMES.get(split, split)} {METRICS[metric].label}: {scores}"]
    tasks, labels = data.dataset.tasks, data.dataset.targets[rows]
    if split != "test" or len(np.unique(molecules)) < _FEW_MOLECULES:
        return lines
    alone = {name: values for name, values in predictions.items() if name != STACK}
    if len(tasks) > 1:
        best = [_best_model(alone, labels[:, t], where, task) for t, task, where in each_target(tasks)]
        counts = {name: best.count(name) for name in alone}
        won = ", ".join(f"{NAMES[name]} {count:,}" for name, count in counts.items() if count)
        return [*lines, f"best single model by number of targets ({len(tasks):,}): {won}"] if won else lines
    (task,), (where,) = tasks, output_slices(tasks)
    winner = _best_model(alone, labels[:, 0], where, task)
    if winner is None or len(np.unique(data.train_labels)) < 2:
        return lines
    rivals = [name for name in alone if name != winner and NETWORK in (name, winner)]
    pairs = [
        compare_errors(labels[:, 0], alone[winner], alone[name], task.kind, molecules=molecules) for name in rivals
    ]
    difference, rival = min(zip(pairs, rivals, strict=True), key=lambda pair: pair[0].difference)
    if not np.isfinite(difference.low):
        return lines
    significant = "significant" if difference.low > 0 else "not significant"
    lines.append(
        f"best single model: {NAMES[winner]}, {difference.metric} {difference.a:.4f}, "
        f"{difference.difference:.3g} better than {NAMES[rival]} (95% confidence interval: "
        f"{difference.low:.3g} to {difference.high:.3g}, {significant} for these test molecules)"
    )
    return lines


def _best_model(alone: dict[str, np.ndarray], labels: np.ndarray, where: slice, task: Task) -> str | None:
    """Return the model with the least loss (as in :func:`~graphslice.stacking.compare_errors`); None if undefined."""
    losses = {name: prediction_loss(labels, values[:, where], task.kind) for name, values in alone.items()}
    return None if np.isnan(list(losses.values())).any() else min(losses, key=lambda name: losses[name])


def describe_seeds(split: str, scores: Sequence[dict[str, float]], metric: str, folds: int = 0) -> list[str]:
    """Compare network and base models over several seeds or folds.

    Args:
        split: name of the split.
        scores: for each seed or fold, the metric by model, as ``Stack.finish`` returns it for a split.
        metric: metric of the run.
        folds: number of folds of a cross-validation; 0 for an ensemble over seeds.

    Returns:
        Lines to print; empty if there are fewer than two members or the network's metric is undefined.
    """
    # Undefined scores were read as None, which becomes nan.
    values = {name: np.array([member[name] for member in scores], np.float64) for name in scores[0]}
    means = {name: float(column.mean()) for name, column in values.items() if np.isfinite(column).all()}
    if len(scores) < 2 or NETWORK not in means:
        return []
    spread = {name: float(values[name].std(ddof=1)) for name in means}
    summary = ", ".join(f"{NAMES[name]} {mean:.4f} ± {spread[name]:.4f}" for name, mean in means.items())
    lines = [
        f"{split} {METRICS[metric].label} of the {len(scores)} individual models (mean ± standard deviation): {summary}"
    ]
    rivals = [name for name in means if name not in (NETWORK, STACK)]
    if rivals:
        loss = METRICS[metric].loss
        rival = min(rivals, key=lambda name: loss(means[name]))
        winner, loser = sorted((NETWORK, rival), key=lambda name: loss(means[name]))
        gains = (values[loser] - values[winner]) * loss(1.0)
        summary = f"{NAMES[winner]} is better than {NAMES[loser]} by {gains.mean():.3g}"
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
