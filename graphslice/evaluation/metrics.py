"""Metrics of regression and classification (the MAE on PCQM4M-LSC by OGB's own evaluator), confidence intervals of
them, and the empirical coverage of prediction intervals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from graphslice.calibration import Calibration, mean_per_molecule
from graphslice.data.ogb import OGB_FOLDERS, import_ogb_lsc
from graphslice.errors import InputError, check_choice
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION, TASK_KINDS, Task, each_target, is_bounded, within_bounds

if TYPE_CHECKING:
    from graphslice.data.dataset import LabelledDataset
    from graphslice.inference.predictions import PredictionInterval

# Probabilities are clipped to at least this value before their logarithm is taken.
_MIN_PROBABILITY = 1e-7


@dataclass(frozen=True)
class Metric:
    """A metric: its name and the task types that have it."""

    label: str  # on screen
    kinds: tuple[str, ...]  # task types that have the metric
    higher_is_better: bool

    def loss(self, value: float) -> float:
        """Return the value with the sign for which lower is better."""
        return -value if self.higher_is_better else value


_CLASSES = (BINARY, MULTICLASS)
#: Metrics by their name in ``metrics.json``. Units: the first three are in the unit of the target.
METRICS = {
    "mae": Metric("MAE", (REGRESSION,), False),
    "rmse": Metric("RMSE", (REGRESSION,), False),
    "median_error": Metric("median error", (REGRESSION,), False),
    "r2": Metric("R2", (REGRESSION,), True),
    "spearman": Metric("Spearman", (REGRESSION,), True),
    "pearson": Metric("Pearson", (REGRESSION,), True),
    "auroc": Metric("AUROC", _CLASSES, True),
    "auprc": Metric("AUPRC", (BINARY,), True),
    "accuracy": Metric("accuracy", _CLASSES, True),
    "balanced_accuracy": Metric("balanced accuracy", _CLASSES, True),
    "f1": Metric("F1", _CLASSES, True),
    "mcc": Metric("MCC", _CLASSES, True),
    "calibration_error": Metric("calibration error", _CLASSES, False),
    "log_loss": Metric("log loss", _CLASSES, False),
    # Comparable across task types: MAE over the standard deviation of the target (regression), log loss (classes).
    "loss": Metric("loss", TASK_KINDS, False),
}

# Errors of targets whose standard deviations differ by at most this factor are averaged in their unit.
_SIMILAR_SPREADS = 3.0


def default_metric(tasks: Sequence[Task], labels: np.ndarray) -> str:
    """Return the metric that selects the best checkpoint: MAE or AUROC; the loss for mixed task types, and for numbers
    whose standard deviations differ by a factor of more than 3, since the largest would decide."""
    is_regression = {task.kind == REGRESSION for task in tasks}
    if is_regression == {True}:
        spreads = [_spread(column) for column in labels.T]
        return "loss" if max(spreads) > _SIMILAR_SPREADS * min(spreads) else "mae"
    return "loss" if True in is_regression else "auroc"


def check_metric(name: str, tasks: Sequence[Task]) -> None:
    """Raise :class:`InputError` for a metric that does not exist, or does not apply to any target."""
    check_choice("trainer.metric", name, METRICS)
    if not any(task.kind in METRICS[name].kinds for task in tasks):
        kinds = " and ".join(sorted({task.kind for task in tasks}))
        raise InputError(
            f"trainer.metric {name} is for {' and '.join(METRICS[name].kinds)} targets, but the targets are {kinds}"
        )


def score(name: str, dataset: str, tasks: Sequence[Task], y_true: np.ndarray, predictions: np.ndarray) -> float:
    """Compute a metric of labels ``float [R, T]`` (nan: unknown), predictions ``float [R, W]``: its mean over targets,
    nan without any. For ``pcqm4m`` and ``pcqm4mv2`` OGB's evaluator computes the MAE (in eV)."""
    if name == "mae" and dataset in OGB_FOLDERS:
        return _ogb_mae(dataset, y_true[:, 0], predictions[:, 0])
    return mean_of_defined(
        _score_target(name, task, y_true[:, t], predictions[:, where])
        for t, task, where in each_target(tasks)
        if task.kind in METRICS[name].kinds
    )


def scores(dataset: str, tasks: Sequence[Task], y_true: np.ndarray, predictions: np.ndarray) -> dict:
    """Compute all metrics, averaged and in ``targets``, with arguments as in :func:`score`; nan where undefined.
    ``molecules`` is R, for a target its number of labels; ``counts`` are its labels per class; ``median_factor`` of one
    that is trained on its logarithm is the factor between label and prediction that half of the labels stay within."""
    targets: dict[str, dict] = {}
    for t, task, where in each_target(tasks):
        labels = y_true[~np.isnan(y_true[:, t]), t]
        target_scores: dict = {"kind": task.kind, "molecules": len(labels)}
        if task.classes:
            counts = np.bincount(labels.astype(int), minlength=len(task.classes)).tolist()
            target_scores["counts"] = dict(zip(task.classes, counts, strict=True))
        names = [name for name, metric in METRICS.items() if task.kind in metric.kinds]
        names += ["median_factor"] * (task.transform == "log")
        target_scores |= {name: _score_target(name, task, y_true[:, t], predictions[:, where]) for name in names}
        targets[task.name] = target_scores
    kinds = {task.kind for task in tasks}
    names = [name for name, metric in METRICS.items() if kinds & set(metric.kinds)]
    means = {name: mean_of_defined(found[name] for found in targets.values() if name in found) for name in names}
    if dataset in OGB_FOLDERS:
        means["mae"] = _ogb_mae(dataset, y_true[:, 0], predictions[:, 0])
    return {**means, "molecules": len(y_true), "targets": targets}


def selection_score(name: str, dataset: LabelledDataset, rows: np.ndarray, predictions: np.ndarray) -> float:
    """Compute the metric that selects a model, on rows of a dataset: a mean error counts errors of bounds too."""
    labels, bounds = dataset.all_labels[rows], dataset.bounds(rows)
    if bounds is not None and name in ("mae", "rmse", "loss"):
        labels = labels.copy()
        for t, task, where in each_target(dataset.tasks):
            if task.kind == REGRESSION:
                labels[:, t] = within_bounds(labels[:, t], bounds[:, t], predictions[:, where][:, 0])
    if name != "loss":
        return score(name, dataset.name, dataset.tasks, labels, predictions)
    # The scale is that of the numbers of all rows: of bounds, extreme predictions would be rewarded, and of few labels
    # it would be arbitrary.
    numbers = dataset.all_labels.values
    return mean_of_defined(
        _score_target("log_loss", task, labels[:, t], predictions[:, where])
        if task.classes
        else _score_target("mae", task, labels[:, t], predictions[:, where]) / _spread(numbers[:, t])
        for t, task, where in each_target(dataset.tasks)
    )


def score_rows(dataset: LabelledDataset, rows: np.ndarray, predictions: np.ndarray) -> dict:
    """Compute :func:`scores` for rows, with ``atoms`` or ``bonds``, the number of these, at their level; for bounds
    also their number, ``bounds``, and ``bounds_respected``, the share that the predictions respect."""
    labels, bounds = dataset.all_labels[rows], dataset.bounds(rows)
    result = scores(dataset.name, dataset.tasks, labels, predictions)
    labelled = int((~np.isnan(labels)).any(axis=1).sum())
    if dataset.level == "molecule":
        if bounds is None:
            return result
        for t, task, where in each_target(dataset.tasks):
            bounded = is_bounded(bounds[:, t]) & np.isnan(labels[:, t])
            if bounded.any():
                limits, predicted = bounds[bounded, t], predictions[bounded, where][:, 0]
                respected = float(((limits[:, 0] <= predicted) & (predicted <= limits[:, 1])).mean())
                result["targets"][task.name] |= {"bounds": len(limits), "bounds_respected": respected}
        return {**result, "molecules": labelled}
    unit = f"{dataset.level}s"
    targets = {
        name: {unit if key == "molecules" else key: value for key, value in target_scores.items()}
        for name, target_scores in result["targets"].items()
    }
    return {**result, unit: labelled, "molecules": len(rows), "targets": targets}


def prediction_count(result: dict) -> tuple[int, str]:
    """Return the number of predictions behind some scores, and their unit: atoms, bonds or molecules."""
    return next((result[unit], unit) for unit in ("atoms", "bonds", "molecules") if unit in result)


def mean_of_defined(values: Iterable[float]) -> float:
    """Return the mean of the values that are not nan; nan if there are none."""
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")


def _ogb_mae(dataset: str, y_true: np.ndarray, y_pred: np.ndarray) -> float:
    """MAE in eV by the evaluator of OGB-LSC."""
    lsc = import_ogb_lsc()
    evaluator = lsc.PCQM4MEvaluator() if dataset == "pcqm4m" else lsc.PCQM4Mv2Evaluator()
    known = ~np.isnan(y_true)
    return evaluator.eval({"y_true": y_true[known], "y_pred": y_pred[known].astype(y_true.dtype)})["mae"]


def _score_target(name: str, task: Task, y_true: np.ndarray, predictions: np.ndarray) -> float:
    """Compute one metric of one target: labels ``float [R]``, predictions ``float [R, W]``; nan if undefined."""
    known = ~np.isnan(y_true) & np.isfinite(predictions).all(axis=1)
    y, predicted = y_true[known], predictions[known].astype(np.float64)
    if not len(y) or len(y) < (~np.isnan(y_true)).sum():  # predictions that are not finite make a metric undefined
        return float("nan")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # undefined metrics are returned as nan
        try:
            if task.kind == REGRESSION:
                return float(_REGRESSION_METRICS[name](y, predicted[:, 0]))
            p = np.stack([1 - predicted[:, 0], predicted[:, 0]], axis=1) if task.kind == BINARY else predicted
            return float(_CLASSIFICATION_METRICS[name](y.astype(int), p))
        except ValueError:  # raised by scikit-learn for the AUROC of a missing class
            return float("nan")


# --- regression: labels float64 [R], predictions float64 [R] --------------------------------------


def _r2(y: np.ndarray, y_pred: np.ndarray) -> float:
    # Constant labels are detected by their range: rounding of the mean may leave a non-zero sum of squares.
    return 1 - ((y_pred - y) ** 2).sum() / ((y - y.mean()) ** 2).sum() if np.ptp(y) > 0 else np.nan


def _correlation(kind: str) -> Callable[[np.ndarray, np.ndarray], float]:
    def correlation(y: np.ndarray, y_pred: np.ndarray) -> float:
        from scipy import stats

        if len(y) < 2 or np.ptp(y) == 0:
            return np.nan
        return getattr(stats, f"{kind}r")(y, y_pred).statistic if np.ptp(y_pred) > 0 else 0.0

    return correlation


def _spread(y: np.ndarray) -> float:
    """Return the standard deviation of the known labels; 1 if they do not vary."""
    known = y[~np.isnan(y)]
    return known.std() if len(known) and np.ptp(known) > 0 else 1.0


# --- classification: labels int [R], probabilities float64 [R, K] ---------------------------------


def _sklearn(name: str, **settings) -> Callable[[np.ndarray, np.ndarray], float]:
    def compare(y: np.ndarray, p: np.ndarray) -> float:
        from sklearn import metrics

        if name != "accuracy_score" and len(np.unique(y)) < 2:
            return np.nan  # not meaningful for labels of a single class
        predicted = (p[:, 1] >= 0.5).astype(int) if p.shape[1] == 2 else p.argmax(axis=1)
        return getattr(metrics, name)(y, predicted, **settings)

    return compare


def _auroc(y: np.ndarray, p: np.ndarray) -> float:
    """AUROC; for several classes the one-vs-rest mean over the classes that occur."""
    from sklearn.metrics import roc_auc_score

    classes = range(1, 2) if p.shape[1] == 2 else range(p.shape[1])
    present = [k for k in classes if 0 < (y == k).sum() < len(y)]
    return float(np.mean([roc_auc_score(y == k, p[:, k]) for k in present])) if present else float("nan")


def _auprc(y: np.ndarray, p: np.ndarray) -> float:
    from sklearn.metrics import average_precision_score

    return average_precision_score(y, p[:, 1]) if 0 < y.sum() < len(y) else np.nan


def _f1(y: np.ndarray, p: np.ndarray) -> float:
    """F1 of the second class; for several classes the macro average."""
    settings = {"average": "binary" if p.shape[1] == 2 else "macro", "zero_division": 0.0}
    return _sklearn("f1_score", **settings)(y, p)


#: Bins of the calibration error and of reliability diagrams (Guo et al. 2017).
CALIBRATION_BINS = 15


def calibration_bins(p: np.ndarray) -> np.ndarray:
    """Return the bin of each probability ``[R]``, of equal width; the last one includes 1."""
    return np.minimum((p * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)


def _calibration_error(y: np.ndarray, p: np.ndarray) -> float:
    """Expected calibration error (Guo et al. 2017); for binary targets, of the second class."""
    several = p.shape[1] > 2
    predicted, correct = (p.max(axis=1), p.argmax(axis=1) == y) if several else (p[:, 1], y == 1)
    differences = np.bincount(calibration_bins(predicted), correct - predicted.astype(np.float64))
    return np.abs(differences).sum() / len(y)


def _log_loss(y: np.ndarray, p: np.ndarray) -> float:
    return -np.log(np.clip(p[np.arange(len(y)), y], _MIN_PROBABILITY, 1)).mean()


_REGRESSION_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "mae": lambda y, y_pred: np.abs(y_pred - y).mean(),
    "rmse": lambda y, y_pred: np.sqrt(((y_pred - y) ** 2).mean()),
    "median_error": lambda y, y_pred: np.median(np.abs(y_pred - y)),
    "median_factor": lambda y, y_pred: np.exp(np.median(np.abs(np.log(y_pred) - np.log(y)))),
    "r2": _r2,
    "spearman": _correlation("spearman"),
    "pearson": _correlation("pearson"),
    "loss": lambda y, y_pred: np.abs(y_pred - y).mean() / _spread(y),
}
_CLASSIFICATION_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "auroc": _auroc,
    "auprc": _auprc,
    "accuracy": _sklearn("accuracy_score"),
    "balanced_accuracy": _sklearn("balanced_accuracy_score"),
    "f1": _f1,
    "mcc": _sklearn("matthews_corrcoef"),
    "calibration_error": _calibration_error,
    "log_loss": _log_loss,
    "loss": _log_loss,
}


#: Fewest seeds for which an interval is reported: that of two seeds is six times as wide as that of many.
MIN_SEEDS = 3
# Confidence level of the interval.
_LEVEL = 0.95


def mean_interval(values: np.ndarray, folds: int = 0, comparisons: int = 1) -> tuple[float, float]:
    """Return the 95% confidence interval of a mean by Student's t, ``comparisons`` of them simultaneously (Bonferroni).
    Overlap of the training sets of ``folds`` adds variance (Nadeau and Bengio 2003, doi:10.1023/A:1024068626366)."""
    from scipy.stats import t  # the import takes half a second

    factor = 1 / len(values) + (1 / (folds - 1) if folds else 0)  # 1 / (folds - 1): size of test over training set
    half_width = t.ppf(1 - (1 - _LEVEL) / comparisons / 2, len(values) - 1) * values.std(ddof=1) * np.sqrt(factor)
    return float(values.mean() - half_width), float(values.mean() + half_width)


# --- prediction intervals and sets ----------------------------------------------------------------

#: Nominal coverage of the intervals that are evaluated, in percent.
COVERAGE_LEVEL = 90


def coverage(
    interval: PredictionInterval, labels: np.ndarray, molecules: np.ndarray, tasks: Sequence[Task]
) -> dict[str, dict[str, float]]:
    """Compute coverage and mean width, or size of sets, by target; nan without labels ``float64 [R, T]``. On a
    logarithmic scale ``factor`` is the geometric mean of upper over lower bound. Atoms and bonds are averaged within
    ``molecules int64 [R]`` first, which is the coverage that the intervals guarantee."""
    results = {}
    prediction_sets = iter(interval.sets.values())
    for t, task in enumerate(tasks):
        y = labels[:, t]
        known = np.isfinite(y)
        groups = molecules[known]
        if task.classes:
            sets = next(prediction_sets)
            inside = sets[known, y[known].astype(int)]
            sizes = sets[known].sum(axis=1)
            results[task.name] = {"coverage": _mean(inside, groups), "classes": _mean(sizes, groups)}
        else:
            low, high = interval.low[:, t], interval.high[:, t]
            inside = (low[known] <= y[known]) & (y[known] <= high[known])
            results[task.name] = {"coverage": _mean(inside, groups), "width": _mean(high[known] - low[known], groups)}
            if task.transform == "log":
                with np.errstate(divide="ignore", invalid="ignore"):  # infinite intervals begin at 0
                    logs = np.log(high[known]) - np.log(low[known])
                results[task.name]["factor"] = float(np.exp(_mean(logs, groups)))
    return results


def add_coverage(result: dict, coverages: dict[str, dict[str, float]], calibration: Calibration) -> None:
    """Add finite ``coverage_90``, ``width_90``, ``classes_90``, and the number of molecules that the intervals were
    calibrated on; the first is None if infinite intervals cover all."""
    for (name, values), calibrated in zip(coverages.items(), calibration.targets, strict=True):
        finite: dict[str, float | None] = {key: value for key, value in values.items() if np.isfinite(value)}
        if np.isinf(values.get("width", 0.0)):
            finite["coverage"] = None
        finite = {f"{key}_{COVERAGE_LEVEL}": value for key, value in finite.items()}
        result["targets"][name] |= finite | {"calibration_molecules": calibrated.molecules}


def _mean(values: np.ndarray, molecules: np.ndarray) -> float:
    """Mean over molecules of the mean within each; nan without values."""
    return float(mean_per_molecule(values, molecules).mean()) if len(values) else float("nan")
