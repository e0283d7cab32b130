"""Plots as SVG, with selectable text and the colours of the page (light or dark)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup, escape

#: Typographic minus sign, and the placeholder for a missing number.
MINUS, NONE = "\u2212", "\u2013"
# Width, height and mean letter width of a plot in pixels; the page shows it at about this size, or smaller on a phone.
_WIDTH, _HEIGHT, _LETTER = 420, 310, 6.3
# Number of SVG paths over which dots are distributed: overlapping dots of different paths look darker.
_LAYERS = 6


def number(value: float, digits: int = 3) -> str:
    """Format a score with ``digits`` significant digits, trailing zeros and a typographic minus sign."""
    return _format_like(f"{value:#.{digits}g}", value).rstrip(".")


def plain(value: float, digits: int = 4) -> str:
    """Format a number with at most ``digits`` significant digits, without trailing zeros."""
    return _format_like(f"{value:.{digits}g}", value)


def with_std(value: float, std: float) -> str:
    """Format a value and its standard std (two significant digits), both with the same number of decimals."""
    if not (math.isfinite(std) and std > 0 and 1e-4 < abs(value) < 1e6):
        return number(value)
    places = min(6, max(0, 1 - math.floor(math.log10(std))))
    return f"{value:,.{places}f} ± {std:,.{places}f}".replace("-", MINUS)


def _format_like(text: str, value: float) -> str:
    if not math.isfinite(value):
        return NONE
    if 1000 <= abs(value) < 1e6 or ("e" in text and 1 <= abs(value) < 1e6):
        text = f"{value:,.0f}"
    return text.replace("-", MINUS)


@dataclass
class Scale:
    """One axis of a plot.

    Attributes:
        label: quantity and unit.
        low, high: limits; positive if the axis is logarithmic.
        log: if True, the axis is logarithmic.
        ticks: positions and labels of the ticks; chosen automatically if empty.
    """

    label: str
    low: float
    high: float
    log: bool = False
    ticks: list[tuple[float, str]] = field(default_factory=list)

    @classmethod
    def around(cls, label: str, *values: np.ndarray | Sequence[float], log: bool = False, floor: bool = False) -> Scale:
        """Make an axis that contains all finite values; with ``floor``, a linear axis starts at 0."""
        data = np.concatenate([np.asarray(array, dtype=np.float64).ravel() for array in values] or [np.empty(0)])
        data = data[np.isfinite(data) & ((data > 0) | (not log))]
        low, high = (float(data.min()), float(data.max())) if len(data) else (1.0, 10.0) if log else (0.0, 1.0)
        if log:
            margin = max((high / low) ** 0.03, 1.02)
            return cls(label, low / margin, high * margin, True)
        low = 0.0 if floor else low
        margin = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
        return cls(label, low if floor else low - margin, high + margin)

    def __post_init__(self) -> None:
        if not self.ticks:
            self.ticks = _log_ticks(self.low, self.high) if self.log else _linear_ticks(self.low, self.high)

    def at(self, values: np.ndarray | float) -> np.ndarray:
        """Map values to positions along the axis: 0 at the low limit, 1 at the high limit."""
        with np.errstate(all="ignore"):
            if self.log:
                return np.log(np.asarray(values) / self.low) / math.log(self.high / self.low)
            return (np.asarray(values, dtype=np.float64) - self.low) / (self.high - self.low)


def _linear_ticks(low: float, high: float, about: int = 5) -> list[tuple[float, str]]:
    """Choose about ``about`` round tick values between two limits."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * power for unit in (1, 2, 2.5, 5, 10) if unit * power >= rough * 0.999)
    values = step * np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    largest = max(abs(low), abs(high))
    if largest >= 1e6 or largest < 1e-3:
        return [(value, plain(value)) for value in values.tolist()]
    places = max(0, -math.floor(math.log10(step) + 1e-9)) + (step / power == 2.5)
    return [(value, f"{value:,.{places}f}".replace("-", MINUS) if value else "0") for value in values.tolist()]


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Choose powers of ten between two limits, with intermediate values if there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, -(-(last - first) // 6))
    units = (1,) if last - first > 3 else (1, 3) if last - first > 1 else (1, 2, 3, 5, 7)
    values = [unit * 10.0**power for power in range(first, last + 1, every) for unit in units]
    return [(value, plain(value)) for value in values if low <= value <= high]


class Plot:
    """A plot; every drawing method draws on top of what was drawn before.

    Args:
        x, y: axes.
        summary: text above the plot: sample size and scores.
        square: if True, both axes have the same length.
        matrix: if True, the plot consists of cells and has no grid lines.
    """

    def __init__(self, x: Scale, y: Scale, summary: str = "", *, square: bool = False, matrix: bool = False) -> None:
        self.x, self.y, self.summary, self.matrix = x, y, summary, matrix
        widest = max((len(text) for _, text in y.ticks), default=1)
        self.left, self.top = 30 + _LETTER * widest, 24.0 if summary else 8.0
        # The last tick label, centred at its tick, must fit into the right margin.
        last = max(((at, _LETTER * len(text)) for at, text in x.ticks), default=(x.low, 0.0))
        free = _WIDTH - self.left
        self.width = free - max(14.0, (last[1] / 2 - (1 - float(x.at(last[0]))) * free) + 4)
        longest = _LETTER * max((len(text) for _, text in x.ticks), default=0)
        # Tick labels of a matrix that do not fit side by side are rotated.
        self.rotated = matrix and longest > self.width / max(1, len(x.ticks)) - 4
        self.bottom = 46 + (0.5 * longest if self.rotated else 0)
        self.height = _HEIGHT - self.top - self.bottom
        if square:
            self.height = self.width
        self._drawn: list[str] = []

    def dots(self, x: np.ndarray, y: np.ndarray, style: str = "c1") -> None:
        """Draw a dot for each pair of finite values."""
        px, py = self._pixels(x, y)
        for layer in range(min(_LAYERS, len(px))):
            pairs = zip(px[layer::_LAYERS].tolist(), py[layer::_LAYERS].tolist(), strict=True)
            self._draw("path", f"dots {style}", d="".join(f"M{a:.1f} {b:.1f}h0" for a, b in pairs))

    def line(self, x: np.ndarray | Sequence[float], y: np.ndarray | Sequence[float], style: str = "c1") -> None:
        """Draw a line through the pairs of finite values."""
        px, py = self._pixels(np.asarray(x), np.asarray(y))
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(px.tolist(), py.tolist(), strict=True))
        if points:
            self._draw("polyline", f"line {style}", points=points)

    def steps(self, edges: np.ndarray, heights: np.ndarray, style: str, *, filled: bool = False) -> None:
        """Draw a histogram with ``float [K + 1]`` edges and ``float [K]`` heights, as an outline or a filled area."""
        x, y = np.repeat(edges, 2), np.concatenate([[0.0], np.repeat(heights, 2), [0.0]])
        px, py = self._pixels(x, y)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(px.tolist(), py.tolist(), strict=True))
        self._draw("polygon" if filled else "polyline", f"{'area' if filled else 'line'} {style}", points=points)

    def bar(self, low: float, high: float, value: float, style: str = "c1", gap: float = 2.0) -> None:
        """Draw a bar from 0 to a value, between two positions of the x axis."""
        (a, b), (top, bottom) = self._pixels(np.array([low, high]), np.array([value, 0.0]))
        self._rect(a + gap / 2, top, b - a - gap, bottom - top, f"bar {style}")

    def whisker(self, x: float, low: float, high: float) -> None:
        """Draw a thin vertical line between two values, clipped to the plot."""
        (a, b), (top, bottom) = self._pixels(np.array([x, x]), np.clip([high, low], self.y.low, self.y.high))
        self._draw("line", "rule", x1=a, y1=top, x2=b, y2=bottom)

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "middle", up: float = 0.0) -> None:
        """Draw text at a position of the plot, shifted upwards by ``up`` pixels."""
        (px,), (py,) = self._pixels(np.array([x]), np.array([y]))
        self._place_text(px, py - up, text, style, anchor)

    def cell(self, column: int, row: int, columns: int, rows: int, share: float, text: str) -> None:
        """Draw a cell of a matrix that fills the plot; its colour intensity shows its share, from 0 to 1."""
        width, height = self.width / columns, self.height / rows
        x, y = self.left + column * width, self.top + row * height
        self._rect(x + 0.5, y + 0.5, width - 1, height - 1, "heat", opacity=f"{0.06 + 0.86 * share:.2f}")
        self._place_text(x + width / 2, y + height / 2 + 4, text, "on" if share > 0.55 else "")

    def svg(self, title: str) -> Markup:
        """Render the plot as an SVG element; ``title`` is its accessible name for screen readers."""
        height = self.top + self.height + self.bottom
        return Markup(
            f'<svg class="plot" viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
            f"{self._axes()}{''.join(self._drawn)}</svg>"
        )

    def _axes(self) -> str:
        drawn, self._drawn = self._drawn, []
        bottom, right = self.top + self.height, self.left + self.width
        for value, text in self.y.ticks:
            y = bottom - float(self.y.at(value)) * self.height
            if not self.matrix:
                self._draw("line", "grid", x1=self.left, y1=y, x2=right, y2=y)
            self._place_text(self.left - 6, y + 4, text, "", "end")
        slot = self.width / max(1, len(self.x.ticks))
        skip = max(1, math.ceil(_LETTER * max((len(text) for _, text in self.x.ticks), default=0) / max(slot - 4, 1)))
        for value, text in self.x.ticks[:: 1 if self.rotated else skip]:
            x = self.left + float(self.x.at(value)) * self.width
            if not self.matrix:
                self._draw("line", "grid", x1=x, y1=self.top, x2=x, y2=bottom)
            if self.rotated:
                transform = f'transform="translate({x + 5:.1f} {bottom + 13:.1f}) rotate(-35)"'
                self._drawn.append(f'<text text-anchor="end" {transform}>{escape(text)}</text>')
            else:
                self._place_text(x, bottom + 16, text)
        self._draw("line", "axis", x1=self.left, y1=bottom, x2=right, y2=bottom)
        self._place_text(
            self.left + self.width / 2, bottom + self.bottom - 10, shortened(self.x.label, self.width), "label"
        )
        label = escape(shortened(self.y.label, self.height))
        middle = self.top + self.height / 2
        self._drawn.append(
            f'<text class="label" text-anchor="middle" transform="translate(13 {middle:.0f}) rotate(-90)">'
            f"{label}</text>"
        )
        self._place_text(self.left, 14, self.summary, "summary", "start")
        axes, self._drawn = "".join(self._drawn), drawn
        return axes

    def _pixels(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        px, py = self.left + self.x.at(x) * self.width, self.top + (1 - self.y.at(y)) * self.height
        finite = np.isfinite(px) & np.isfinite(py)
        return px[finite], py[finite]

    def _rect(self, x: float, y: float, width: float, height: float, style: str, **more: str) -> None:
        self._draw("rect", style, x=x, y=y, width=max(width, 0.5), height=max(height, 0.0), **more)

    def _place_text(self, x: float, y: float, text: str, style: str = "", anchor: str = "middle") -> None:
        kind = f' class="{style}"' if style else ""
        self._drawn.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>')

    def _draw(self, element: str, style: str, **attributes: float | str) -> None:
        rendered = (f'{name}="{v if isinstance(v, str) else f"{v:.1f}"}"' for name, v in attributes.items())
        self._drawn.append(f'<{element} class="{style}" {" ".join(rendered)}/>')


def shortened(text: str, width: float) -> str:
    """Shorten a text to at most ``width`` pixels by replacing its middle with an ellipsis."""
    most = max(8, int(width / _LETTER))
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2 - 1) :]}"
