"""Diagram of a model: from SMILES to prediction and interval."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from docs_figures.themes import BOX
from graphslice.report.figures import COLOURS

WIDTH, HEIGHT = 11.2, 5.0  # inches, and units of the axes


def draw() -> Figure:
    """Draw the diagram."""
    figure = Figure(figsize=(WIDTH, HEIGHT))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")

    _box(axes, (0.1, 1.95, 1.5, 1.05), "SMILES", "parsed by RDKit")
    _box(axes, (2.0, 1.95, 1.9, 1.05), "molecular graph", "OGB's features,\ncanonical atom order")
    _arrow(axes, (1.6, 2.47), (2.0, 2.47))

    # The network: a frame with the embeddings, the weights P and the blocks.
    _frame(axes, (4.3, 1.72, 4.7, 3.18), "graph transformer, pretrained")
    _box(axes, (4.5, 3.35, 1.75, 1.05), "structure", "spatial encoding S,\nedge encoding E", "c3")
    _box(axes, (4.5, 1.95, 1.75, 1.05), "atoms", "embeddings X,\ngraph token", "c1")
    _box(axes, (6.6, 3.5, 2.2, 0.75), r"P = softmax(S + E)", "once for all layers", "c3")
    _box(axes, (6.6, 1.95, 2.2, 1.05), "N blocks", "mixer of P V: sort, maximum …\nfeed-forward network", "c1")
    _arrow(axes, (6.25, 3.87), (6.6, 3.87))
    _arrow(axes, (6.25, 2.47), (6.6, 2.47))
    _arrow(axes, (7.7, 3.5), (7.7, 3.0))
    _arrow(axes, (3.9, 2.7), (4.5, 3.7))
    _arrow(axes, (3.9, 2.47), (4.5, 2.47))

    # The base models.
    _box(axes, (4.5, 0.2, 1.75, 1.05), "features", "counts of fragments,\n262 descriptors", "c2")
    _box(axes, (6.6, 0.2, 2.2, 1.05), "base models", "random forest, boosting,\nkernel machine", "c2")
    _arrow(axes, (3.9, 2.3), (4.5, 0.85))
    _arrow(axes, (6.25, 0.72), (6.6, 0.72))

    _box(axes, (9.35, 1.95, 1.75, 1.05), "weighted average", "weights from\nheld-out folds")
    _arrow(axes, (8.8, 2.47), (9.35, 2.47))
    _arrow(axes, (8.8, 0.85), (9.6, 1.95))
    _box(axes, (9.35, 3.6, 1.75, 1.05), "calibration", "intervals, sets,\napplicability domain")
    _arrow(axes, (10.22, 3.0), (10.22, 3.6))
    return figure


def _box(axes: Axes, box: tuple[float, float, float, float], title: str, text: str, colour: str = "soft") -> None:
    x, y, width, height = box
    style = {"boxstyle": "round,pad=0,rounding_size=0.08", "linewidth": 1.3, "zorder": 2}
    axes.add_patch(FancyBboxPatch((x, y), width, height, facecolor=BOX, edgecolor=COLOURS[colour], **style))
    lines = text.count("\n") + 1
    middle, step = y + height / 2, 0.19
    top = middle + step * lines / 2
    axes.text(x + width / 2, top, title, ha="center", va="center", weight="bold", size=10.5, zorder=3)
    for i, line in enumerate(text.split("\n")):
        place = top - step * (i + 1) - 0.02
        axes.text(x + width / 2, place, line, ha="center", va="center", size=8.5, color=COLOURS["soft"], zorder=3)


def _frame(axes: Axes, box: tuple[float, float, float, float], title: str) -> None:
    x, y, width, height = box
    style = {"boxstyle": "round,pad=0,rounding_size=0.12", "linewidth": 1, "linestyle": (0, (4, 3))}
    axes.add_patch(FancyBboxPatch((x, y), width, height, facecolor="none", edgecolor=COLOURS["soft"], **style))
    axes.text(x + width / 2, y + height - 0.24, title, ha="center", va="center", size=9.5, color=COLOURS["soft"])


def _arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 11, "linewidth": 1.2, "shrinkA": 1, "shrinkB": 1}
    axes.add_patch(FancyArrowPatch(begin, end, color=COLOURS["soft"], zorder=1, **style))
