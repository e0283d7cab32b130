"""The figures of a report: each a plot and what stands below it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from graphslice.evaluation.metrics import METRICS, scores
from graphslice.report.page_elements import Figure
from graphslice.report.svg import Plot, Scale, number, plain, shortened
from graphslice.tasks import BINARY, REGRESSION, Task

# Dots of a plot: of more molecules a part is drawn, which looks the same.
_MAX_DOTS = 2_000
# Points of a curve, bins of a histogram and of a reliability curve, classes of a confusion matrix.
_MAX_POINTS, _BINS, _RELIABILITY_BINS, _MAX_CLASSES = 300, 30, 10, 10
#: Ends of the bins of similarity to the nearest training molecule; the last is of 1 alone.
SIMILARITY_EDGES = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# Bins of as many molecules each, in which the error is compared with the spread.
_STD_BINS = 5


def target_figures(task: Task, true: np.ndarray, given: np.ndarray, split: str) -> list[Figure]:
    """How the answers to one target compare with the truth: a figure of numbers, two of classes.

    Args:
        task: the target.
        true: ``float64 [R]``, nan where unknown.
        given: ``float32 [R, W]`` of this target alone.
        split: what the molecules are called.
    """
    known = ~np.isnan(true)
    y, given = true[known], given[known]
    if not len(y):
        return []
    if task.kind == REGRESSION:
        return [_predicted_against_true(task, y, given[:, 0], split)]
    compare = _roc(task, y, given[:, 0], split) if task.kind == BINARY else _confusion(task, y, given, split)
    return [compare, _reliability(task, y, given, split)]


def score_caption(task: Task, y: np.ndarray, given: np.ndarray) -> str:
    """How many molecules there are, and two scores of the answers."""
    found = scores("", [task], y[:, None], given)
    names = {REGRESSION: ("mae", "r2"), BINARY: ("auroc", "auprc")}.get(task.kind, ("accuracy", "mcc"))
    return ", ".join([f"n = {len(y):,}", *(f"{METRICS[name].label} {number(found[name])}" for name in names)])


def _predicted_against_true(task: Task, y: np.ndarray, given: np.ndarray, split: str) -> Figure:
    log, said = task.transform == "log", score_caption(task, y, given[:, None])
    x, other = Scale.around("true", y, given, log=log), Scale.around("predicted", y, given, log=log)
    plot = Plot(x, other, said, square=True)
    plot.line([x.low, x.high], [x.low, x.high], "rule")
    shown = _sample(len(y))
    plot.dots(y[shown], given[shown])
    part = f" {_MAX_DOTS:,} of them are drawn." if len(shown) < len(y) else ""
    unit = ", on logarithmic axes" if log else ""
    caption = f"Predicted against true {task.name} in the unit of the table{unit}; the line is where both agree.{part}"
    return Figure([plot.svg(f"{split}: predicted against true {task.name}, {said}")], caption, f"{_capital(split)}")


def _sample(count: int) -> np.ndarray:
    if count <= _MAX_DOTS:
        return np.arange(count)
    return np.random.default_rng(0).choice(count, _MAX_DOTS, replace=False)


def _roc(task: Task, y: np.ndarray, given: np.ndarray, split: str) -> Figure:
    from sklearn.metrics import roc_curve

    positives, said = int(y.sum()), score_caption(task, y, given[:, None])
    plot = Plot(Scale("false positive rate", 0, 1), Scale("true positive rate", 0, 1), said, square=True)
    plot.line([0, 1], [0, 1], "rule")
    none = ""
    if 0 < positives < len(y):
        false, true, _ = roc_curve(y, given)
        some = np.unique(np.linspace(0, len(false) - 1, _MAX_POINTS).astype(int))
        plot.line(false[some], true[some])
    else:
        none = " There is no curve, as all are of one class."
    caption = f"ROC curve of {task.name}: {positives:,} of class {task.classes[1]}, "
    caption += f"{len(y) - positives:,} of class {task.classes[0]}.{none}"
    return Figure([plot.svg(f"{split}: ROC curve of {task.name}, {said}")], caption, _capital(split))


def _reliability(task: Task, y: np.ndarray, given: np.ndarray, split: str) -> Figure:
    """How often what is given a probability is so; of several classes of the most probable one."""
    if task.kind == BINARY:
        p, right = given[:, 0].astype(np.float64), y == 1
        of, asked = f"class {task.classes[1]}", "probability given to it"
    else:
        p, right = given.max(axis=1).astype(np.float64), given.argmax(axis=1) == y
        of, asked = "the most probable class", "its probability"
    error = scores("", [task], y[:, None], given)["calibration_error"]
    said = f"n = {len(y):,}, calibration error {number(error)}"
    plot = Plot(Scale(asked, 0, 1), Scale("share that is so", 0, 1), said, square=True)
    edges = np.linspace(0, 1, _RELIABILITY_BINS + 1)
    place = np.minimum((p * _RELIABILITY_BINS).astype(int), _RELIABILITY_BINS - 1)
    counts = np.bincount(place, minlength=_RELIABILITY_BINS)
    for k, count in enumerate(counts.tolist()):
        plot.bar(edges[k], edges[k + 1], 0.25 * count / counts.max(), "faint")
    plot.line([0, 1], [0, 1], "rule")
    full = np.flatnonzero(counts)
    means = np.array([p[place == k].mean() for k in full])
    shares = np.array([right[place == k].mean() for k in full])
    plot.line(means, shares, "c2")
    plot.dots(means, shares, "c2 large")
    caption = f"Reliability of {of} of {task.name}, in tenths of the probability: on the line it is as often so as "
    caption += f"said. The bars show how many molecules each tenth has, at most {int(counts.max()):,}."
    return Figure([plot.svg(f"{split}: reliability of {task.name}, {said}")], caption, _capital(split))


def _confusion(task: Task, y: np.ndarray, given: np.ndarray, split: str) -> Figure:
    """Counts of true and predicted classes; of many classes the most frequent, and the others as one."""
    true, predicted = y.astype(int), given.argmax(axis=1)
    names = [*task.classes]
    if len(names) > _MAX_CLASSES:
        counts = np.bincount(true, minlength=len(names))
        frequent = np.sort(np.argsort(-counts, kind="stable")[: _MAX_CLASSES - 1])
        to = np.full(len(names), len(frequent))
        to[frequent] = np.arange(len(frequent))
        names = [*(task.classes[k] for k in frequent), f"{len(task.classes) - len(frequent)} others"]
        true, predicted = to[true], to[predicted]
    size = len(names)
    counts = np.zeros((size, size), int)
    np.add.at(counts, (true, predicted), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    said = score_caption(task, y, given)
    short = [shortened(name, 95) for name in names]
    ticks = [((k + 0.5) / size, name) for k, name in enumerate(short)]
    down = [(1 - at, name) for at, name in ticks]
    x, upright = Scale("predicted class", 0, 1, ticks=ticks), Scale("true class", 0, 1, ticks=down)
    plot = Plot(x, upright, said, square=True, matrix=True)
    for row, column in np.ndindex(size, size):
        plot.cell(column, row, size, size, float(shares[row, column]), f"{counts[row, column]:,}")
    words = "; ".join(f"{name}: {counts[k, k]:,} of {counts[k].sum():,} right" for k, name in enumerate(names))
    caption = (
        f"Confusion matrix of {task.name}: molecules by true and predicted class, coloured by their share of the row."
    )
    return Figure([plot.svg(f"{split}: confusion of {task.name}, {said}; {words}")], caption, _capital(split))


def histogram(task: Task, parts: dict[str, np.ndarray]) -> Figure:
    """The labels of a number in each split, as shares of it. ``parts``: known labels, ``float64``, by split."""
    every = np.concatenate(list(parts.values()))
    log = task.transform == "log"
    axis = Scale.around(task.name + (", logarithmic" if log else ""), every, log=log)
    bounds = (np.geomspace if log else np.linspace)(
        every.min(), every.max() if np.ptp(every) else every.max() + 1, _BINS + 1
    )
    shares = {split: np.histogram(labels, bounds)[0] / max(1, len(labels)) for split, labels in parts.items()}
    plot = Plot(axis, Scale.around("share of the split", *shares.values(), floor=True))
    lines = {"valid": ("c2 dashed", "dashed line"), "test": ("c3", "line")}
    said = []
    for split, heights in shares.items():
        style, drawn = lines.get(split, ("c1", "area"))
        plot.steps(bounds, heights, style, filled=split not in lines)
        median = plain(float(np.median(parts[split])))
        said.append(f"{split_name(split)} ({drawn}) n = {len(parts[split]):,}, median {median}")
    text = f"Labels of {task.name}: {'; '.join(said)}."
    return Figure([plot.svg(text)], text)


def learning_curves(
    points: Sequence[tuple[np.ndarray, np.ndarray]], label: str, best: Sequence[int | None], style: str
) -> Markup:
    """Values by epoch, a line a model, with the best epoch of each.

    Args:
        points: epochs and values of each model.
        label: of the values.
        best: epoch of each model, or None.
        style: of the lines.
    """
    epochs = Scale.around("epoch", *(x for x, _ in points))
    whole = [(value, f"{value:,.0f}") for value, _ in epochs.ticks if value == int(value)]
    epochs = Scale("epoch", epochs.low, epochs.high, ticks=whole)
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
    """How the scores of many targets are distributed. ``values``: finite ``float64 [T]``."""
    counts, edges = np.histogram(values, min(_BINS, max(5, int(np.sqrt(len(values)) * 2))))
    plot = Plot(Scale(label, edges[0], edges[-1]), Scale.around("targets", counts, floor=True), f"n = {len(values):,}")
    for k, count in enumerate(counts.tolist()):
        plot.bar(edges[k], edges[k + 1], count)
    middle = f"median {number(float(np.median(values)))}"
    return Figure(
        [plot.svg(f"{label} of {len(values)} targets, {middle}")], f"{_capital(label)} of the targets; {middle}."
    )


def error_by_similarity(similarity: np.ndarray, error: np.ndarray, label: str) -> Figure:
    """The mean error by the similarity of the nearest training molecule. Both ``float64 [R]``."""
    edges = np.array([*SIMILARITY_EDGES, 1.1])
    # A similarity of 1 within what float32 gives.
    place = np.digitize(np.where(similarity > 1 - 1e-6, 1.0, similarity), edges[1:])
    counts = np.bincount(place, minlength=len(edges) - 1)
    means = np.array([error[place == k].mean() if n else np.nan for k, n in enumerate(counts.tolist())])
    errors = np.array(
        [error[place == k].std(ddof=1) / np.sqrt(n) if n > 1 else 0 for k, n in enumerate(counts.tolist())]
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
    said = [f"{a} to {b}: {number(m)} (n = {n})" for a, b, m, n in zip(names, ends, means, counts, strict=False) if n]
    said += [f"1: {number(means[-1])} (n = {counts[-1]})"] if counts[-1] else []
    caption = "Mean error by similarity, with its standard error; above each bar the number of molecules."
    return Figure([plot.svg("mean error by similarity: " + "; ".join(said))], caption)


def error_by_std(std: np.ndarray, error: np.ndarray, label: str) -> Figure:
    """The error of each molecule against the deviation of the models. Both ``float64 [R]``."""
    from scipy.stats import spearmanr

    rank = float(spearmanr(std, error).statistic) if len(std) > 2 and np.ptp(std) and np.ptp(error) else np.nan
    said = f"n = {len(std):,}, Spearman {number(rank)}"
    plot = Plot(Scale.around("deviation of the models", std, floor=True), Scale.around(label, error, floor=True), said)
    shown = _sample(len(std))
    plot.dots(std[shown], error[shown])
    order = np.argsort(std, kind="stable")
    bins = [some for some in np.array_split(order, _STD_BINS) if len(some)]
    x, y = (np.array([values[some].mean() for some in bins]) for values in (std, error))
    plot.line(x, y, "c2")
    plot.dots(x, y, "c2 large")
    caption = (
        f"Error against the deviation of the models; the line has the means of {len(bins)} groups of molecules by it."
    )
    return Figure([plot.svg(f"error against deviation, {said}")], caption)


def split_name(split: str) -> str:
    """A split in words."""
    return "validation" if split == "valid" else split


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
