"""Picture at the top of the README, 748 pixels wide: an explanation, and predictions with intervals."""

import re
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import graphslice as gs
from docs_figures.themes import to_svg
from graphslice.explain.pictures import BLUE, RED
from graphslice.report.figures import COLOURS

#: Test predictions of a default run on TDC's Caco-2 table with 90% intervals.
PREDICTIONS = Path(__file__).parents[2] / "docs" / "results" / "caco2-test.csv"
COLUMNS = ["y", "pred", "low", "high"]
EXPLAINED, TARGET = "CC(=O)Nc1ccc(O)cc1", "gap"
_HEIGHT, _GAP, _TITLE = 300, 22, 26
_WIDTHS = (366, 360)
_FONT = f'text-anchor="middle" font-family="DejaVu Sans, Verdana, sans-serif" fill="{COLOURS["ink"]}"'


def test_predictions() -> np.ndarray:
    """Return ``float64 [R, 4]``: measured, predicted, lower and upper bound of each test molecule."""
    return pd.read_csv(PREDICTIONS)[COLUMNS].to_numpy()


def draw_intervals(axes: Axes) -> None:
    """Draw predictions with their intervals against measurements; those that miss are orange."""
    y, predicted, lower, upper = test_predictions().T
    inside = (lower <= y) & (y <= upper)
    low, high = min(y.min(), lower.min()), max(y.max(), upper.max())
    axes.plot((low, high), (low, high), color=COLOURS["soft"], linewidth=1, linestyle=":")
    for part, colour in ((inside, COLOURS["c1"]), (~inside, COLOURS["c2"])):
        errors = (predicted - lower)[part], (upper - predicted)[part]
        axes.errorbar(y[part], predicted[part], errors, fmt="none", ecolor=colour, alpha=0.22, linewidth=1)
        axes.plot(y[part], predicted[part], "o", color=colour, markersize=3.2)
    label = f"{inside.mean():.0%} of 90% intervals cover"
    axes.annotate(label, (0.03, 0.95), xycoords="axes fraction", color=COLOURS["soft"], fontsize=11)
    axes.set(xlabel="measured log permeability (Caco-2)", ylabel="predicted, test set")


def molecule() -> str:
    """Return the explanation of paracetamol by the packaged model ``gap``, as SVG without a background."""
    picture = gs.load("gap", "cpu").draw(EXPLAINED, target=TARGET).svg
    start = picture.index("<svg", 1)
    drawing, texts = picture[start : picture.index("</svg>")] + "</svg>", re.findall(r"<text[^>]*>([^<]*)", picture)
    drawing = re.sub(r"<rect[^>]*> *</rect>", "", drawing).replace("#000000", COLOURS["ink"])
    drawing = re.sub(r"fill:(#\w{6});fill-rule:evenodd;stroke:#\w{6}", _translucent, drawing)
    lines = (texts[1], "red raises the gap, blue lowers it")
    rows = [
        f'<text x="{_WIDTHS[0] / 2}" y="{_HEIGHT - 40 + 18 * i}" {_FONT} font-size="12">{line}</text>'
        for i, line in enumerate(lines)
    ]
    box = f"0 0 {_WIDTHS[0]} {_HEIGHT}"
    return f'<svg viewBox="{box}">{_nested(drawing, 0, 20, _WIDTHS[0], _HEIGHT - 100)}' + "".join(rows) + "</svg>"


def _translucent(match: re.Match) -> str:
    """Replace a colour mixed with white by the full one with an opacity, so that it is right on any background."""
    mixed = np.array([int(match[1][i : i + 2], 16) for i in (1, 3, 5)]) / 255
    full = RED if mixed[0] > mixed[2] else BLUE
    opacity = float((1 - mixed).sum() / (1 - full).sum())
    colour = "#" + "".join(f"{round(255 * part):02X}" for part in full)
    return f"fill:{colour};fill-opacity:{opacity:.2f};stroke:none"


def hero() -> str:
    """Return the strip of two panels as SVG."""
    with matplotlib.rc_context({"xtick.labelsize": 11, "ytick.labelsize": 11, "axes.labelsize": 12}):
        right = Figure(figsize=(_WIDTHS[1] / 72, _HEIGHT / 72), layout="constrained")
        draw_intervals(right.add_subplot())
        panels = (molecule(), to_svg(right, "intervals"))
    titles = ("Which atoms raise the value", "How far to trust a prediction")
    parts, left = [], 0.0
    for panel, width, title in zip(panels, _WIDTHS, titles, strict=True):
        parts.append(f'<text x="{left + width / 2}" y="16" {_FONT} font-size="14" font-weight="bold">{title}</text>')
        parts.append(_nested(panel, left, _TITLE, width, _HEIGHT))
        left += width + _GAP
    size = f"{left - _GAP:g} {_HEIGHT + _TITLE}"
    namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {namespaces} viewBox="0 0 {size}" role="img">\n' + "\n".join(parts) + "\n</svg>\n"


def _nested(svg: str, x: float, y: float, width: float, height: float) -> str:
    """Place an SVG into another one."""
    head, rest = svg[: svg.index(">")], svg[svg.index(">") + 1 :]
    box = re.search(r'viewBox="([^"]+)"', head)
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<svg {place} viewBox="{box[1] if box else f"0 0 {width} {height}"}">{rest}'
