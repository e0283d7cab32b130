"""Pictures of a run."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphslice.evaluation.metrics import METRICS, scores
from graphslice.tasks import BINARY, REGRESSION, Task, output_slices, predicted_classes

# Panels of a picture, and characters of a line and of a whole name in it.
_MOST, _LINE, _NAME = 12, 34, 64


def plot_predicted_vs_true(path: Path, tasks: Sequence[Task], true: np.ndarray, predictions: np.ndarray) -> None:
    """One panel a target, of the first twelve: of numbers predicted against true, of two classes the ROC curve, of
    several their confusion; each with the number of molecules and its scores.

    Args:
        path: of the PNG file.
        tasks: T targets.
        true: ``float64 [R, T]``, nan where unknown; places of classes.
        answers: ``float32 [R, W]``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    slices = output_slices(tasks)
    shown = tasks[:_MOST]
    columns = min(4, len(shown))
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(4 * columns, 4.2 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    for t, task in enumerate(shown):
        axes = figure.add_subplot(lines, columns, t + 1)
        known = ~np.isnan(true[:, t])
        y, given = true[known, t], predictions[known, slices[t]]
        axes.set_title(f"{_short(task.name)}\n{_metrics_label(task, y, given)}", fontsize=9)
        if not len(y):
            continue
        draw = _plot_regression if task.kind == REGRESSION else _plot_roc if task.kind == BINARY else _plot_confusion
        draw(axes, task, y, given)
    if (more := len(tasks) - len(shown)) > 0:
        figure.supxlabel(f"and {more:,} more targets: see metrics.json", fontsize=9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font lacks
        figure.savefig(path, dpi=120)


def _short(name: str) -> str:
    """A name in at most two lines, its middle left out where it is longer."""
    if len(name) > _NAME:
        name = name[: _NAME // 2] + "…" + name[-_NAME // 2 + 1 :]
    # A dollar would begin a formula.
    return "\n".join(textwrap.wrap(name, _LINE)).replace("$", r"\$")


def _metrics_label(task: Task, y: np.ndarray, given: np.ndarray) -> str:
    if not len(y):
        return "n = 0"
    found = scores("", [task], y[:, None], given)
    names = {REGRESSION: ("mae", "r2"), BINARY: ("auroc", "auprc")}.get(task.kind, ("accuracy", "mcc"))
    return ", ".join([f"n = {len(y):,}", *(f"{METRICS[name].label} {found[name]:.3g}" for name in names)])


def _plot_regression(axes, task: Task, y: np.ndarray, given: np.ndarray) -> None:
    given = given[:, 0]
    axes.scatter(y, given, s=6, alpha=0.5, linewidths=0)
    ends = [min(y.min(), given.min()), max(y.max(), given.max())]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    if task.transform == "log":
        axes.set(xscale="log", yscale="log")
    axes.set(xlabel="true", ylabel="predicted")


def _plot_roc(axes, task: Task, y: np.ndarray, given: np.ndarray) -> None:
    from sklearn.metrics import roc_curve

    positives, negatives = int(y.sum()), int((1 - y).sum())
    if positives and negatives:
        false, true, _ = roc_curve(y, given[:, 0])
        axes.plot(false, true, linewidth=1.4)
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    axes.set(
        xlabel=f"false positives, of {negatives:,} of class {_short(task.classes[0])}",
        ylabel=f"true positives, of {positives:,} of class {_short(task.classes[1])}",
    )


def _plot_confusion(axes, task: Task, y: np.ndarray, given: np.ndarray) -> None:
    places = {name: place for place, name in enumerate(task.classes)}
    counts = np.zeros((len(places), len(places)), dtype=int)
    for true, predicted in zip(y.astype(int), predicted_classes(given, task), strict=True):
        if predicted is not None:
            counts[true, places[predicted]] += 1
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true")
    if len(places) > 12:
        return
    names = [textwrap.shorten(name, 12, placeholder="…").replace("$", r"\$") for name in task.classes]
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    for (true, predicted), count in np.ndenumerate(counts):
        colour = "white" if shares[true, predicted] > 0.6 else "black"
        axes.text(predicted, true, f"{count:,}", ha="center", va="center", fontsize=6, color=colour)
