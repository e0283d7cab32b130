"""Molecules as SVG, readable on light and on dark pages, and their scaffolds."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup, escape
from rdkit import Chem, rdBase
from rdkit.Chem.Draw import rdMolDraw2D
from rdkit.Chem.Scaffolds import MurckoScaffold

# Pixels of a drawing; the page shows it about as large.
_WIDTH, _HEIGHT = 220, 165
# Of more atoms a drawing is neither read nor made quickly.
_MAX_ATOMS = 120

# RDKit's colours of the elements, each of which the page gives a light and a dark form.
_COLOURS = {
    "#000000": "ink",
    "#0000FF": "n",
    "#FF0000": "o",
    "#CCCC00": "s",
    "#FF7F00": "p",
    "#33CCCC": "f",
    "#00CC00": "cl",
    "#7F4C19": "br",
    "#A01EEF": "i",
}


def draw_molecule(smiles: str, label: str) -> Markup | None:
    """A drawing of a molecule; None of what is too large to be drawn, or is none.

    Args:
        smiles: of it.
        label: what a screen reader says.
    """
    mol = _parse(smiles)
    if mol is None or mol.GetNumAtoms() > _MAX_ATOMS:
        return None
    drawer = rdMolDraw2D.MolDraw2DSVG(_WIDTH, _HEIGHT)
    options: Any = drawer.drawOptions()
    options.clearBackground = False
    options.fixedBondLength, options.bondLineWidth, options.padding = 22, 1.3, 0.03
    with rdBase.BlockLogs():
        try:
            rdMolDraw2D.PrepareAndDrawMolecule(drawer, mol)
        except (RuntimeError, ValueError):  # some complexes of metals have no Kekulé form
            return None
    drawer.FinishDrawing()
    return _with_page_style(drawer.GetDrawingText(), label)


def _with_page_style(svg: str, label: str) -> Markup:
    """RDKit's SVG without its namespaces and colours, which become classes of the page's style."""
    svg = svg[svg.index("<svg") :]
    svg = svg[svg.index(">") + 1 :]
    svg = re.sub(r"<!--.*?-->|<rect[^>]*>\s*</rect>", "", svg, flags=re.DOTALL)
    svg = re.sub(r" class='[^']*'", "", svg)
    for colour, name in _COLOURS.items():
        svg = svg.replace(f"stroke:{colour}", f"stroke:var(--atom-{name})")
        svg = re.sub(f" fill='{colour}'", f" style='fill:var(--atom-{name})'", svg)
    svg = re.sub(r"#[0-9A-F]{6}\b", "var(--atom-ink)", svg)  # of other elements
    svg = svg.replace("fill-rule:evenodd;", "").replace("stroke-opacity:1", "").replace("stroke-linejoin:miter;", "")
    svg = re.sub(r"\s*\n\s*", "", svg)
    begin = f'<svg class="molecule" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
    return Markup(begin + svg)


def scaffold_of(smiles: str) -> str | None:
    """The SMILES of the Bemis-Murcko scaffold of a molecule (1996), empty where it has no rings; None of what is none.

    Without stereochemistry, as the enantiomers of a compound belong together.
    """
    mol = _parse(smiles)
    if mol is None:
        return None
    with rdBase.BlockLogs():
        Chem.RemoveStereochemistry(mol)
        try:
            return Chem.MolToSmiles(MurckoScaffold.GetScaffoldForMol(mol))
        except (RuntimeError, ValueError):
            return None


def _parse(smiles: str) -> Chem.Mol | None:
    with rdBase.BlockLogs():
        try:
            return Chem.MolFromSmiles(smiles)
        except UnicodeEncodeError:  # bytes of a file that are no text
            return None
