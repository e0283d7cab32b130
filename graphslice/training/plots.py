"""Plots of predictions against true values."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphslice.evaluation.metrics import METRICS, scores
from graphslice.tasks import BINARY, REGRESSION, Task, output_slices, predicted_classes

# Maximum number of panels; maximum characters of a line and of a target's name in a title.
_MAX_PANELS, _LINE, _NAME = 12, 34, 64


def plot_predicted_vs_true(path: Path, tasks: Sequence[Task], true: np.ndarray, predictions: np.ndarray) -> None:
    """Plot predicted against true values, one panel for each of the first twelve targets.

    Regression targets are shown as a scatter plot, binary ones as a ROC curve, multiclass ones as a confusion matrix,
    each with the number of labels and its scores.

    Args:
        path: path of the PNG file.
        tasks: T targets.
        true: ``float64 [R, T]``, labels or class indices; nan where missing.
        predictions: ``float32 [R, W]``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    slices = output_slices(tasks)
    shown = tasks[:_MAX_PANELS]
    columns = min(4, len(shown))
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(4 * columns, 4.2 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    for t, task in enumerate(shown):
        axes = figure.add_subplot(lines, columns, t + 1)
        known = ~np.isnan(true[:, t])
        y, predicted = true[known, t], predictions[known, slices[t]]
        axes.set_title(f"{_short(task.name)}\n{_metrics_label(task, y, predicted)}", fontsize=9)
        if not len(y):
            continue
        draw = _plot_regression if task.kind == REGRESSION else _plot_roc if task.kind == BINARY else _plot_confusion
        draw(axes, task, y, predicted)
    if (more := len(tasks) - len(shown)) > 0:
        figure.supxlabel(f"and {more:,} more targets: see metrics.json", fontsize=9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters that the font lacks
        figure.savefig(path, dpi=120)


def _short(name: str) -> str:
    """Wrap a name into at most two lines; the middle of a longer one is replaced by an ellipsis."""
    if len(name) > _NAME:
        name = name[: _NAME // 2] + "…" + name[-_NAME // 2 + 1 :]
    # A dollar sign would start a formula.
    return "\n".join(textwrap.wrap(name, _LINE)).replace("$", r"\$")


def _metrics_label(task: Task, y: np.ndarray, predicted: np.ndarray) -> str:
    """Return the number of labels and the main scores."""
    if not len(y):
        return "n = 0"
    values = scores("", [task], y[:, None], predicted)
    names = {REGRESSION: ("mae", "r2"), BINARY: ("auroc", "auprc")}.get(task.kind, ("accuracy", "mcc"))
    return ", ".join([f"n = {len(y):,}", *(f"{METRICS[name].label} {values[name]:.3g}" for name in names)])


def _plot_regression(axes, task: Task, y: np.ndarray, predicted: np.ndarray) -> None:
    predicted = predicted[:, 0]
    axes.scatter(y, predicted, s=6, alpha=0.5, linewidths=0)
    ends = [min(y.min(), predicted.min()), max(y.max(), predicted.max())]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    if task.transform == "log":
        axes.set(xscale="log", yscale="log")
    axes.set(xlabel="true", ylabel="predicted")


def _plot_roc(axes, task: Task, y: np.ndarray, predicted: np.ndarray) -> None:
    from sklearn.metrics import roc_curve

    positives, negatives = int(y.sum()), int((1 - y).sum())
    if positives and negatives:
        false, true, _ = roc_curve(y, predicted[:, 0])
        axes.plot(false, true, linewidth=1.4)
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    axes.set(
        xlabel=f"false positive rate ({negatives:,} of class {_short(task.classes[0])})",
        ylabel=f"true positive rate ({positives:,} of class {_short(task.classes[1])})",
    )


def _plot_confusion(axes, task: Task, y: np.ndarray, probabilities: np.ndarray) -> None:
    indices = {name: index for index, name in enumerate(task.classes)}
    counts = np.zeros((len(indices), len(indices)), dtype=int)
    for true, predicted in zip(y.astype(int), predicted_classes(probabilities, task), strict=True):
        if predicted is not None:
            counts[true, indices[predicted]] += 1
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true")
    if len(indices) > 12:
        return
    names = [textwrap.shorten(name, 12, placeholder="…").replace("$", r"\$") for name in task.classes]
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    for (true, predicted), count in np.ndenumerate(counts):
        colour = "white" if shares[true, predicted] > 0.6 else "black"
        axes.text(predicted, true, f"{count:,}", ha="center", va="center", fontsize=6, color=colour)
