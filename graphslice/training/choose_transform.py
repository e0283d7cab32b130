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
from graphslice.tasks import REGRESSION, TRANSFORMS, parse_per_target, transformed, transformed_back

# With fewer labelled molecules nothing is chosen; of more, a sample is compared; with more labels, nothing is chosen.
# With more rows the network learned gaps worse on the logarithm that the quick model prefers (docs/log.md).
_FEWEST, _MOST_COMPARED, _MOST_LABELS, _MOST_ROWS = 100, 1_000, 20_000, 3_000
_FOLDS = 5
# The logarithm is chosen if the logarithm of its error (of 1 minus the score, where higher is better) is less than that
# of none by this many standard errors of the differences between folds, and by this number.
_STANDARD_ERRORS, _LEAST_GAIN = 2.0, 0.03


def choose_transforms(config: RunConfig, init_from: str, data: MoleculeData, console: Console) -> str:
    """Return ``data.transform`` of a run: for regression targets that the user sets none for, chosen on training and
    validation set. A support vector regression (:mod:`graphslice.stacking.kernel`) is trained on each scale and
    evaluated by the metric of the run in the unit of the target. Models of a cross-validation would have different
    scales, so nothing is chosen; a run that is fine-tuned from ``init_from`` has the transforms of a model with the
    same targets."""
    tasks, dataset, names = data.dataset.tasks, data.dataset, data.dataset.target_names
    rows = np.sort(np.concatenate([data.splits["train"], data.splits["valid"]]))
    given = parse_per_target(config.data.transform, names, TRANSFORMS, "data.transform")
    too_many = int((~np.isnan(dataset.targets[rows])).sum()) > _MOST_LABELS or len(rows) > _MOST_ROWS
    if too_many or len(given) == len(tasks) or dataset.level != MOLECULE or config.data.is_cross_validation:
        return config.data.transform or "none"
    origin = [] if init_from == FROM_SCRATCH else read_checkpoint(init_from).tasks
    positive = [t for t, task in enumerate(tasks) if task.kind == REGRESSION and _least(dataset, t) > 0]
    if [task.name for task in origin] == names:
        chosen = {names[t]: "log" for t in positive if origin[t].transform == "log"}
    else:
        free = [t for t in positive if names[t] not in given and names[t] == names[t].strip()]
        chosen = _choose(config.trainer.metric, data, rows, free, console)
    return ",".join(f"{join_names([name])}={transform}" for name, transform in (chosen | given).items()) or "none"


def _choose(
    metric: str | None, data: MoleculeData, rows: np.ndarray, targets: list[int], console: Console
) -> dict[str, str]:
    """Return ``log`` by the names of those of some targets, by index, for which it is clearly better."""
    metric = metric if metric not in (None, "loss") and REGRESSION in METRICS[metric].kinds else "mae"
    chosen = {}
    for t in targets:
        name = data.dataset.target_names[t]
        none, log = _compare(data, rows, t, metric)
        if _is_better(none, log, METRICS[metric].higher_is_better):
            chosen[name] = "log"
            console.out(
                f"{name}: trained on its logarithm (inner validation {METRICS[metric].label} {log.mean():.4g}, "
                f"otherwise {none.mean():.4g}; data.transform none keeps it off)",
                highlight=False,
            )
    return chosen


def _compare(data: MoleculeData, rows: np.ndarray, t: int, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of all folds without and with the logarithm; equal ones for too few molecules."""
    from scipy.stats import iqr

    known = rows[~np.isnan(data.dataset.targets[rows, t])]
    known = np.sort(random_subset(known, _MOST_COMPARED, data.config.trainer.seed))
    y = data.dataset.targets[known, t]
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
            task = replace(data.dataset.tasks[t], transform=name)
            labels = transformed(y[train], task)
            # Robust, since a network that is trained by absolute errors is little disturbed by large labels.
            centre, width = np.median(labels), iqr(labels, scale="normal") or labels.std() or 1.0
            machine = fit_regression(kernel[np.ix_(train, train)], (labels - centre) / width)
            predicted = transformed_back(machine.predict(kernel[np.ix_(test, train)]) * width + centre, task)
            scores[name].append(score(metric, data.dataset.name, [task], y[test][:, None], predicted[:, None]))
    return np.array(scores["none"]), np.array(scores["log"])


def _least(dataset: LabelledDataset, t: int) -> float:
    """Return the least label of a target, or upper bound of one, in all rows, those of the test set too."""
    bounds = dataset.all_labels.bounds
    least = np.nanmin(dataset.targets[:, t], initial=np.inf)
    return float(least if bounds is None else bounds[:, t, 1].min(initial=least))


def _is_better(none: np.ndarray, log: np.ndarray, higher_is_better: bool) -> bool:
    errors = (1 - values if higher_is_better else values for values in (none, log))
    before, after = (np.log(np.maximum(values, 1e-300)) for values in errors)  # ratios: a fold may have a huge label
    gains = before - after
    return bool(gains.mean() > max(_STANDARD_ERRORS * gains.std(ddof=1) / np.sqrt(len(gains)), _LEAST_GAIN))
