"""Figures of a report: a plot as SVG, and its caption; elements of a page, which ``templates/report.html`` renders."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, cast

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from sklearn import metrics

from graphslice.data.splits import random_subset
from graphslice.evaluation.format_scores import number, plain, shortened
from graphslice.evaluation.metrics import CALIBRATION_BINS, METRICS, calibration_bins, scores
from graphslice.tasks import BINARY, REGRESSION, Task

#: Colours of figures, and of light pages.
COLOURS = {"c1": "#0072b2", "c2": "#d55e00", "c3": "#00805c", "ink": "#1b1f24", "soft": "#59636e"}
COLOURS |= {"grid": "#e6e9ed"}
#: Width and height of a panel in inches.
PANEL, SQUARE = (420 / 72, 310 / 72), (420 / 72, 420 / 72)

# Text stays text and is not parsed as formulas.
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "graphslice",
    "text.parse_math": False,
    **{f"axes.spines.{side}": False for side in ("top", "left", "right")},
    **{f"{axis}tick.{size}": 0 for axis in "xy" for size in ("major.size", "minor.size")},
    **{f"{axis}tick.major.pad": 6 for axis in "xy"},
    **{f"{axis}tick.color": COLOURS["soft"] for axis in "xy"},
    "font.size": 11,
    "axes.labelsize": 12,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "xtick.labelsize": 11,
    "axes.titlelocation": "left",
    "axes.titlecolor": COLOURS["ink"],
    "axes.labelcolor": COLOURS["ink"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["grid"],
    "axes.edgecolor": COLOURS["soft"],
    "axes.formatter.useoffset": False,
    "ytick.labelsize": 11,
    "path.simplify": False,
    "font.sans-serif": ["DejaVu Sans"],
}
#: Context manager and decorator: the style of reports.
report_style = partial(matplotlib.rc_context, _STYLE)

# Maximum number of dots of a plot; of more molecules, a random sample is drawn, which looks the same.
_MAX_DOTS = 2_000
# More dots are drawn as an image, also in an SVG.
_MAX_VECTORS = 300
# Maximum number of rows and columns of a confusion matrix, and of points of a curve.
_MAX_CLASSES, _MAX_POINTS = 10, 300
# Bin edges of the similarity to the nearest training molecule; the last bin holds a similarity of exactly 1.
_SIMILARITY_EDGES = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@report_style()
def target_figures(task: Task, true: np.ndarray, values: np.ndarray, split: str) -> list[Figure]:
    """Compare predictions of a target, ``float32 [R, W]``, with true values, ``float64 [R]``, nan where unknown: one
    figure for regression, two for classification, none if no true value is known."""
    known = ~np.isnan(true)
    y, values, figures = true[known], values[known], []
    draws = {REGRESSION: [_draw_numbers], BINARY: [_draw_roc, _draw_reliability]}
    for draw in draws.get(task.kind, [_draw_confusion, _draw_reliability]) if len(y) else ():
        axes = new_panel(SQUARE, title=_score_caption(task, y, values))
        caption = draw(axes, task, y, values)
        figures.append(Figure(to_svg(axes), caption, split.capitalize()))
    return figures


def new_panel(size: tuple[float, float] = PANEL, **settings) -> Axes:
    """Make a figure with one panel; ``settings``: properties of its axes."""
    axes = Canvas(figsize=size, layout="constrained").add_subplot()
    axes.set(**settings)
    return axes


def to_svg(axes: Axes) -> str:
    """Render the figure of a panel as SVG."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters that the font for measuring texts lacks
        cast(Canvas, axes.figure).savefig(buffer, format="svg", dpi=144, metadata={"Date": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :]


def _score_caption(task: Task, y: np.ndarray, values: np.ndarray) -> str:
    """Format the number of labels and two scores of the predictions."""
    results = scores("", [task], y[:, None], values)
    numbers = ("median_error", "spearman") if task.transform == "log" else ("mae", "r2")
    names = {REGRESSION: numbers, BINARY: ("auroc", "auprc")}.get(task.kind, ("accuracy", "mcc"))
    known = (f"{METRICS[name].label} {number(results[name])}" for name in names if name in results)
    return ", ".join([f"n = {len(y):,}", *known])


def _draw_dots(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str = "c1", large: bool = False) -> None:
    """Draw a dot for each pair of finite values."""
    size, alpha = (8, 1.0) if large else (5, 0.5)
    style: dict[str, Any] = {"markersize": size, "alpha": alpha, "color": COLOURS[colour], "markeredgewidth": 0}
    axes.plot(x, y, "o", rasterized=len(x) > _MAX_VECTORS, **style)


def _draw_diagonal(axes: Axes) -> None:
    """Give both axes the same limits, and mark equality."""
    low, high = (choose(*axes.get_xlim(), *axes.get_ylim()) for choose in (min, max))
    axes.set(xlim=(low, high), ylim=(low, high), box_aspect=1)
    axes.plot([0, 1], [0, 1], "--", transform=axes.transAxes, color=COLOURS["soft"], linewidth=1)


def _draw_numbers(axes: Axes, task: Task, y: np.ndarray, values: np.ndarray) -> str:
    """Draw predicted against true numbers; return the caption."""
    unit = ", on logarithmic axes" * (task.transform == "log")
    caption = f"Predicted against true {task.name} in the unit of the dataset{unit}; the line marks equality."
    if len(y) > _MAX_DOTS:
        sample = random_subset(np.arange(len(y)), _MAX_DOTS)
        caption += f" A random sample of {_MAX_DOTS:,} molecules is drawn."
        y, values = y[sample], values[sample]
    if task.transform == "log":
        _use_log_scale(axes, "x", y, values)
        _use_log_scale(axes, "y", y, values)
    _draw_dots(axes, y, values[:, 0])
    name = shortened(task.name)  # with its unit
    axes.set(xlabel=f"true {name}", ylabel=f"predicted {name}")
    _draw_diagonal(axes)
    return caption


def _use_log_scale(axes: Axes, axis: str, *values: np.ndarray) -> None:
    """Make an axis logarithmic, with ticks at powers of ten, and between them if the values have few decades."""
    pooled = np.concatenate([np.ravel(array) for array in values])
    pooled = pooled[np.isfinite(pooled) & (pooled > 0)]
    decades = np.log10(pooled.max() / pooled.min()) if len(pooled) else 1
    units = (1,) if decades > 3 else (1, 3) if decades > 1 else (1, 2, 3, 5, 7)
    axes.set(**{f"{axis}scale": "log"})
    which = getattr(axes, f"{axis}axis")
    which.set_major_locator(LogLocator(subs=units))
    which.set_minor_locator(NullLocator())
    which.set_major_formatter(lambda value, _: plain(value))


def _draw_roc(axes: Axes, task: Task, y: np.ndarray, values: np.ndarray) -> str:
    """Draw the ROC curve, unless all labels are equal; return the caption."""
    positives = int(y.sum())
    negatives, (no, yes) = len(y) - positives, (shortened(name, 15) for name in task.classes)
    if positives and negatives:
        false, true, _ = metrics.roc_curve(y, values[:, 0])
        points = np.unique(np.linspace(0, len(false) - 1, _MAX_POINTS).astype(int))
        axes.plot(false[points], true[points], linewidth=1.8, color=COLOURS["c1"])
    axes.set(xlabel=f"false positive rate ({negatives:,} of class {no})", xlim=(0, 1), ylim=(0, 1))
    axes.set_ylabel(f"true positive rate ({positives:,} of class {yes})")
    _draw_diagonal(axes)
    caption = f"ROC curve of {task.name}: {positives:,} of class {task.classes[1]}, "
    caption += f"{negatives:,} of class {task.classes[0]}."
    return caption if positives and negatives else f"{caption} It is undefined, as all molecules are of one class."


def confusion_matrix(task: Task, y: np.ndarray, values: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Count labels by true and predicted class, ``int64 [K, K]``, and name the classes; rare ones are merged."""
    true, predicted = y.astype(int), values.argmax(axis=1)
    names = [*task.classes]
    if len(names) > _MAX_CLASSES:
        counts = np.bincount(true, minlength=len(names))
        frequent = np.sort(np.argsort(-counts, kind="stable")[: _MAX_CLASSES - 1])
        group_of = np.full(len(names), len(frequent))
        group_of[frequent] = np.arange(len(frequent))
        names = [*(task.classes[k] for k in frequent), f"{len(task.classes) - len(frequent)} more"]
        true, predicted = group_of[true], group_of[predicted]
    return names, metrics.confusion_matrix(true, predicted, labels=range(len(names)))


def _draw_confusion(axes: Axes, task: Task, y: np.ndarray, values: np.ndarray) -> str:
    """Draw the confusion matrix; return the caption."""
    names, counts = confusion_matrix(task, y, values)
    names = [shortened(name, 15) for name in names]
    display = metrics.ConfusionMatrixDisplay(counts, display_labels=names)
    turned = max(map(len, names)) * len(names) > 40
    axes.grid(False)
    display.plot(ax=axes, cmap="Blues", colorbar=False, values_format=",", xticks_rotation=35.0 * turned)
    axes.set(xlabel="predicted class", ylabel="true class")
    return f"Confusion matrix of {task.name}: molecules by true and predicted class."


def _draw_reliability(axes: Axes, task: Task, y: np.ndarray, values: np.ndarray) -> str:
    """Draw the observed frequency by predicted probability, of several classes the top one; return the caption."""
    if task.kind == BINARY:
        p, correct = values[:, 0].astype(np.float64), y == 1
        of, axis = f"class {task.classes[1]}", f"predicted probability of {shortened(task.classes[1])}"
    else:
        p, correct = values.max(axis=1).astype(np.float64), values.argmax(axis=1) == y
        of, axis = "the most probable class", "predicted probability"
    error = scores("", [task], y[:, None], values)["calibration_error"]
    axes.set(title=f"n = {len(y):,}, calibration error {number(error)}")
    axes.set(xlabel=axis, ylabel="observed frequency", xlim=(0, 1), ylim=(0, 1))
    bin_of = calibration_bins(p)
    counts = np.bincount(bin_of, minlength=CALIBRATION_BINS)
    centres = (np.arange(CALIBRATION_BINS) + 0.5) / CALIBRATION_BINS
    axes.bar(centres, 0.25 * counts / counts.max(), 0.95 / CALIBRATION_BINS, color=COLOURS["soft"], alpha=0.22)
    _draw_diagonal(axes)
    means, shares = (
        np.bincount(bin_of, weights, CALIBRATION_BINS)[counts > 0] / counts[counts > 0] for weights in (p, correct)
    )
    _draw_line(axes, means, shares, "c2", dots=True)
    caption = f"Reliability diagram for {of} of {task.name}, in {CALIBRATION_BINS} bins of the predicted probability; "
    return f"{caption}the line marks perfect calibration. Bars show the molecules per bin, at most {counts.max():,}."


@report_style()
def learning_curves(points: Sequence[dict[int, float]], label: str, best: Sequence[int | None]) -> str:
    """Draw values by epoch, one line per model, and mark the best epoch of each, if known."""
    axes = new_panel(xlabel="epoch", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for values, chosen in zip(points, best, strict=True):
        _draw_line(axes, np.array(list(values)), np.array(list(values.values())), "c1", dots=len(values) <= 2)
        if chosen in values:
            _draw_dots(axes, np.array([chosen]), np.array([values[chosen]]), "c2", large=True)
    return to_svg(axes)


@report_style()
def error_by_similarity(similarity: np.ndarray, error: np.ndarray) -> Figure:
    """Draw the mean error by similarity to the nearest training molecule. Both ``float64 [R]``."""
    edges = np.array([*_SIMILARITY_EDGES, 1.1])
    # float32 similarities of identical fingerprints may be slightly below 1.
    bin_of = np.digitize(np.where(similarity > 1 - 1e-6, 1.0, similarity), edges[1:])
    bins = [error[bin_of == k] for k in range(len(_SIMILARITY_EDGES))]
    means = [found.mean() if len(found) else np.nan for found in bins]
    errors = [found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else 0 for found in bins]
    axes = new_panel(xlabel="Tanimoto similarity of the nearest training molecule", ylabel="mean error")
    bars = axes.bar(
        np.arange(len(bins)) + 0.5, means, 0.95, yerr=errors, color=COLOURS["c1"], alpha=0.75, ecolor=COLOURS["soft"]
    )
    axes.bar_label(bars, [f"{len(found):,}" if len(found) else "" for found in bins], padding=4, color=COLOURS["soft"])
    names = [f"{low:.1f}" for low in _SIMILARITY_EDGES[:-1]]
    axes.set_xticks([*range(len(names)), len(names) + 0.5], [*names, "= 1"])
    axes.margins(y=0.08)
    caption = "Mean error by similarity, with its standard error; the numbers above the bars count the molecules."
    return Figure(to_svg(axes), caption)


def _draw_line(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str, *, dots: bool = False) -> None:
    axes.plot(x, y, color=COLOURS[colour], linewidth=1.8)
    if dots:
        _draw_dots(axes, x, y, colour, large=True)


def image(svg: str, label: str, kind: str) -> Markup:
    """Return an image of the page; ``label``: its accessible name, ``kind``: its class."""
    data = base64.b64encode(svg.encode(errors="replace")).decode()
    return Markup('<img class="{}" alt="{}" src="data:image/svg+xml;base64,{}">').format(kind, label, data)


@dataclass(frozen=True)
class Text:
    """A paragraph; ``note``: set apart as a remark."""

    text: str
    note: bool = False


@dataclass(frozen=True)
class Figure:
    """A plot as SVG, with a title and a caption."""

    svg: str
    caption: str
    title: str = ""


@dataclass(frozen=True)
class Figures:
    """Figures, side by side if the page is wide enough."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Table:
    """A table."""

    caption: str  # with units
    head: Sequence[str]  # column titles; the first column names the rows
    rows: Sequence[Sequence[str]]
    folded: bool = False  # collapsed until the caption is clicked


@dataclass(frozen=True)
class Card:
    """A molecule with facts about it."""

    svg: str | None  # None if there is no drawing
    smiles: str
    title: str
    facts: Sequence[tuple[str, str]]  # name and value
    compared: Card | None = None  # another molecule, shown with this one


@dataclass(frozen=True)
class Cards:
    """Molecules, side by side."""

    cards: Sequence[Card]


@dataclass(frozen=True)
class Heading:
    """Title of a subsection."""

    text: str


#: Elements of a section; the template has a branch for the name of each.
Part: TypeAlias = Text | Figures | Table | Cards | Heading


@dataclass
class Section:
    """A section of the page, listed in the table of contents."""

    id: str
    title: str
    parts: list[Part] = field(default_factory=list)
