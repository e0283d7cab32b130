"""Choice of the scale on which regression targets are trained, by inner validation of a quick model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from rich.console import Console

from graphslice.checkpoint import read_checkpoint
from graphslice.config import MOLECULE, RunConfig, join_names
from graphslice.data.columns import quoted_list
from graphslice.data.datamodule import MoleculeData
from graphslice.data.dataset import LabelledDataset
from graphslice.data.molecule_keys import graph_input_rows, molecule_keys
from graphslice.data.splits import random_subset
from graphslice.evaluation.metrics import METRICS, score
from graphslice.stacking.kernel import fit_regression, training_kernel
from graphslice.tasks import (
    REGRESSION,
    TRANSFORMS,
    fit_transforms,
    parse_per_target,
    transformed,
    transformed_back,
)

# With fewer labelled molecules nothing is chosen; of more, a sample is compared; with more labels, nothing is chosen.
# With more rows the network learned gaps worse on the logarithm that the quick model prefers (docs/log.md).
_FEWEST, _MOST_COMPARED, _MOST_LABELS, _MOST_ROWS = 100, 1_000, 20_000, 3_000
_FOLDS = 5
# Ratio of the largest to the smallest label of a positive target above which a note names the logarithm.
_ORDERS = 100
# A transform is chosen if the logarithm of its error (of 1 minus the score, where higher is better) is less than that
# of none by this many standard errors of the differences between folds, and by this number.
_STANDARD_ERRORS, _LEAST_GAIN = 2.0, 0.03


def choose_transforms(
    config: RunConfig, data: MoleculeData, console: Console, is_single: bool = True
) -> tuple[MoleculeData, RunConfig]:
    """Choose the transform of each regression target on training and validation set, unless ``data.transform`` sets it.

    Nothing is chosen for a cross-validation, whose models would have different scales.

    Compared are none and, of positive labels, the logarithm, otherwise normal scores of ranks (docs/log.md). A support
    vector regression (:mod:`graphslice.stacking.kernel`) is trained on each scale, and its predictions, in the unit of
    the target, are evaluated by the metric of the run. A run that is fine-tuned from a model with the same targets has
    its transforms.

    Args:
        config: configuration of a new run.
        data: molecules of the run.
        console: where to report.
        is_single: the run is a single model. The knots of ranks would differ between the members of an ensemble.

    Returns:
        The molecules and the configuration with the transforms.
    """
    if config.data.is_cross_validation:
        return data, config
    rows = np.sort(np.concatenate([data.splits["train"], data.splits["valid"]]))
    config, lines = _choose(config, data, rows, is_single)
    for line in lines:
        console.out(line, highlight=False)
    names = [task.name for task in data.dataset.tasks]
    transforms = parse_per_target(config.data.transform, names, TRANSFORMS, "--transform")
    tasks = [replace(task, transform=transforms.get(task.name, task.transform)) for task in data.dataset.tasks]
    return data.with_tasks(tasks), config


def _choose(config: RunConfig, data: MoleculeData, rows: np.ndarray, is_single: bool) -> tuple[RunConfig, list[str]]:
    """Return the configuration with the transforms chosen on some rows, and lines to print."""
    tasks = data.dataset.tasks
    labels = int((~np.isnan(data.dataset.targets[rows])).sum())
    too_many = labels > _MOST_LABELS or len(rows) > _MOST_ROWS
    given = parse_per_target(config.data.transform, [task.name for task in tasks], TRANSFORMS, "--transform")
    if len(given) == len(tasks) or data.dataset.level != MOLECULE or too_many:
        return config, []
    origin = [] if config.origin is None else read_checkpoint(config.origin).tasks
    if [task.name for task in origin] == [task.name for task in tasks]:
        kept = {}
        for t, (task, before) in enumerate(zip(tasks, origin, strict=True)):
            is_possible = _least(data.dataset, t) > 0 if before.transform == "log" else is_single
            if task.kind == REGRESSION and before.transform != "none" and is_possible:
                kept[task.name] = before.transform
        return _configured(config, kept | given), []
    metric = config.trainer.metric or "mae"
    metric = metric if REGRESSION in METRICS[metric].kinds and metric != "loss" else "mae"
    chosen, lines, positive = {}, [], []
    for t, task in enumerate(tasks):
        if task.kind != REGRESSION or task.name in given or task.name != task.name.strip():  # which it could not name
            continue
        scores = _compare(data, rows, t, metric, is_single)
        best = _best(scores, METRICS[metric].higher_is_better)
        if best == "none" and _is_positive(data.dataset, rows, t):
            positive.append(task.name)
        if best != "none":
            chosen[task.name] = best
            label, scale = METRICS[metric].label, {"log": "its logarithm", "rank": "normal scores of its ranks"}[best]
            lines.append(
                f"{task.name}: trained on {scale} (inner validation {label} {scores[best].mean():.4g}, otherwise "
                f"{scores['none'].mean():.4g}; --transform none keeps it off)"
            )
    if positive:
        example = join_names(positive[:1])
        lines.append(
            f"{quoted_list(positive)}: all labels are positive and differ by a factor of more than {_ORDERS}, but the "
            "logarithm was not better; predictions and intervals may be negative, unless it is chosen by "
            f"--transform '{example}=log'"
        )
    return _configured(config, chosen | given), lines


def _is_positive(dataset: LabelledDataset, rows: np.ndarray, t: int) -> bool:
    """True if all labels of a target are positive and the largest is more than a hundred times the smallest."""
    y = dataset.targets[rows, t]
    least = np.nanmin(y, initial=np.inf)
    return bool(least > 0 and np.nanmax(y, initial=0) > _ORDERS * least)


def _configured(config: RunConfig, transforms: dict[str, str]) -> RunConfig:
    """Return the configuration with the transforms of some targets, by name."""
    text = ",".join(f"{join_names([name])}={transform}" for name, transform in transforms.items()) or "none"
    return replace(config, data=replace(config.data, transform=text))


def _compare(data: MoleculeData, rows: np.ndarray, t: int, metric: str, is_single: bool) -> dict[str, np.ndarray]:
    """Return the score of each fold with each transform; with none alone if there is nothing to choose."""
    from scipy.stats import iqr

    known = rows[~np.isnan(data.dataset.targets[rows, t])]
    known = np.sort(random_subset(known, _MOST_COMPARED, data.config.trainer.seed))
    y = data.dataset.targets[known, t]
    low, high = _extremes(data.dataset, rows, t)
    other = "log" if len(y) and _least(data.dataset, t) > 0 else "rank"
    # Ranks cannot predict beyond the numbers of the training set, where bounds may lie.
    is_possible = other == "log" or (is_single and len(y) and y.min() <= low and high <= y.max())
    candidates = ["none", *([other] if is_possible else [])]
    families = np.unique(molecule_keys(data.store, known).family, return_inverse=True)[1] if len(known) else known
    if len(np.unique(families)) < _FEWEST or len(np.unique(y)) < 3:
        return {"none": np.zeros(1)}
    order = np.random.default_rng(data.config.trainer.seed).permutation(families.max() + 1)
    fold = order[families] % _FOLDS
    kernel = training_kernel(graph_input_rows(data.store, known))
    scores: dict[str, list[float]] = {name: [] for name in candidates}
    for held in range(_FOLDS):
        train, test = np.flatnonzero(fold != held), np.flatnonzero(fold == held)
        for name in candidates:
            (task,) = fit_transforms([replace(data.dataset.tasks[t], transform=name)], y[train][:, None])
            labels = transformed(y[train], task)
            # Robust, since a network that is trained by absolute errors is little disturbed by large labels.
            centre, width = np.median(labels), iqr(labels, scale="normal") or labels.std() or 1.0
            machine = fit_regression(kernel[np.ix_(train, train)], (labels - centre) / width)
            predicted = transformed_back(machine.predict(kernel[np.ix_(test, train)]) * width + centre, task)
            scores[name].append(score(metric, data.dataset.name, [task], y[test][:, None], predicted[:, None]))
    return {name: np.array(values) for name, values in scores.items()}


def _least(dataset: LabelledDataset, t: int) -> float:
    """Return the least label of a target, or upper bound of one, in all rows, those of the test set too."""
    least = np.nanmin(dataset.targets[:, t], initial=np.inf)
    return float(min(least, _extremes(dataset, np.arange(len(dataset)), t)[0]))


def _extremes(dataset: LabelledDataset, rows: np.ndarray, t: int) -> tuple[float, float]:
    """Return the least upper and the largest lower bound of a target; infinite without any."""
    bounds = dataset.bounds(rows)
    if bounds is None:
        return np.inf, -np.inf
    return float(bounds[:, t, 1].min(initial=np.inf)), float(bounds[:, t, 0].max(initial=-np.inf))


def _best(scores: dict[str, np.ndarray], higher_is_better: bool) -> str:
    """Return the other transform if it is clearly better than none, else none."""
    name = list(scores)[-1]
    errors = (1 - values if higher_is_better else values for values in (scores["none"], scores[name]))
    none, other = (np.log(np.maximum(values, 1e-300)) for values in errors)  # ratios: one fold may have a huge label
    gains = none - other
    error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.inf
    return name if gains.mean() > max(_STANDARD_ERRORS * error, _LEAST_GAIN) else "none"
