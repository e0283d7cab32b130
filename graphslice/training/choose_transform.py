"""Choice of the logarithm as the scale of positive regression targets, by inner validation of a quick model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from rich.console import Console

from graphslice.config import FROM_SCRATCH, MOLECULE, RunConfig, join_names
from graphslice.data.datamodule import MoleculeData
from graphslice.data.dataset import LabelledDataset
from graphslice.data.featurize import graph_input_rows, molecule_keys
from graphslice.data.splits import random_subset
from graphslice.evaluation.metrics import METRICS, score
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.stacking.kernel import fit_regression, training_kernel
from graphslice.system.console import remark
from graphslice.tasks import (
    REGRESSION,
    TRANSFORMS,
    UNBOUNDED,
    bounds_to_training_scale,
    expected_values,
    is_bounded,
    parse_per_target,
    transformed,
    transformed_back,
    within_bounds,
)

# With fewer labelled molecules nothing is compared; of more, a sample is; and with more labels in all samples, nothing.
_FEWEST, _MOST_COMPARED, _MOST_LABELS = 100, 1_000, 20_000
# With more rows the network learned gaps worse on the logarithm that the quick model prefers (docs/log.md).
_MOST_ROWS = 3_000
_FOLDS = 5
# A scale is clearly better if the logarithm of its error (of 1 minus the score, where higher is better) is less than
# that of the other by this many standard errors of the differences between folds, and by this number.
_STANDARD_ERRORS, _LEAST_GAIN = 2.0, 0.03
# Positive labels are trained on their logarithm by default if they span this factor, where ``<x`` counts as x / 10.
_WIDE, _BELOW = 100.0, 10.0


def choose_transforms(config: RunConfig, init_from: str, data: MoleculeData, console: Console) -> str:
    """Return ``data.transform`` of a run for regression targets that the user sets none for, chosen on training and
    validation set. A positive target has the logarithm, if its labels span a factor of 100 unless the raw scale is
    clearly better, otherwise only if the logarithm is. Models of a cross-validation would have different scales, so
    nothing is compared; a run that is fine-tuned from ``init_from`` has the transforms of a model with the same
    targets."""
    tasks, dataset, names = data.dataset.tasks, data.dataset, data.dataset.target_names
    given = parse_per_target(config.data.transform, names, TRANSFORMS, "data.transform")
    if len(given) == len(tasks) or dataset.level != MOLECULE or dataset.is_pcqm4m:
        return config.data.transform or "none"
    origin = [] if init_from == FROM_SCRATCH else read_checkpoint(init_from).tasks
    positive = [t for t, task in enumerate(tasks) if task.kind == REGRESSION and dataset.least_labels[t] > 0]
    if [task.name for task in origin] == names:
        chosen = {names[t]: "log" for t in positive if origin[t].transform == "log"}
    else:
        free = [t for t in positive if names[t] not in given and names[t] == names[t].strip()]
        compared = len(free) * _MOST_COMPARED <= _MOST_LABELS and not config.data.is_cross_validation
        chosen = {names[t]: "log" for t in free if _takes_logarithm(data, t, compared, console)}
    return ",".join(f"{join_names([name])}={transform}" for name, transform in (chosen | given).items()) or "none"


def _takes_logarithm(data: MoleculeData, t: int, compared: bool, console: Console) -> bool:
    """Decide for one target, and print why; the scales are ``compared`` if the default can lose."""
    rows = np.sort(np.concatenate([data.splits["train"], data.splits["valid"]]))
    metric = data.config.trainer.metric
    metric = metric if metric not in (None, "loss") and REGRESSION in METRICS[metric].kinds else "mae"
    is_wide, name = _is_wide(data.dataset, rows, t), data.dataset.target_names[t]
    compared = compared and (is_wide or len(rows) <= _MOST_ROWS)
    none, log = _compare(data, rows, t, metric) if compared else (np.zeros(2), np.zeros(2))
    scales, higher = (log, none) if is_wide else (none, log), METRICS[metric].higher_is_better
    if is_wide == _is_better(*scales, higher):
        return False
    reasons = [f"its labels span a factor of {_WIDE:g}"] if is_wide else []
    if log.any():
        label = METRICS[metric].label
        reasons.append(f"in a quick cross-validation {label} {log.mean():.4g} with it, {none.mean():.4g} without")
    remark(f"{name}: trained on its logarithm ({'; '.join(reasons)}); --transform none turns this off", console)
    return True


def _is_wide(dataset: LabelledDataset, rows: np.ndarray, t: int) -> bool:
    """Return whether the labels and bounds of a positive target span a factor of 100; ``<x`` counts as x / 10."""
    numbers, bounds = dataset.targets[rows, t], dataset.bounds(rows)
    if bounds is not None:
        numbers = np.concatenate([numbers, bounds[:, t, 0], bounds[:, t, 1] / _BELOW])
    numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
    return bool(numbers.max(initial=0) >= _WIDE * numbers.min(initial=np.inf))


def _compare(data: MoleculeData, rows: np.ndarray, t: int, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of all folds without and with the logarithm; equal ones for too few molecules. A support vector
    regression (:mod:`graphslice.stacking.kernel`) is trained on each scale and evaluated in the unit of the target.
    Bounds are labels: ``<x`` means 0 to x, and predictions below 0 have an error."""
    from scipy.stats import iqr

    dataset = data.dataset
    bounds = dataset.bounds(rows)
    bounds = np.full((len(rows), 2), UNBOUNDED) if bounds is None else bounds[:, t]
    is_known = ~np.isnan(dataset.targets[rows, t]) | is_bounded(bounds)
    chosen = np.isin(rows, random_subset(rows[is_known], _MOST_COMPARED, data.config.trainer.seed))
    known, y, bounds = rows[chosen], dataset.targets[rows[chosen], t], bounds[chosen]
    families = np.unique(molecule_keys(data.store, known).family, return_inverse=True)[1]
    if len(np.unique(families)) < _FEWEST or len(np.unique(y)) < 3:
        return np.zeros(2), np.zeros(2)
    order = np.random.default_rng(data.config.trainer.seed).permutation(families.max() + 1)
    fold = order[families] % _FOLDS
    kernel = training_kernel(graph_input_rows(data.store, known))
    scores: dict[str, list[float]] = {name: [] for name in TRANSFORMS}
    for held in range(_FOLDS):
        train, test = np.flatnonzero(fold != held), np.flatnonzero(fold == held)
        for name in TRANSFORMS:
            task = replace(dataset.tasks[t], transform=name, positive=False)
            limits = bounds_to_training_scale(bounds[train][:, None], [task])[:, 0]
            labels = expected_values(transformed(y[train], task), limits)
            # Robust, since a network that is trained by absolute errors is little disturbed by large labels.
            centre, width = np.median(labels), iqr(labels, scale="normal") or labels.std() or 1.0
            machine = fit_regression(kernel[np.ix_(train, train)], (labels - centre) / width)
            predicted = transformed_back(machine.predict(kernel[np.ix_(test, train)]) * width + centre, task)
            true = within_bounds(y[test], np.maximum(bounds[test], 0), predicted)
            scores[name].append(score(metric, dataset.name, [task], true[:, None], predicted[:, None]))
    return np.array(scores["none"]), np.array(scores["log"])


def _is_better(none: np.ndarray, log: np.ndarray, higher_is_better: bool) -> bool:
    errors = (1 - values if higher_is_better else values for values in (none, log))
    before, after = (np.log(np.maximum(values, 1e-300)) for values in errors)  # ratios: a fold may have a huge label
    gains = before - after
    return bool(gains.mean() > max(_STANDARD_ERRORS * gains.std(ddof=1) / np.sqrt(len(gains)), _LEAST_GAIN))
