"""Draw atom contributions on molecules: one figure per molecule, and an overview."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PatchCollection, PathCollection
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from graphslice.analysis.formatting import SEVERAL_CLASSES, Digits, Explanation, short_number
from graphslice.analysis.layout import DISC, Depiction, depict, place_boxes
from graphslice.evaluation.plots import shortened, text_style

#: Diverging blue-red colour map, safe for colour blindness; without its dark ends, on which letters are hard to read.
COLOURS = ListedColormap(colormaps["RdBu_r"](np.linspace(0.16, 0.84, 256)))
# Inches: bond length, margin, smallest and largest width of a figure, and height of a text line.
_BOND, _MARGIN, _NARROWEST, _WIDEST, _LINE = 0.5, 0.15, 5.6, 24.0, 0.19
_NUMBER, _TEXT, _TITLE = 8.0, 9.0, 10.0  # points
# Character widths relative to the font size, for DejaVu Sans, matplotlib's default font.
_WIDTHS = {"+": 0.84, "\N{MINUS SIGN}": 0.84, ".": 0.32}
_PANEL, _COLUMNS = (2.7, 2.3), 4


def draw_atoms(smiles: str, explanation: Explanation, path: Path) -> list[Path]:
    """Draw a molecule with coloured discs and numbers at its atoms, the prediction above and a colour bar below.

    Returns the paths of the PNG and SVG files: ``path`` with these suffixes.
    """
    layout = depict(smiles)
    left, bottom, right, top = layout.box
    bond = min(_BOND, _WIDEST / (right - left + 2))
    texts = [explanation.digits.text(value, sign=True) for value in explanation.values]
    sizes = [_size_of(text, _NUMBER * min(1, bond / _BOND), bond) for text in texts]
    boxes = place_boxes(layout, sizes)
    low, high = np.minimum((left, bottom), boxes[:, :2].min(axis=0)), np.maximum((right, top), boxes[:, 2:].max(axis=0))
    mol_width, mol_height = (high - low) * bond
    width = max(_NARROWEST, mol_width + 2 * _MARGIN)
    header, footer = _header_lines(smiles, explanation, width), _footer_lines(explanation, width)
    height = mol_height + 4 * _MARGIN + _LINE * (len(header) + len(footer)) + 0.55
    with text_style():
        figure = Figure(figsize=(width, height))
        for i, line in enumerate(header):
            size, weight = (_TITLE, "bold") if i == 0 else (_TEXT, "normal")
            figure.text(0.5, 1 - (_MARGIN + i * _LINE) / height, line, ha="center", va="top", size=size, weight=weight)
        base = 2 * _MARGIN + _LINE * len(footer) + 0.55
        panel = figure.add_axes(
            ((width - mol_width) / 2 / width, base / height, mol_width / width, mol_height / height)
        )
        panel.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        largest = _largest([explanation.values])
        _draw(panel, layout, explanation.values, largest, bond)
        _draw_numbers(panel, layout, texts, boxes, bond)
        _colour_bar(figure, explanation, largest, explanation.digits, (base - _MARGIN - 0.12) / height)
        for i, line in enumerate(footer):
            figure.text(0.5, (base - 0.72 - i * _LINE) / height, line, ha="center", va="top", size=_TEXT)
        return _save(figure, path)


def draw_overview(
    smiles: Sequence[str], explanation: Sequence[Explanation], path: Path, numbers: Sequence[int]
) -> list[Path]:
    """Draw several molecules on one page with a common colour scale and without numbers at the atoms.

    The title of each has its number. Returns the path of the PNG file: ``path`` with this suffix.
    """
    columns = min(_COLUMNS, len(smiles))
    lines = -(-len(smiles) // columns)
    width = max(_NARROWEST, _PANEL[0] * columns)
    footer = _footer_lines(explanation[0], width, alone=False)
    footer_height = 0.85 + _LINE * len(footer)
    height = _PANEL[1] * lines + footer_height
    largest = _largest([one.values for one in explanation])
    with text_style():
        figure = Figure(figsize=(width, height))
        for i, (text, one) in enumerate(zip(smiles, explanation, strict=True)):
            x, y = (i % columns) / columns, (footer_height + _PANEL[1] * (lines - 1 - i // columns)) / height
            middle = x + 0.5 / columns
            title = f"{numbers[i]}  {shortened(text, 30)}"
            figure.text(middle, y + (_PANEL[1] - 0.08) / height, title, ha="center", va="top", size=7.5, weight="bold")
            prediction = one.model_prediction or f"{one.quantity} {short_number(one.prediction)}"
            figure.text(
                middle, y + (_PANEL[1] - 0.25) / height, shortened(prediction, 48), ha="center", va="top", size=7.5
            )
            panel = figure.add_axes((x + 0.02 / columns, y, 0.96 / columns, (_PANEL[1] - 0.48) / height))
            _fit(panel, depict(text), one.values, largest, (0.96 * width / columns, _PANEL[1] - 0.48))
        digits = Digits.of(np.array([largest]), 0.0)
        alone = len({one.quantity for one in explanation}) == 1
        _colour_bar(figure, explanation[0], largest, digits, (footer_height - 0.3) / height, alone=alone)
        for i, line in enumerate(footer):
            figure.text(0.5, (footer_height - 0.82 - i * _LINE) / height, line, ha="center", va="top", size=_TEXT)
        return _save(figure, path, ["png"])


def _largest(values: Sequence[np.ndarray]) -> float:
    return max(1e-30, *(float(np.abs(contributions).max()) for contributions in values), 0.0)


def _size_of(text: str, points: float, bond: float) -> tuple[float, float]:
    """Estimate width and height of a number in bond lengths; ``bond``: inches per bond length."""
    ems = sum(_WIDTHS.get(letter, 0.64) for letter in text)
    return ems * points / 72 / bond, 0.76 * points / 72 / bond


def _header_lines(smiles: str, explanation: Explanation, width: float) -> list[str]:
    letters = int(width / 0.072)
    texts = [f"{explanation.quantity}: {explanation.sum}"]
    if explanation.model_prediction:
        texts.append(f"model prediction: {explanation.model_prediction}")
    lines = [line for text in texts for line in textwrap.wrap(text, letters)]
    return [shortened(smiles, min(88, int(width / 0.1) - 2)), *lines]


def _footer_lines(explanation: Explanation, width: float, alone: bool = True) -> list[str]:
    lines = [explanation.error_bound_text] if alone and explanation.error_bound_text else []
    return [line for text in [*lines, *explanation.notes] for line in textwrap.wrap(text, int(width / 0.072))]


def _draw(panel: Axes, layout: Depiction, values: np.ndarray, largest: float, bond: float) -> None:
    """Draw the molecule and its discs; ``bond``: inches per bond length."""
    panel.set_axis_off()
    discs = [Circle((x, y), DISC) for x, y in layout.atoms]
    colours = COLOURS(0.5 + 0.5 * np.clip(values / largest, -1, 1))
    panel.add_collection(PatchCollection(discs, facecolors=colours, edgecolors="none", zorder=1))
    width = max(0.4, 1.3 * min(1, bond / _BOND))
    panel.add_collection(
        PathCollection(
            layout.lines, facecolors="none", edgecolors="black", linewidths=width, capstyle="round", zorder=2
        )
    )
    # Snapping to pixels would remove the thin parts of small letters.
    panel.add_collection(PathCollection(layout.areas, facecolors="black", edgecolors="none", zorder=3, snap=False))


def _draw_numbers(panel: Axes, layout: Depiction, texts: Sequence[str], boxes: np.ndarray, bond: float) -> None:
    """Draw the numbers, with a thin line to the atom for numbers that had to be placed farther away."""
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    leader_lines = []
    for (x, y), text, centre, box in zip(layout.atoms, texts, centres, boxes, strict=True):
        panel.text(
            centre[0], centre[1], text, size=_NUMBER * min(1, bond / _BOND), ha="center", va="center_baseline", zorder=4
        )
        nearest = np.clip((x, y), box[:2], box[2:])
        offset = nearest - (x, y)
        if np.hypot(*offset) > DISC + 0.42:
            leader_lines.append([(x, y) + offset / np.hypot(*offset) * DISC, nearest])
    panel.add_collection(LineCollection(leader_lines, colors="0.55", linewidths=0.5, zorder=1.5))


def _fit(panel: Axes, layout: Depiction, values: np.ndarray, largest: float, inches: tuple[float, float]) -> None:
    """Draw a molecule as large as the panel allows, but not larger than in its own figure; ``inches``: panel size."""
    left, bottom, right, top = layout.box
    bond = min(_BOND * 0.8, inches[0] / (right - left), inches[1] / (top - bottom))
    half = np.array(inches) / bond / 2
    x, y = (left + right) / 2, (bottom + top) / 2
    panel.set(xlim=(x - half[0], x + half[0]), ylim=(y - half[1], y + half[1]))
    _draw(panel, layout, values, largest, bond)


def _colour_bar(
    figure: Figure, explanation: Explanation, largest: float, digits: Digits, top: float, alone: bool = True
) -> None:
    """Draw the colour bar with its legend; ``alone``: False if the molecules are explained for different classes."""
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
    blue_text, red_text = (explanation.down, explanation.up) if alone else SEVERAL_CLASSES[1:]
    max_width = int((width / 2 - 1.25) / 0.075) - 2
    for x, text, side in ((-0.03, blue_text, "right"), (1.03, red_text, "left")):
        bar.text(x, 0.5, shortened(text, max_width), ha=side, va="center", size=_NUMBER, transform=bar.transAxes)


def _save(figure: Figure, path: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write a figure in each of the formats, and return the paths."""
    paths = [path.with_suffix(f".{kind}") for kind in formats]
    for name in paths:
        # Without a date, so that equal figures give identical files.
        figure.savefig(name, dpi=120, metadata={"Date": None} if name.suffix == ".svg" else None)
    return paths
