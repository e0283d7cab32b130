"""How good answers are: the usual metrics of numbers and of classes; on PCQM4M-LSC by OGB's own evaluator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from graphslice.errors import InputError, nearest
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION, TASK_KINDS, Task, each_target

if TYPE_CHECKING:
    from graphslice.data.labelled_dataset import LabelledDataset

# Probabilities are kept so far from 0 and 1 where their logarithm is taken.
_MIN_PROBABILITY = 1e-7


@dataclass(frozen=True)
class Metric:
    """A number that says how good the answers to one target are.

    Attributes:
        label: how it is written on screen.
        kinds: of the targets that have it.
        higher: whether more is better.
    """

    label: str
    kinds: tuple[str, ...]
    higher_is_better: bool

    def loss(self, value: float) -> float:
        """The same value turned so that less is better."""
        return -value if self.higher_is_better else value


_CLASSES = (BINARY, MULTICLASS)
#: By name, as ``metrics.json`` has them; of a target the first of its kind chooses the best checkpoint.
METRICS = {
    "mae": Metric("MAE", (REGRESSION,), False),
    "rmse": Metric("RMSE", (REGRESSION,), False),
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
    # Of all kinds together: the mean absolute error over the deviation of the target, and the log loss.
    "loss": Metric("loss", TASK_KINDS, False),
}


def default_metric(tasks: Sequence[Task]) -> str:
    """What chooses the best checkpoint: MAE of numbers, AUROC of classes, the loss where there are both."""
    numbers = {task.kind == REGRESSION for task in tasks}
    return "loss" if len(numbers) == 2 else "mae" if True in numbers else "auroc"


def check_metric(name: str, tasks: Sequence[Task]) -> None:
    """Raise :class:`InputError` for a metric that does not exist, or that no target has."""
    if name not in METRICS:
        raise InputError(f"unknown metric {name!r}{nearest(name, METRICS)}: choose from {', '.join(METRICS)}")
    if not any(task.kind in METRICS[name].kinds for task in tasks):
        kinds = " and ".join(sorted({task.kind for task in tasks}))
        raise InputError(f"--metric {name} is one of {' and '.join(METRICS[name].kinds)}, and the targets are {kinds}")


def score(name: str, dataset: str, tasks: Sequence[Task], y_true: np.ndarray, predictions: np.ndarray) -> float:
    """One metric, the mean over the targets that have it; nan where none can be computed.

    Args:
        name: of :data:`METRICS`.
        dataset: name of the source; on ``pcqm4m`` and ``pcqm4mv2`` OGB's evaluator computes the MAE (in eV).
        tasks: of the T targets.
        y_true: ``float [R, T]``, in the unit of the targets, or the places of the classes; nan where unknown.
        answers: ``float [R, W]``: numbers in the same unit, and probabilities.
    """
    from graphslice.data.ogb_lsc import OGB_FOLDERS  # which loads torch

    if name == "mae" and dataset in OGB_FOLDERS:
        return _ogb_mae(dataset, y_true[:, 0], predictions[:, 0])
    found = []
    for t, task, where in each_target(tasks):
        if task.kind in METRICS[name].kinds:
            found.append(_score_target(name, task, y_true[:, t], predictions[:, where]))
    known = [value for value in found if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def scores(dataset: str, tasks: Sequence[Task], y_true: np.ndarray, predictions: np.ndarray) -> dict:
    """Every metric: the mean over the targets that have it, and of each target.

    Args:
        dataset, tasks, y_true, answers: as of :func:`score`.

    Returns:
        The means by name; ``molecules``, how many there are; ``targets``, by name what each has: ``molecules`` with a
        label, of classes ``counts``, how many of each, and its metrics. What is undefined is nan.
    """
    targets: dict[str, dict] = {}
    for t, task, where in each_target(tasks):
        labels = y_true[~np.isnan(y_true[:, t]), t]
        found: dict = {"kind": task.kind, "molecules": len(labels)}
        if task.classes:
            counts = np.bincount(labels.astype(int), minlength=len(task.classes)).tolist()
            found["counts"] = dict(zip(task.classes, counts, strict=True))
        names = [name for name, metric in METRICS.items() if task.kind in metric.kinds]
        found |= {name: _score_target(name, task, y_true[:, t], predictions[:, where]) for name in names}
        targets[task.name] = found
    kinds = {task.kind for task in tasks}
    names = [name for name, metric in METRICS.items() if kinds & set(metric.kinds)]
    means = {name: score(name, dataset, tasks, y_true, predictions) for name in names}
    return {**means, "molecules": len(y_true), "targets": targets}


def score_rows(dataset: LabelledDataset, rows: np.ndarray, predictions: np.ndarray) -> dict:
    """:func:`scores` of some rows of a source; ``predictions`` of atoms or bonds row by row.

    Then ``atoms``, or ``bonds``, says how many of these there are, and ``molecules`` still how many molecules.
    """
    found = scores(dataset.name, dataset.tasks, dataset.labels(rows), predictions)
    if dataset.level == "molecule":
        return found
    many = f"{dataset.level}s"
    targets = {
        name: {many if key == "molecules" else key: value for key, value in one.items()}
        for name, one in found["targets"].items()
    }
    return {**found, many: found["molecules"], "molecules": len(rows), "targets": targets}


def prediction_count(found: dict) -> tuple[int, str]:
    """How many answers some scores are of, and what these are of: atoms, bonds or molecules."""
    return next((found[many], many) for many in ("atoms", "bonds", "molecules") if many in found)


def _ogb_mae(dataset: str, y_true: np.ndarray, y_pred: np.ndarray) -> float:
    from graphslice.data.ogb_lsc import import_ogb_lsc

    lsc = import_ogb_lsc()
    evaluator = lsc.PCQM4MEvaluator() if dataset == "pcqm4m" else lsc.PCQM4Mv2Evaluator()
    known = ~np.isnan(y_true)
    return evaluator.eval({"y_true": y_true[known], "y_pred": y_pred[known].astype(y_true.dtype)})["mae"]


def _score_target(name: str, task: Task, y_true: np.ndarray, predictions: np.ndarray) -> float:
    """One metric of one target, ``float [R]`` against ``float [R, W]``; nan where it is undefined."""
    known = ~np.isnan(y_true) & np.isfinite(predictions).all(axis=1)
    y, given = y_true[known], predictions[known].astype(np.float64)
    if not len(y) or len(y) < (~np.isnan(y_true)).sum():  # an answer that is no number is no good one
        return float("nan")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of what is undefined, which nan says
        try:
            if task.kind == REGRESSION:
                return float(_REGRESSION_METRICS[name](y, given[:, 0]))
            p = np.stack([1 - given[:, 0], given[:, 0]], axis=1) if task.kind == BINARY else given
            return float(_CLASSIFICATION_METRICS[name](y.astype(int), p))
        except ValueError:  # scikit-learn, of an AUROC where a class is absent
            return float("nan")


# --- of numbers: float64 [R] against float64 [R] --------------------------------------------------


def _mae(y: np.ndarray, given: np.ndarray) -> float:
    return np.abs(given - y).mean()


def _rmse(y: np.ndarray, given: np.ndarray) -> float:
    return np.sqrt(((given - y) ** 2).mean())


def _r2(y: np.ndarray, given: np.ndarray) -> float:
    # Of equal numbers the mean may be off by a rounding, and the sum is not 0 then.
    return 1 - ((given - y) ** 2).sum() / ((y - y.mean()) ** 2).sum() if np.ptp(y) > 0 else np.nan


def _correlation(kind: str) -> Callable[[np.ndarray, np.ndarray], float]:
    def correlation(y: np.ndarray, given: np.ndarray) -> float:
        from scipy import stats

        return getattr(stats, f"{kind}r")(y, given).statistic if len(y) > 1 else np.nan

    return correlation


def _standardised_mae(y: np.ndarray, given: np.ndarray) -> float:
    return _mae(y, given) / (y.std() if np.ptp(y) > 0 else 1.0)


# --- of classes: int [R] against probabilities float64 [R, K] -------------------------------------


def _sklearn(name: str, **settings) -> Callable[[np.ndarray, np.ndarray], float]:
    """A metric of scikit-learn that compares classes."""

    def compare(y: np.ndarray, p: np.ndarray) -> float:
        from sklearn import metrics

        if name != "accuracy_score" and len(np.unique(y)) < 2:
            return np.nan  # of one class alone every answer looks right, or none
        places = (p[:, 1] >= 0.5).astype(int) if p.shape[1] == 2 else p.argmax(axis=1)
        return getattr(metrics, name)(y, places, **settings)

    return compare


def _auroc(y: np.ndarray, p: np.ndarray) -> float:
    """Of several classes the mean over those that are there, each against the rest."""
    from sklearn.metrics import roc_auc_score

    classes = range(1, 2) if p.shape[1] == 2 else range(p.shape[1])
    there = [k for k in classes if 0 < (y == k).sum() < len(y)]
    return float(np.mean([roc_auc_score(y == k, p[:, k]) for k in there])) if there else float("nan")


def _auprc(y: np.ndarray, p: np.ndarray) -> float:
    """Average precision."""
    from sklearn.metrics import average_precision_score

    return average_precision_score(y, p[:, 1]) if 0 < y.sum() < len(y) else np.nan


def _f1(y: np.ndarray, p: np.ndarray) -> float:
    """Of the positive class; of several classes the mean of all."""
    settings = {"average": "binary" if p.shape[1] == 2 else "macro", "zero_division": 0.0}
    return _sklearn("f1_score", **settings)(y, p)


def _calibration_error(y: np.ndarray, p: np.ndarray) -> float:
    """Expected calibration error in fifteen bins (Guo et al. 2017); of a binary target that of its probability."""
    import torch
    from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

    probabilities, classes = torch.from_numpy(p), torch.from_numpy(y)
    if p.shape[1] == 2:
        return float(binary_calibration_error(probabilities[:, 1], classes, n_bins=15))
    return float(multiclass_calibration_error(probabilities, classes, num_classes=p.shape[1], n_bins=15))


def _log_loss(y: np.ndarray, p: np.ndarray) -> float:
    return -np.log(np.clip(p[np.arange(len(y)), y], _MIN_PROBABILITY, 1)).mean()


_REGRESSION_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "mae": _mae,
    "rmse": _rmse,
    "r2": _r2,
    "spearman": _correlation("spearman"),
    "pearson": _correlation("pearson"),
    "loss": _standardised_mae,
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
