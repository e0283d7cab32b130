"""Draw atom contributions on molecules: one picture per molecule, and an overview."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont
from rdkit import Chem

from graphslice.evaluation.format_scores import shortened
from graphslice.explain.attribution import SEVERAL_CLASSES, Explanation, short_number
from graphslice.report.drawing import drawing_module

#: Colours (red, green, blue) of the largest contribution that raises and of the largest that lowers the prediction.
RED, BLUE = np.array([0.87, 0.45, 0.36]), np.array([0.35, 0.62, 0.79])
# Pixels: of an ångström, least width of a picture, margin, height of a text line, size and mean width of its letters.
_SCALE, _NARROWEST, _MARGIN, _LINE, _FONT, _LETTER = 32, 520, 10, 18, 13, 6.7
# Panel of an overview, and the number of columns.
_PANEL, _COLUMNS = (320, 230), 4


def draw_atoms(smiles: str, explanation: Explanation) -> tuple[str, bytes]:
    """Draw a molecule with coloured atoms and their contributions, and texts below; return SVG and PNG."""
    notes = [explanation.digits.text(value, sign=True) for value in explanation.values]
    largest = _largest([explanation])
    svg, width, height = _molecule(smiles, explanation.values, largest, "SVG", notes)
    png, *_ = _molecule(smiles, explanation.values, largest, "Cairo", notes)
    page = max(_NARROWEST, width + 2 * _MARGIN)
    lines = [shortened(smiles, page // 10), f"{explanation.quantity}: {explanation.sum}"]
    if explanation.model_prediction:
        lines.append(f"model prediction: {explanation.model_prediction}")
    lines += [_legend([explanation], largest), explanation.error_text, *explanation.notes]
    lines, top = _wrapped(lines, page), height + 2 * _MARGIN
    size = (page, top + _LINE * len(lines) + _MARGIN)
    image = Image.new("RGB", size, "white")
    image.paste(Image.open(io.BytesIO(png)), ((page - width) // 2, _MARGIN))
    _write_lines(image, lines, page // 2, top)
    texts = "".join(
        f'<text x="{page // 2}" y="{top + _LINE * i + _FONT}">{escape(line)}</text>\n' for i, line in enumerate(lines)
    )
    place = f'<svg x="{(page - width) // 2}" y="{_MARGIN}" '
    document = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        f'viewBox="0 0 {size[0]} {size[1]}">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f"{svg[svg.index('<svg') :].replace('<svg ', place, 1)}"
        f'<g font-family="DejaVu Sans, Verdana, sans-serif" font-size="{_FONT}" text-anchor="middle">\n{texts}</g>\n'
        "</svg>\n"
    )
    return document, _png_bytes(image)


def draw_overview(smiles: Sequence[str], explanations: Sequence[Explanation], numbers: Sequence[int]) -> bytes:
    """Draw several molecules on one page with a common colour scale, and their numbers above them; return a PNG."""
    columns, (width, height) = min(_COLUMNS, len(smiles)), _PANEL
    page, largest = max(_NARROWEST, width * columns), _largest(explanations)
    footer = _wrapped([_legend(explanations, largest), *explanations[0].notes], page)
    rows = -(-len(smiles) // columns)
    image = Image.new("RGB", (page, height * rows + _LINE * len(footer) + 2 * _MARGIN), "white")
    for i, (text, explanation) in enumerate(zip(smiles, explanations, strict=True)):
        left, top = width * (i % columns), height * (i // columns)
        png, *_ = _molecule(text, explanation.values, largest, "Cairo", size=(width, height - 3 * _LINE))
        image.paste(Image.open(io.BytesIO(png)), (left, top + 3 * _LINE))
        prediction = explanation.model_prediction or f"{explanation.quantity} {short_number(explanation.prediction)}"
        lines = [shortened(line, 34) for line in (f"{numbers[i]}  {text}", prediction)]
        _write_lines(image, lines, left + width // 2, top + _MARGIN)
    _write_lines(image, footer, page // 2, height * rows + _MARGIN)
    return _png_bytes(image)


def _molecule(
    smiles: str,
    values: np.ndarray,
    largest: float,
    kind: str,
    notes: Sequence[str] | None = None,
    size: tuple[int, int] = (-1, -1),
) -> tuple[Any, int, int]:
    """Draw a molecule without element colours; return the drawing, its width and its height in pixels."""
    module, mol = drawing_module(), Chem.MolFromSmiles(smiles)
    # RDKit would add explicit hydrogens at some stereocentres: atoms without a value.
    try:
        mol = module.PrepareMolForDrawing(mol, addChiralHs=False)
    except Chem.KekulizeException:
        mol = module.PrepareMolForDrawing(mol, kekulize=False, addChiralHs=False)
    for atom, note in zip(mol.GetAtoms(), notes or (), strict=notes is not None):
        atom.SetProp("atomNote", note.replace("\N{MINUS SIGN}", "-"))  # RDKit writes ASCII only
    drawer = getattr(module, f"MolDraw2D{kind}")(*size)
    options: Any = drawer.drawOptions()
    options.useBWAtomPalette()
    options.prepareMolsBeforeDrawing = False
    options.atomHighlightsAreCircles, options.highlightRadius = True, 0.35
    options.scalingFactor, options.fixedBondLength, options.bondLineWidth = _SCALE, 1.5 * _SCALE, 1.5
    options.annotationFontScale, options.fontFile = 0.6, findfont("DejaVu Sans")
    shares = np.clip(np.abs(values) / largest, 0, 1)
    colours = 1 + shares[:, None] * (np.where(values[:, None] > 0, RED, BLUE) - 1)
    colour_of = {i: tuple(map(float, colour)) for i, colour in enumerate(colours)}
    drawer.DrawMolecule(mol, highlightAtoms=list(colour_of), highlightAtomColors=colour_of, highlightBonds=[])
    drawer.FinishDrawing()
    return drawer.GetDrawingText(), drawer.Width(), drawer.Height()


def _largest(explanations: Sequence[Explanation]) -> float:
    return max(1e-30, *(float(np.abs(explanation.values).max()) for explanation in explanations), 0.0)


def _legend(explanations: Sequence[Explanation], largest: float) -> str:
    """Describe the colours, also where molecules are explained for different classes."""
    first = explanations[0]
    several = len({explanation.quantity for explanation in explanations}) > 1
    legend, down, up = SEVERAL_CLASSES if several else (first.legend, first.down, first.up)
    return f"{legend}: red {up}, blue {down}; at most ±{first.digits.text(largest)}{first.digits.times}"


def _wrapped(texts: Sequence[str], width: int) -> list[str]:
    return [line for text in texts for line in textwrap.wrap(text, int((width - 2 * _MARGIN) / _LETTER))]


def _write_lines(image: Image.Image, lines: Sequence[str], x: int, y: int) -> None:
    """Write centred lines of text, the first one at height ``y``."""
    draw, font = ImageDraw.Draw(image), ImageFont.truetype(findfont("DejaVu Sans"), _FONT)
    for i, line in enumerate(lines):
        draw.text((x, y + _LINE * i), line, "black", font, "ma")


def _png_bytes(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
