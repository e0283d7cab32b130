"""Common style of the figures of the package."""

from __future__ import annotations

from functools import partial
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
