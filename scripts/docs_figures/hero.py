"""Picture at the top of the README: predictions with intervals, an explanation, and ranks."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import graphslice as gs
from docs_figures.benchmarks import draw_ranks
from docs_figures.themes import to_svg
from graphslice.evaluation.plots import COLOURS

#: Test predictions of a default run on TDC's Caco-2 table with 90% intervals.
PREDICTIONS = Path(__file__).parents[2] / "docs" / "results" / "caco2-test.csv"
COLUMNS = ["y", "pred", "low", "high"]
EXPLAINED, TARGET = "CC(=O)Nc1ccc(O)cc1", "gap"
_HEIGHT, _GAP, _TITLE = 270, 22, 26
_WIDTHS = (370, 300, 450)
# A light card behind the molecule, whose colours are the same in both themes.
_CARD = "#FFFFFF"


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
    axes.annotate(label, (0.03, 0.95), xycoords="axes fraction", color=COLOURS["soft"], fontsize=9)
    axes.set(xlabel="measured log permeability (Caco-2)", ylabel="predicted, test set")


def molecule() -> str:
    """Return the explanation of paracetamol by the packaged model ``gap``, as SVG.

    Its colours are in upper case, which have no dark variant.
    """
    picture = gs.load("gap", "cpu").draw(EXPLAINED, target=TARGET).svg
    return re.sub(r"#[0-9a-f]{6}\b", lambda match: match[0].upper(), picture[picture.index("<svg") :])


def hero() -> str:
    """Return the strip of three panels as SVG."""
    middle, right = (Figure(figsize=(width / 72, _HEIGHT / 72), layout="constrained") for width in _WIDTHS[1:])
    draw_intervals(middle.add_subplot())
    draw_ranks(right.add_subplot())
    right.axes[0].set_xlabel("mean rank on 21 tasks of TDC (1 is best)")
    panels = (molecule(), to_svg(middle, "intervals"), to_svg(right, "ranks-hero"))
    titles = ("Explanations by atom", "Calibrated intervals", "Level with the best published method")
    parts, left = [], 0.0
    for number, (panel, width, title) in enumerate(zip(panels, _WIDTHS, titles, strict=True)):
        if number == 0:
            box = f'x="{left}" y="{_TITLE}" width="{width}" height="{_HEIGHT}"'
            parts.append(f'<rect {box} rx="8" fill="{_CARD}"/>')
        parts.append(
            f'<text x="{left + width / 2}" y="16" text-anchor="middle" font-family="DejaVu Sans, Verdana, sans-serif" '
            f'font-size="14" font-weight="bold" fill="{COLOURS["ink"]}">{title}</text>'
        )
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
