"""Figures of a report: a plot, as SVG for light and dark pages, and its caption."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from graphslice.data.splits import random_subset
from graphslice.evaluation.format_scores import number, plain
from graphslice.evaluation.metrics import CALIBRATION_BINS, calibration_bins, scores
from graphslice.evaluation.plots import (
    COLOURS,
    PANEL,
    SQUARE,
    confusion_matrix,
    draw_diagonal,
    draw_dots,
    draw_predictions,
    new_figure,
    report_style,
    score_caption,
    shortened,
    use_log_scale,
)
from graphslice.report.page_elements import Figure
from graphslice.tasks import BINARY, REGRESSION, Task

# Maximum number of dots of a plot; of more molecules, a random sample is drawn, which looks the same.
_MAX_DOTS = 2_000
# Bins of a histogram.
_BINS = 30
# Number of SVG paths over which dots are distributed: overlapping dots of different paths look darker.
_LAYERS = 6
#: Bin edges of the similarity to the nearest training molecule; the last bin holds a similarity of exactly 1.
SIMILARITY_EDGES = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# Number of equally large groups of molecules in which the error is compared with the standard deviation.
_STD_BINS = 5


def target_figures(task: Task, true: np.ndarray, values: np.ndarray, split: str) -> list[Figure]:
    """Compare predictions of a target with true values: one figure for regression, two for classification.

    Args:
        task: target.
        true: ``float64 [R]``, nan where unknown; if all are, there are no figures.
        values: ``float32 [R, W]``, predictions of this target.
        split: display name of the split.
    """
    known = ~np.isnan(true)
    y, values = true[known], values[known]
    if not len(y):
        return []
    compared = _compared(task, y, values, split)
    return [compared] if task.kind == REGRESSION else [compared, _reliability(task, y, values, split)]


def new_panel(size: tuple[float, float] = PANEL, **settings) -> Axes:
    """Make a figure with one panel; ``settings``: properties of its axes."""
    _, (axes,) = new_figure(1, size)
    axes.set(**settings)
    return axes


def to_svg(axes: Axes, title: str) -> Markup:
    """Render a plot as an SVG element in the colours of the page; ``title``: its accessible name."""
    figure, buffer = cast(Canvas, axes.figure), io.StringIO()
    width, height = 72 * figure.get_size_inches()
    for axis, length in ((axes.xaxis, width), (axes.yaxis, height)):
        axis.set_label_text(shortened(axis.get_label_text(), int(length / 7.5)))
    with rc_context({"svg.hashsalt": ascii(title)}), warnings.catch_warnings():  # every id of a page is unique
        warnings.simplefilter("ignore")  # about characters that the font for measuring texts lacks
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = re.sub(r'(?<=<g) id="[\w.]+"|<!--.*?-->|<style.*?</style>', "", svg[svg.index("<defs>") :], flags=re.DOTALL)
    svg = re.sub(r'(<use [^>]* style="([^"]*)"/>\s*){40,}', _merge_dots, svg).replace("xlink:href", "href")
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    svg = re.sub(r"(\d\.\d\d)\d+(?=[^<>]*>)", r"\1", re.sub(r"\s*\n\s*", " ", svg))  # two decimals in attributes
    return Markup(
        f'<svg class="plot" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">{svg}'
    )


def _merge_dots(uses: re.Match) -> str:
    """Write many equal dots as a few paths, a quarter of the size; overlapping dots of different paths look darker."""
    dots = [f"M{float(x):.1f} {float(y):.1f}h0" for x, y in re.findall(r'x="(.*?)" y="(.*?)"', uses[0])]
    style = uses[2].replace("fill", "stroke") + "; stroke-width: 5; stroke-linecap: round"
    return "".join(f'<path d="{"".join(dots[layer::_LAYERS])}" style="{style}"/>' for layer in range(_LAYERS))


@report_style()
def _compared(task: Task, y: np.ndarray, values: np.ndarray, split: str) -> Figure:
    """Compare predictions with labels: scatter plot, ROC curve or confusion matrix."""
    summary, note, details = score_caption(task, y, values), "", ""
    if task.kind == REGRESSION:
        title, unit = f"predicted against true {task.name}", ", on logarithmic axes" * (task.transform == "log")
        caption = f"Predicted against true {task.name} in the unit of the dataset{unit}; the line marks equality."
        if len(y) > _MAX_DOTS:
            sample = random_subset(np.arange(len(y)), _MAX_DOTS)
            note = f" A random sample of {_MAX_DOTS:,} molecules is drawn."
            y, values = y[sample], values[sample]
    elif task.kind == BINARY:
        title, positives = f"ROC curve of {task.name}", int(y.sum())
        caption = (
            f"{title}: {positives:,} of class {task.classes[1]}, {len(y) - positives:,} of class {task.classes[0]}."
        )
        if not 0 < positives < len(y):
            note = " The ROC curve is undefined, as all molecules are of one class."
    else:
        names, counts = confusion_matrix(task, y, values)
        own = enumerate(names if len(names) == len(task.classes) else names[:-1])  # the last may be several classes
        correct = "; ".join(f"{name}: {counts[k, k]:,} of {counts[k].sum():,} correct" for k, name in own)
        title, details = f"confusion of {task.name}", f"; {correct}"
        caption = f"Confusion matrix of {task.name}: molecules by true and predicted class, "
        caption += "coloured by their share of the row."
    axes = new_panel(SQUARE, title=summary)
    draw_predictions(axes, task, y, values)
    return Figure(to_svg(axes, f"{split}: {title}, {summary}{details}"), caption + note, _capital(split))


@report_style()
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
    axes = new_panel(SQUARE, title=summary, xlabel=axis, ylabel="observed frequency", xlim=(0, 1), ylim=(0, 1))
    bin_of = calibration_bins(p)
    counts = np.bincount(bin_of, minlength=CALIBRATION_BINS)
    centres = (np.arange(CALIBRATION_BINS) + 0.5) / CALIBRATION_BINS
    axes.bar(centres, 0.25 * counts / counts.max(), 0.95 / CALIBRATION_BINS, color=COLOURS["soft"], alpha=0.22)
    draw_diagonal(axes)
    occupied = np.flatnonzero(counts)
    means = np.array([p[bin_of == k].mean() for k in occupied])
    shares = np.array([correct[bin_of == k].mean() for k in occupied])
    _draw_line(axes, means, shares, "c2", dots=True)
    caption = f"Reliability diagram for {of} of {task.name}, in {CALIBRATION_BINS} bins of the predicted probability; "
    caption += (
        f"the line marks perfect calibration. Bars show the number of molecules per bin, at most {int(counts.max()):,}."
    )
    return Figure(to_svg(axes, f"{split}: reliability of {task.name}, {summary}"), caption, _capital(split))


@report_style()
def histogram(task: Task, labels_by_split: dict[str, np.ndarray]) -> Figure:
    """Draw the label distribution of a regression target; ``labels_by_split``: known labels (``float64``) by split."""
    pooled = np.concatenate(list(labels_by_split.values()))
    log = task.transform == "log"
    bounds = (np.geomspace if log else np.linspace)(
        pooled.min(), pooled.max() if np.ptp(pooled) else pooled.max() + 1, _BINS + 1
    )
    shares = {split: np.histogram(labels, bounds)[0] / max(1, len(labels)) for split, labels in labels_by_split.items()}
    axes = new_panel(xlabel=task.name + (", logarithmic" if log else ""), ylabel="share of the split")
    if log:
        use_log_scale(axes, "x", pooled)
    lines = {"valid": ("c2", "--", "dashed line"), "test": ("c3", "-", "line")}
    summary = []
    for split, heights in shares.items():
        colour, dashes, drawn = lines.get(split, ("c1", "-", "area"))
        shape: dict[str, Any] = (
            {"linewidth": 1.8, "linestyle": dashes} if split in lines else {"linewidth": 0, "alpha": 0.35}
        )
        axes.stairs(heights, bounds, fill=split not in lines, color=COLOURS[colour], **shape)
        median = plain(float(np.median(labels_by_split[split])))
        summary.append(f"{split_name(split)} ({drawn}) n = {len(labels_by_split[split]):,}, median {median}")
    text = f"Labels of {task.name}: {'; '.join(summary)}."
    return Figure(to_svg(axes, text), text)


@report_style()
def learning_curves(points: Sequence[tuple[np.ndarray, np.ndarray]], label: str, best: Sequence[int | None]) -> Markup:
    """Draw values by epoch, one line of epochs and values per model, and mark the best epoch of each, if known."""
    axes = new_panel(xlabel="epoch", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for (x, y), chosen in zip(points, best, strict=True):
        _draw_line(axes, x, y, "c1", dots=len(x) <= 2)
        if chosen is not None and chosen in x:
            draw_dots(axes, x[x == chosen], y[x == chosen], "c2", large=True)
    ends = ", ".join(f"{number(float(y[-1]))} at epoch {int(x[-1])}" for x, y in points if len(x))
    return to_svg(axes, f"{label} by epoch; at the end {ends}")


@report_style()
def score_histogram(values: np.ndarray, label: str) -> Figure:
    """Draw the distribution of the scores of many targets. ``values``: finite ``float64 [T]``."""
    counts, edges = np.histogram(values, min(_BINS, max(5, int(np.sqrt(len(values)) * 2))))
    axes = new_panel(xlabel=label, ylabel="targets", title=f"n = {len(values):,}")
    widths = np.diff(edges)
    axes.bar(edges[:-1] + widths / 2, counts, 0.95 * widths, color=COLOURS["c1"], alpha=0.75)
    middle = f"median {number(float(np.median(values)))}"
    return Figure(
        to_svg(axes, f"{label} of {len(values)} targets, {middle}"), f"{_capital(label)} of the targets; {middle}."
    )


@report_style()
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
    axes = new_panel(xlabel="Tanimoto similarity of the nearest training molecule")
    axes.set_ylabel("mean " + label.removeprefix("mean "))
    places = np.arange(len(counts)) + 0.5
    axes.bar(places, means, 0.95, yerr=errors, color=COLOURS["c1"], alpha=0.75, ecolor=COLOURS["soft"])
    for k in np.flatnonzero(counts):
        top = (places[k], means[k] + errors[k])
        text: dict[str, Any] = {"ha": "center", "size": 10, "color": COLOURS["soft"]}
        axes.annotate(f"{counts[k]:,}", top, (0, 4), textcoords="offset points", **text)
    axes.set_xticks([*range(len(names)), len(names) + 0.5], [*names, "= 1"])
    axes.margins(y=0.08)
    ends = [*names[1:], "below 1"]
    summary = [
        f"{a} to {b}: {number(m)} (n = {n})" for a, b, m, n in zip(names, ends, means, counts, strict=False) if n
    ]
    summary += [f"1: {number(means[-1])} (n = {counts[-1]})"] if counts[-1] else []
    caption = "Mean error by similarity, with its standard error; the numbers above the bars count the molecules."
    return Figure(to_svg(axes, "mean error by similarity: " + "; ".join(summary)), caption)


@report_style()
def error_by_std(std: np.ndarray, error: np.ndarray, label: str) -> Figure:
    """Draw the error of each molecule against the standard deviation over the models. Both ``float64 [R]``."""
    from scipy.stats import spearmanr

    rank = float(spearmanr(std, error).statistic) if len(std) > 2 and np.ptp(std) and np.ptp(error) else np.nan
    summary = f"n = {len(std):,}, Spearman {number(rank)}"
    axes = new_panel(xlabel="standard deviation over the models", ylabel=label, title=summary)
    sample = random_subset(np.arange(len(std)), _MAX_DOTS)
    draw_dots(axes, std[sample], error[sample])
    order = np.argsort(std, kind="stable")
    bins = [group for group in np.array_split(order, _STD_BINS) if len(group)]
    x, y = (np.array([values[group].mean() for group in bins]) for values in (std, error))
    _draw_line(axes, x, y, "c2", dots=True)
    axes.set(xlim=(0, None), ylim=(0, None))
    caption = (
        f"Error against the standard deviation over the models; the line has means of {len(bins)} equally large groups."
    )
    return Figure(to_svg(axes, f"error against standard deviation, {summary}"), caption)


def _draw_line(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str, *, dots: bool = False) -> None:
    """Draw a line, with a dot at each point if wanted."""
    axes.plot(x, y, color=COLOURS[colour], linewidth=1.8)
    if dots:
        draw_dots(axes, x, y, colour, large=True)


def split_name(split: str) -> str:
    """Return the display name of a split."""
    return "validation" if split == "valid" else split


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
