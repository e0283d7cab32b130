"""What is printed of the models of a stack: their weights and scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.evaluation.confidence import MIN_SEEDS, mean_interval
from graphslice.evaluation.format_scores import mean_and_std
from graphslice.evaluation.metrics import METRICS
from graphslice.stacking.stacking import NAMES, NETWORK, STACK
from graphslice.tasks import Task


def describe_weights(weights: np.ndarray, names: Sequence[str], tasks: Sequence[Task], alone: bool) -> str:
    """Describe the weights ``float64 [M, T]`` of M models for T targets, by their mean over targets.

    ``alone``: the network predicts alone.
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


def describe_baselines(split: str, metric: str, values: dict[str, float]) -> str:
    """Describe the score of each model on a split; ``values``: the metric of the run by model."""
    scores = ", ".join(f"{NAMES[name]} {value:.4f}" for name, value in values.items())
    return f"{'held-out' if split == 'valid' else split} {METRICS[metric].label}: {scores}"


def describe_seeds(split: str, scores: Sequence[dict[str, float]], metric: str, folds: int = 0) -> list[str]:
    """Describe the scores of the network over several seeds or folds, and compare it with base models if there are any.

    Args:
        split: name of the split.
        scores: for each seed or fold, the metric by model, as ``Stack.finish`` returns it for a split.
        metric: metric of the run.
        folds: number of folds of a cross-validation; 0 for an ensemble over seeds.

    Returns:
        Lines to print; empty if there are fewer than two members or the network's metric is undefined.
    """
    if len(scores) < 2:
        return []
    # Undefined scores were read as None, which becomes nan.
    values = {name: np.array([member[name] for member in scores], np.float64) for name in scores[0]}
    means = {name: float(column.mean()) for name, column in values.items() if np.isfinite(column).all()}
    if NETWORK not in means:
        return []
    named = [f"{NAMES[name]} {mean_and_std(values[name])}" for name in means]
    summary = ", ".join(named) if len(scores[0]) > 1 else mean_and_std(values[NETWORK])
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
