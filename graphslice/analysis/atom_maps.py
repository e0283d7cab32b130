"""What atoms add, drawn on molecules: a picture each, and an overview."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PatchCollection, PathCollection
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from graphslice.analysis.figures import save, shortened
from graphslice.analysis.formatting import SEVERAL_CLASSES, Digits, Explanation, short_number
from graphslice.analysis.layout import DISC, Depiction, depict, place_boxes

#: Blue to red, which the colour-blind tell apart; not to the dark ends, on which letters are hard to read.
COLOURS = ListedColormap(colormaps["RdBu_r"](np.linspace(0.16, 0.84, 256)))
# Inches: of a bond, the sides of a picture, and what texts beside the molecule take.
_BOND, _MARGIN, _NARROWEST, _WIDEST, _LINE = 0.5, 0.15, 5.6, 24.0, 0.19
_NUMBER, _TEXT, _TITLE = 8.0, 9.0, 10.0  # points
# Width of characters in the size of DejaVu Sans, which matplotlib brings.
_WIDTHS = {"+": 0.84, "\N{MINUS SIGN}": 0.84, ".": 0.32}
_PANEL, _COLUMNS = (2.7, 2.3), 4


def draw_atoms(smiles: str, explanation: Explanation, path: Path) -> list[Path]:
    """A molecule with discs and numbers at its atoms, its prediction above and what the colours mean below."""
    drawn = depict(smiles)
    left, bottom, right, top = drawn.box
    bond = min(_BOND, _WIDEST / (right - left + 2))
    texts = [explanation.digits.text(value, sign=True) for value in explanation.values]
    sizes = [_size_of(text, _NUMBER * min(1, bond / _BOND), bond) for text in texts]
    boxes = place_boxes(drawn, sizes)
    low, high = np.minimum((left, bottom), boxes[:, :2].min(axis=0)), np.maximum((right, top), boxes[:, 2:].max(axis=0))
    wide, tall = (high - low) * bond
    width = max(_NARROWEST, wide + 2 * _MARGIN)
    head, foot = _header_lines(smiles, explanation, width), _footer_lines(explanation, width)
    height = tall + 4 * _MARGIN + _LINE * (len(head) + len(foot)) + 0.55
    with _settings():
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        for i, line in enumerate(head):
            size, weight = (_TITLE, "bold") if i == 0 else (_TEXT, "normal")
            figure.text(0.5, 1 - (_MARGIN + i * _LINE) / height, line, ha="center", va="top", size=size, weight=weight)
        floor = 2 * _MARGIN + _LINE * len(foot) + 0.55
        panel = figure.add_axes(((width - wide) / 2 / width, floor / height, wide / width, tall / height))
        panel.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        largest = _largest([explanation.values])
        _draw(panel, drawn, explanation.values, largest, bond)
        _draw_numbers(panel, drawn, texts, boxes, bond)
        _colour_bar(figure, explanation, largest, explanation.digits, (floor - _MARGIN - 0.12) / height)
        for i, line in enumerate(foot):
            figure.text(0.5, (floor - 0.72 - i * _LINE) / height, line, ha="center", va="top", size=_TEXT)
        return save(figure, path)


def draw_overview(
    smiles: Sequence[str], explanation: Sequence[Explanation], path: Path, numbers: Sequence[int]
) -> list[Path]:
    """Several molecules on one page (PNG), with one scale of colours: numbers are in the pictures of each."""
    columns = min(_COLUMNS, len(smiles))
    lines = -(-len(smiles) // columns)
    width = max(_NARROWEST, _PANEL[0] * columns)
    foot = _footer_lines(explanation[0], width, alone=False)
    below = 0.85 + _LINE * len(foot)
    height = _PANEL[1] * lines + below
    largest = _largest([one.values for one in explanation])
    with _settings():
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        for i, (text, one) in enumerate(zip(smiles, explanation, strict=True)):
            x, y = (i % columns) / columns, (below + _PANEL[1] * (lines - 1 - i // columns)) / height
            middle = x + 0.5 / columns
            title = f"{numbers[i]}  {shortened(text, 30)}"
            figure.text(middle, y + (_PANEL[1] - 0.08) / height, title, ha="center", va="top", size=7.5, weight="bold")
            said = one.model_prediction or f"{one.quantity} {short_number(one.prediction)}"
            figure.text(middle, y + (_PANEL[1] - 0.25) / height, shortened(said, 48), ha="center", va="top", size=7.5)
            panel = figure.add_axes((x + 0.02 / columns, y, 0.96 / columns, (_PANEL[1] - 0.48) / height))
            _fit(panel, depict(text), one.values, largest, (0.96 * width / columns, _PANEL[1] - 0.48))
        digits = Digits.of(np.array([largest]), 0.0)
        _colour_bar(
            figure,
            explanation[0],
            largest,
            digits,
            (below - 0.3) / height,
            alone=len({o.quantity for o in explanation}) == 1,
        )
        for i, line in enumerate(foot):
            figure.text(0.5, (below - 0.82 - i * _LINE) / height, line, ha="center", va="top", size=_TEXT)
        return save(figure, path, ["png"])


@contextmanager
def _settings() -> Iterator[None]:
    # Texts stay texts in SVG, and dollars of a SMILES are no formula.
    with matplotlib.rc_context({"svg.fonttype": "none", "text.parse_math": False, "svg.hashsalt": "graphslice"}):
        yield


def _largest(values: Sequence[np.ndarray]) -> float:
    return max(1e-30, *(float(np.abs(each).max()) for each in values), 0.0)


def _size_of(text: str, points: float, bond: float) -> tuple[float, float]:
    """Width and height of a number in bond lengths of so many inches."""
    ems = sum(_WIDTHS.get(letter, 0.64) for letter in text)
    return ems * points / 72 / bond, 0.76 * points / 72 / bond


def _header_lines(smiles: str, explanation: Explanation, width: float) -> list[str]:
    letters = int(width / 0.072)
    lines = [
        shortened(smiles, min(90, int(width / 0.1))),
        *textwrap.wrap(f"{explanation.quantity}: {explanation.sum}", letters),
    ]
    return lines + (
        textwrap.wrap(f"the model answers: {explanation.model_prediction}", letters)
        if explanation.model_prediction
        else []
    )


def _footer_lines(explanation: Explanation, width: float, alone: bool = True) -> list[str]:
    lines = [explanation.error_bound_text] if alone and explanation.error_bound_text else []
    return [line for text in [*lines, *explanation.notes] for line in textwrap.wrap(text, int(width / 0.072))]


def _draw(panel: Axes, drawn: Depiction, values: np.ndarray, largest: float, bond: float) -> None:
    """The molecule and its discs; ``bond``: inches of one."""
    panel.set_axis_off()
    discs = [Circle((x, y), DISC) for x, y in drawn.atoms]
    colours = COLOURS(0.5 + 0.5 * np.clip(values / largest, -1, 1))
    panel.add_collection(PatchCollection(discs, facecolors=colours, edgecolors="none", zorder=1))
    width = max(0.4, 1.3 * min(1, bond / _BOND))
    panel.add_collection(
        PathCollection(drawn.lines, facecolors="none", edgecolors="black", linewidths=width, capstyle="round", zorder=2)
    )
    # Snapped to pixels, the thin parts of small letters would vanish.
    panel.add_collection(PathCollection(drawn.areas, facecolors="black", edgecolors="none", zorder=3, snap=False))


def _draw_numbers(panel: Axes, drawn: Depiction, texts: Sequence[str], boxes: np.ndarray, bond: float) -> None:
    """The numbers, and a thin line to the atom of one that found no room beside it."""
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    far = []
    for (x, y), text, centre, box in zip(drawn.atoms, texts, centres, boxes, strict=True):
        panel.text(
            centre[0], centre[1], text, size=_NUMBER * min(1, bond / _BOND), ha="center", va="center_baseline", zorder=4
        )
        nearest = np.clip((x, y), box[:2], box[2:])
        way = nearest - (x, y)
        if np.hypot(*way) > DISC + 0.42:
            far.append([(x, y) + way / np.hypot(*way) * DISC, nearest])
    panel.add_collection(LineCollection(far, colors="0.55", linewidths=0.5, zorder=1.5))


def _fit(panel: Axes, drawn: Depiction, values: np.ndarray, largest: float, inches: tuple[float, float]) -> None:
    """Draw a molecule as large as a panel of so many inches takes it, but no larger than in its own picture."""
    left, bottom, right, top = drawn.box
    bond = min(_BOND * 0.8, inches[0] / (right - left), inches[1] / (top - bottom))
    half = np.array(inches) / bond / 2
    x, y = (left + right) / 2, (bottom + top) / 2
    panel.set(xlim=(x - half[0], x + half[0]), ylim=(y - half[1], y + half[1]))
    _draw(panel, drawn, values, largest, bond)


def _colour_bar(
    figure: Figure, explanation: Explanation, largest: float, digits: Digits, top: float, alone: bool = True
) -> None:
    """What blue and red mean, and how much; ``alone`` is False where molecules are drawn for different classes."""
    width, height = figure.get_size_inches()
    bar = figure.add_axes((0.5 - 1.25 / width, top - 0.12 / height, 2.5 / width, 0.12 / height))
    scale = ScalarMappable(Normalize(-largest, largest), COLOURS)
    colours = figure.colorbar(scale, cax=bar, orientation="horizontal", ticks=[-largest, 0, largest])
    colours.outline.set_linewidth(0.5)
    texts = [digits.text(value, sign=True) for value in (-largest, 0.0, largest)]
    colours.set_ticklabels([texts[0] + digits.times, "0", texts[2] + digits.times])
    bar.tick_params(labelsize=_NUMBER, length=2, pad=1.5)
    legend = explanation.legend if alone else SEVERAL_CLASSES[0]
    bar.set_title(legend, size=_TEXT, pad=4)
    down, up = (explanation.down, explanation.up) if alone else SEVERAL_CLASSES[1:]
    room = int((width / 2 - 1.25) / 0.075)
    for x, text, side in ((-0.03, down, "right"), (1.03, up, "left")):
        bar.text(x, 0.5, shortened(text, room), ha=side, va="center", size=_NUMBER, transform=bar.transAxes)
