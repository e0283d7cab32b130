"""Figures of a report: a plot and its caption."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from graphslice.data.splits import random_subset
from graphslice.evaluation.metrics import METRICS, scores
from graphslice.report.page_elements import Figure
from graphslice.report.svg import Plot, Scale, number, plain, shortened
from graphslice.tasks import BINARY, REGRESSION, Task

# Maximum number of dots of a plot; of more molecules, a random sample is drawn, which looks the same.
_MAX_DOTS = 2_000
# Maximum points of a curve, bins of a histogram and of a reliability diagram, maximum classes of a confusion matrix.
_MAX_POINTS, _BINS, _RELIABILITY_BINS, _MAX_CLASSES = 300, 30, 10, 10
#: Bin edges of the similarity to the nearest training molecule; the last bin holds a similarity of exactly 1.
SIMILARITY_EDGES = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# Number of equally large groups of molecules in which the error is compared with the standard deviation.
_STD_BINS = 5


def target_figures(task: Task, true: np.ndarray, values: np.ndarray, split: str) -> list[Figure]:
    """Make figures that compare predictions with true values: one for regression, two for classification.

    Args:
        task: target.
        true: ``float64 [R]``, nan where unknown.
        values: ``float32 [R, W]``, predictions of this target.
        split: display name of the split.

    Returns:
        The figures; none if no label is known.
        split: what the molecules are called.
    """
    known = ~np.isnan(true)
    y, values = true[known], values[known]
    if not len(y):
        return []
    if task.kind == REGRESSION:
        return [_predicted_against_true(task, y, values[:, 0], split)]
    compare = _roc(task, y, values[:, 0], split) if task.kind == BINARY else _confusion(task, y, values, split)
    return [compare, _reliability(task, y, values, split)]


def score_caption(task: Task, y: np.ndarray, values: np.ndarray) -> str:
    """Format the number of molecules and two scores of the predictions."""
    results = scores("", [task], y[:, None], values)
    names = {REGRESSION: ("mae", "r2"), BINARY: ("auroc", "auprc")}.get(task.kind, ("accuracy", "mcc"))
    return ", ".join([f"n = {len(y):,}", *(f"{METRICS[name].label} {number(results[name])}" for name in names)])


def _predicted_against_true(task: Task, y: np.ndarray, predicted: np.ndarray, split: str) -> Figure:
    log, summary = task.transform == "log", score_caption(task, y, predicted[:, None])
    x_axis, y_axis = Scale.around("true", y, predicted, log=log), Scale.around("predicted", y, predicted, log=log)
    plot = Plot(x_axis, y_axis, summary, square=True)
    plot.line([x_axis.low, x_axis.high], [x_axis.low, x_axis.high], "rule")
    sample = random_subset(np.arange(len(y)), _MAX_DOTS)
    plot.dots(y[sample], predicted[sample])
    part = f" A random sample of {_MAX_DOTS:,} molecules is drawn." if len(sample) < len(y) else ""
    unit = ", on logarithmic axes" if log else ""
    caption = f"Predicted against true {task.name} in the unit of the dataset{unit}; the line marks equality.{part}"
    return Figure([plot.svg(f"{split}: predicted against true {task.name}, {summary}")], caption, f"{_capital(split)}")


def _roc(task: Task, y: np.ndarray, values: np.ndarray, split: str) -> Figure:
    from sklearn.metrics import roc_curve

    positives, summary = int(y.sum()), score_caption(task, y, values[:, None])
    plot = Plot(Scale("false positive rate", 0, 1), Scale("true positive rate", 0, 1), summary, square=True)
    plot.line([0, 1], [0, 1], "rule")
    note = ""
    if 0 < positives < len(y):
        false, true, _ = roc_curve(y, values)
        points = np.unique(np.linspace(0, len(false) - 1, _MAX_POINTS).astype(int))
        plot.line(false[points], true[points])
    else:
        note = " The ROC curve is undefined, as all molecules are of one class."
    caption = f"ROC curve of {task.name}: {positives:,} of class {task.classes[1]}, "
    caption += f"{len(y) - positives:,} of class {task.classes[0]}.{note}"
    return Figure([plot.svg(f"{split}: ROC curve of {task.name}, {summary}")], caption, _capital(split))


def _reliability(task: Task, y: np.ndarray, values: np.ndarray, split: str) -> Figure:
    """Draw the reliability diagram: observed frequency by predicted probability (of several classes, the top one)."""
    if task.kind == BINARY:
        p, correct = values[:, 0].astype(np.float64), y == 1
        of, axis = f"class {task.classes[1]}", f"predicted probability of {task.classes[1]}"
    else:
        p, correct = values.max(axis=1).astype(np.float64), values.argmax(axis=1) == y
        of, axis = "the most probable class", "predicted probability"
    error = scores("", [task], y[:, None], values)["calibration_error"]
    summary = f"n = {len(y):,}, calibration error {number(error)}"
    plot = Plot(Scale(axis, 0, 1), Scale("observed frequency", 0, 1), summary, square=True)
    edges = np.linspace(0, 1, _RELIABILITY_BINS + 1)
    bin_of = np.minimum((p * _RELIABILITY_BINS).astype(int), _RELIABILITY_BINS - 1)
    counts = np.bincount(bin_of, minlength=_RELIABILITY_BINS)
    for k, count in enumerate(counts.tolist()):
        plot.bar(edges[k], edges[k + 1], 0.25 * count / counts.max(), "faint")
    plot.line([0, 1], [0, 1], "rule")
    occupied = np.flatnonzero(counts)
    means = np.array([p[bin_of == k].mean() for k in occupied])
    shares = np.array([correct[bin_of == k].mean() for k in occupied])
    plot.line(means, shares, "c2")
    plot.dots(means, shares, "c2 large")
    caption = f"Reliability diagram for {of} of {task.name}, in ten bins of the predicted probability; the line marks "
    caption += f"perfect calibration. Bars show the number of molecules per bin, at most {int(counts.max()):,}."
    return Figure([plot.svg(f"{split}: reliability of {task.name}, {summary}")], caption, _capital(split))


def _confusion(task: Task, y: np.ndarray, values: np.ndarray, split: str) -> Figure:
    """Draw the confusion matrix; beyond a maximum number of classes, the rarer ones are merged into one."""
    true, predicted = y.astype(int), values.argmax(axis=1)
    names = [*task.classes]
    if len(names) > _MAX_CLASSES:
        counts = np.bincount(true, minlength=len(names))
        frequent = np.sort(np.argsort(-counts, kind="stable")[: _MAX_CLASSES - 1])
        group_of = np.full(len(names), len(frequent))
        group_of[frequent] = np.arange(len(frequent))
        names = [*(task.classes[k] for k in frequent), f"{len(task.classes) - len(frequent)} others"]
        true, predicted = group_of[true], group_of[predicted]
    size = len(names)
    counts = np.zeros((size, size), int)
    np.add.at(counts, (true, predicted), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    summary = score_caption(task, y, values)
    short = [shortened(name, 95) for name in names]
    ticks = [((k + 0.5) / size, name) for k, name in enumerate(short)]
    y_ticks = [(1 - at, name) for at, name in ticks]
    x_axis, y_axis = Scale("predicted class", 0, 1, ticks=ticks), Scale("true class", 0, 1, ticks=y_ticks)
    plot = Plot(x_axis, y_axis, summary, square=True, matrix=True)
    for row, column in np.ndindex(size, size):
        plot.cell(column, row, size, size, float(shares[row, column]), f"{counts[row, column]:,}")
    correct = "; ".join(f"{name}: {counts[k, k]:,} of {counts[k].sum():,} correct" for k, name in enumerate(names))
    caption = (
        f"Confusion matrix of {task.name}: molecules by true and predicted class, coloured by their share of the row."
    )
    return Figure([plot.svg(f"{split}: confusion of {task.name}, {summary}; {correct}")], caption, _capital(split))


def histogram(task: Task, labels_by_split: dict[str, np.ndarray]) -> Figure:
    """Draw the label distribution of a regression target; ``labels_by_split``: known labels (``float64``) by split."""
    pooled = np.concatenate(list(labels_by_split.values()))
    log = task.transform == "log"
    axis = Scale.around(task.name + (", logarithmic" if log else ""), pooled, log=log)
    bounds = (np.geomspace if log else np.linspace)(
        pooled.min(), pooled.max() if np.ptp(pooled) else pooled.max() + 1, _BINS + 1
    )
    shares = {split: np.histogram(labels, bounds)[0] / max(1, len(labels)) for split, labels in labels_by_split.items()}
    plot = Plot(axis, Scale.around("share of the split", *shares.values(), floor=True))
    lines = {"valid": ("c2 dashed", "dashed line"), "test": ("c3", "line")}
    summary = []
    for split, heights in shares.items():
        style, drawn = lines.get(split, ("c1", "area"))
        plot.steps(bounds, heights, style, filled=split not in lines)
        median = plain(float(np.median(labels_by_split[split])))
        summary.append(f"{split_name(split)} ({drawn}) n = {len(labels_by_split[split]):,}, median {median}")
    text = f"Labels of {task.name}: {'; '.join(summary)}."
    return Figure([plot.svg(text)], text)


def learning_curves(
    points: Sequence[tuple[np.ndarray, np.ndarray]], label: str, best: Sequence[int | None], style: str
) -> Markup:
    """Draw values by epoch, one line per model, and mark the best epoch of each.

    Args:
        points: epochs and values of each model.
        label: axis label of the values.
        best: best epoch of each model, or None.
        style: CSS class of the lines.
    """
    epochs = Scale.around("epoch", *(x for x, _ in points))
    integer_ticks = [(value, f"{value:,.0f}") for value, _ in epochs.ticks if value == int(value)]
    epochs = Scale("epoch", epochs.low, epochs.high, ticks=integer_ticks)
    plot = Plot(epochs, Scale.around(label, *(y for _, y in points)))
    for (x, y), chosen in zip(points, best, strict=True):
        plot.line(x, y, style)
        if len(x) <= 2:
            plot.dots(x, y, f"{style} large")
        if chosen is not None and chosen in x:
            plot.dots(x[x == chosen], y[x == chosen], "c2 large")
    ends = ", ".join(f"{number(float(y[-1]))} at epoch {int(x[-1])}" for x, y in points if len(x))
    return plot.svg(f"{label} by epoch; at the end {ends}")


def score_histogram(values: np.ndarray, label: str) -> Figure:
    """Draw the distribution of the scores of many targets. ``values``: finite ``float64 [T]``."""
    counts, edges = np.histogram(values, min(_BINS, max(5, int(np.sqrt(len(values)) * 2))))
    plot = Plot(Scale(label, edges[0], edges[-1]), Scale.around("targets", counts, floor=True), f"n = {len(values):,}")
    for k, count in enumerate(counts.tolist()):
        plot.bar(edges[k], edges[k + 1], count)
    middle = f"median {number(float(np.median(values)))}"
    return Figure(
        [plot.svg(f"{label} of {len(values)} targets, {middle}")], f"{_capital(label)} of the targets; {middle}."
    )


def error_by_similarity(similarity: np.ndarray, error: np.ndarray, label: str) -> Figure:
    """Draw the mean error by similarity to the nearest training molecule. Both ``float64 [R]``."""
    edges = np.array([*SIMILARITY_EDGES, 1.1])
    # float32 similarities of identical fingerprints may be slightly below 1.
    bin_of = np.digitize(np.where(similarity > 1 - 1e-6, 1.0, similarity), edges[1:])
    counts = np.bincount(bin_of, minlength=len(edges) - 1)
    means = np.array([error[bin_of == k].mean() if n else np.nan for k, n in enumerate(counts.tolist())])
    errors = np.array(
        [error[bin_of == k].std(ddof=1) / np.sqrt(n) if n > 1 else 0 for k, n in enumerate(counts.tolist())]
    )
    names = [f"{low:.1f}" for low in SIMILARITY_EDGES[:-1]]
    ticks = [(float(k), name) for k, name in enumerate(names)] + [(len(names) + 0.5, "= 1")]
    x = Scale("Tanimoto similarity of the nearest training molecule", 0, len(counts), ticks=ticks)
    tops = np.where(counts > 0, means + errors, np.nan)
    plot = Plot(x, Scale("mean " + label.removeprefix("mean "), 0, 1.12 * float(np.nanmax(tops)) or 1.0))
    for k, n in enumerate(counts.tolist()):
        if n:
            plot.bar(k, k + 1, means[k])
            plot.whisker(k + 0.5, means[k] - errors[k], means[k] + errors[k])
            plot.text(k + 0.5, means[k] + errors[k], f"{n:,}", "count", up=5)
    ends = [*names[1:], "below 1"]
    summary = [
        f"{a} to {b}: {number(m)} (n = {n})" for a, b, m, n in zip(names, ends, means, counts, strict=False) if n
    ]
    summary += [f"1: {number(means[-1])} (n = {counts[-1]})"] if counts[-1] else []
    caption = "Mean error by similarity, with its standard error; the numbers above the bars count the molecules."
    return Figure([plot.svg("mean error by similarity: " + "; ".join(summary))], caption)


def error_by_std(std: np.ndarray, error: np.ndarray, label: str) -> Figure:
    """Draw the error of each molecule against the standard deviation over the models. Both ``float64 [R]``."""
    from scipy.stats import spearmanr

    rank = float(spearmanr(std, error).statistic) if len(std) > 2 and np.ptp(std) and np.ptp(error) else np.nan
    summary = f"n = {len(std):,}, Spearman {number(rank)}"
    x_axis = Scale.around("standard deviation over the models", std, floor=True)
    plot = Plot(x_axis, Scale.around(label, error, floor=True), summary)
    sample = random_subset(np.arange(len(std)), _MAX_DOTS)
    plot.dots(std[sample], error[sample])
    order = np.argsort(std, kind="stable")
    bins = [group for group in np.array_split(order, _STD_BINS) if len(group)]
    x, y = (np.array([values[group].mean() for group in bins]) for values in (std, error))
    plot.line(x, y, "c2")
    plot.dots(x, y, "c2 large")
    caption = (
        f"Error against the standard deviation over the models; the line has means of {len(bins)} equally large groups."
    )
    return Figure([plot.svg(f"error against standard deviation, {summary}")], caption)


def split_name(split: str) -> str:
    """Return the display name of a split."""
    return "validation" if split == "valid" else split


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
