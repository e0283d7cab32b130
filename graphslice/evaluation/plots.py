"""Figures of the package: common style, and panels that compare predictions with labels."""

from __future__ import annotations

from functools import partial
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from sklearn import metrics

from graphslice.evaluation.format_scores import number, plain
from graphslice.evaluation.metrics import METRICS, scores
from graphslice.tasks import BINARY, REGRESSION, Task

#: Colours of figures, and of light pages.
COLOURS = {"c1": "#0072b2", "c2": "#d55e00", "c3": "#00805c", "ink": "#1b1f24", "soft": "#59636e"}
COLOURS |= {"grid": "#e6e9ed"}
#: Width and height of a panel in inches.
PANEL, SQUARE = (420 / 72, 310 / 72), (420 / 72, 420 / 72)
# Maximum number of rows and columns of a confusion matrix, and of points of a curve.
_MAX_CLASSES, _MAX_POINTS = 10, 300
# More dots are drawn as an image, also in an SVG.
_MAX_VECTORS = 300

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


def new_figure(panels: int, size: tuple[float, float], columns: int = 4) -> tuple[Figure, list[Axes]]:
    """Make a figure of panels of a size in inches, at most ``columns`` of them side by side."""
    columns = min(columns, panels)
    lines = -(-panels // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * lines), layout="constrained")
    return figure, [figure.add_subplot(lines, columns, i + 1) for i in range(panels)]


def shortened(text: str, most: int = 40) -> str:
    """Shorten a text to at most ``most`` characters by replacing its middle with an ellipsis."""
    text, most = text.encode(errors="replace").decode(), max(most, 5)  # undecodable bytes of a file cannot be drawn
    return text if len(text) <= most else f"{text[: most // 2]}…{text[most // 2 + 1 - most :]}"


def score_caption(task: Task, y: np.ndarray, values: np.ndarray) -> str:
    """Format the number of labels and two scores of the predictions."""
    results = scores("", [task], y[:, None], values) if len(y) else {}
    numbers = ("median_error", "spearman") if task.transform == "log" else ("mae", "r2")
    names = {REGRESSION: numbers, BINARY: ("auroc", "auprc")}.get(task.kind, ("accuracy", "mcc"))
    known = (f"{METRICS[name].label} {number(results[name])}" for name in names if name in results)
    return ", ".join([f"n = {len(y):,}", *known])


def draw_dots(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str = "c1", large: bool = False) -> None:
    """Draw a dot for each pair of finite values."""
    size, alpha = (8, 1.0) if large else (5, 0.5)
    style: dict[str, Any] = {"markersize": size, "alpha": alpha, "color": COLOURS[colour], "markeredgewidth": 0}
    axes.plot(x, y, "o", rasterized=len(x) > _MAX_VECTORS, **style)


def draw_diagonal(axes: Axes) -> None:
    """Give both axes the same limits, and mark equality."""
    low, high = (choose(*axes.get_xlim(), *axes.get_ylim()) for choose in (min, max))
    axes.set(xlim=(low, high), ylim=(low, high), box_aspect=1)
    axes.plot([0, 1], [0, 1], "--", transform=axes.transAxes, color=COLOURS["soft"], linewidth=1)


def draw_predictions(axes: Axes, task: Task, y: np.ndarray, values: np.ndarray) -> None:
    """Compare predictions ``[R, W]`` with labels ``[R]`` by task: scatter plot, ROC curve or confusion matrix."""
    draw = draw_regression if task.kind == REGRESSION else draw_roc if task.kind == BINARY else draw_confusion
    draw(axes, task, y, values)


def draw_regression(axes: Axes, task: Task, y: np.ndarray, values: np.ndarray) -> None:
    """Draw predicted against true numbers."""
    if task.transform == "log":
        use_log_scale(axes, "x", y, values)
        use_log_scale(axes, "y", y, values)
    draw_dots(axes, y, values[:, 0])
    name = shortened(task.name)  # with its unit
    axes.set(xlabel=f"true {name}", ylabel=f"predicted {name}")
    draw_diagonal(axes)


def use_log_scale(axes: Axes, axis: str, *values: np.ndarray) -> None:
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


def draw_roc(axes: Axes, task: Task, y: np.ndarray, values: np.ndarray) -> None:
    """Draw the ROC curve, unless all labels are equal."""
    positives = int(y.sum())
    negatives, (no, yes) = len(y) - positives, (shortened(name, 15) for name in task.classes)
    if positives and negatives:
        false, true, _ = metrics.roc_curve(y, values[:, 0])
        points = np.unique(np.linspace(0, len(false) - 1, _MAX_POINTS).astype(int))
        axes.plot(false[points], true[points], linewidth=1.8, color=COLOURS["c1"])
    axes.set(xlabel=f"false positive rate ({negatives:,} of class {no})", xlim=(0, 1), ylim=(0, 1))
    axes.set_ylabel(f"true positive rate ({positives:,} of class {yes})")
    draw_diagonal(axes)


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


def draw_confusion(axes: Axes, task: Task, y: np.ndarray, values: np.ndarray) -> None:
    """Draw the confusion matrix."""
    names, counts = confusion_matrix(task, y, values)
    names = [shortened(name, 15) for name in names]
    display = metrics.ConfusionMatrixDisplay(counts, display_labels=names)
    turned = max(map(len, names)) * len(names) > 40
    axes.grid(False)
    display.plot(ax=axes, cmap="Blues", colorbar=False, values_format=",", xticks_rotation=35.0 * turned)
    axes.set(xlabel="predicted class", ylabel="true class")
